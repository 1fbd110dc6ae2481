//! Programs that ask for their own checkpoint, and for children of it, at a Unix socket of its own.
//!
//! ```text
//!  program ──▶ socket ──▶ door ─┬─ checkpoint, its first request: the program is captured while it waits at this very socket
//!                               └─ connection ─┬─ checkpoint: likewise
//!                                              └─ batch: its children, each told of as it starts
//!                                                  └─ tender: waits for those of one node, and tells of their ends
//! ```
//!
//! Who may connect is a matter of the socket's permissions. A process can ask for a seed of itself only: the kernel says
//! which process connected. `farfork_program` has the messages, `engine::caller` the answer that a child finds.

mod checkpoint_listener;
mod connection;
mod exit_watcher;
mod fork_table;
mod socket;
mod socket_registry;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::node::Node;
use checkpoint_listener::CheckpointListener;
use socket_registry::SocketRegistry;

pub(crate) use socket::listen;

/// Between two looks at what goes on at the doors: nobody is late by more.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Serves programs until `stopped` turns true; their children end then.
pub(crate) async fn serve_programs(node: Arc<Node>, listener: OwnedFd, mut stopped: watch::Receiver<bool>) {
    let registry = Arc::new(SocketRegistry::default());
    let (arrivals, mut arrived) = mpsc::unbounded_channel();
    let doors = CheckpointListener::start(node.clone(), registry.clone(), listener, arrivals);
    let mut connections = JoinSet::new();
    let mut look = tokio::time::interval(OVERDUE_CHECK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(arrival) = arrived.recv() => {
                connections.spawn(connection::serve_program(node.clone(), registry.clone(), arrival));
            }
            Some(_) = connections.join_next() => {}
            _ = look.tick() => doors.expire_overdue(),
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
        }
    }
    drop(doors);
    connections.shutdown().await;
}
