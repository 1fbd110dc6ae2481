//! Serves programs that request checkpoints of themselves, and children of these checkpoints, at a separate Unix
//! socket.
//!
//! The socket's permissions decide which programs may connect. A process can request only a seed of itself: the daemon
//! gets the process from the kernel (SO_PEERCRED). `farfork_program` has the messages, `engine::checkpoint_reply` the
//! reply to a child.

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

/// Interval between checks of captures for their time limit. The reply to an overdue capture is late by at most this
/// time.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Serves programs until `stopped` becomes true; their children are then killed.
///
/// ```text
///  program ──▶ socket ──▶ checkpoint_listener ─┬─ checkpoint, its first request: captured while it waits at this socket
///                                              └─ connection ─┬─ checkpoint: likewise
///                                                             └─ fork_table: its children, each reported as it starts
///                                                                 └─ exit_watcher: reports the ends of those on one node
/// ```
pub(crate) async fn serve_programs(node: Arc<Node>, listener: OwnedFd, mut stopped: watch::Receiver<bool>) {
    let registry = Arc::new(SocketRegistry::default());
    let (arrivals, mut arrived) = mpsc::unbounded_channel();
    let acceptor = CheckpointListener::start(node.clone(), registry.clone(), listener, arrivals);
    let mut connections = JoinSet::new();
    let mut overdue_check = tokio::time::interval(OVERDUE_CHECK_INTERVAL);
    overdue_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(arrival) = arrived.recv() => {
                connections.spawn(connection::serve_program(node.clone(), registry.clone(), arrival));
            }
            Some(_) = connections.join_next() => {}
            _ = overdue_check.tick() => acceptor.expire_overdue(),
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
        }
    }
    drop(acceptor);
    connections.shutdown().await;
}
