//! Programs that ask for their own checkpoint, and for children of it, at a Unix socket of its own.
//!
//! ```text
//!  program ──▶ socket ──▶ connection ─┬─ checkpoint: the program is captured while it waits at this very socket
//!                                     └─ batch: its children, each told of as it starts
//!                                         └─ tender: waits for those of one node, and tells of their ends
//! ```
//!
//! Who may connect is a matter of the socket's permissions. A process can ask for a seed of itself only: the kernel says
//! which process connected. `farfork_program` has the messages, `engine::caller` the answer that a child finds.

mod batch;
mod connection;
mod registry;
mod socket;
mod tender;

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::limits::PROGRAM_CONNECTIONS_MAX;
use crate::node::Node;
use registry::Registry;

pub(crate) use socket::{Listener, listen};

/// Serves programs until `stopped` turns true; their children end then.
pub(crate) async fn serve(node: Arc<Node>, listener: Listener, mut stopped: watch::Receiver<bool>) {
    let registry = Arc::new(Registry::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < PROGRAM_CONNECTIONS_MAX => accepted,
            Some(_) = connections.join_next() => continue,
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
        };
        match accepted {
            Ok(socket) => {
                connections.spawn(connection::serve(node.clone(), registry.clone(), socket));
            }
            Err(error) => {
                tracing::warn!(%error, "a program could not connect");
                // EMFILE and the like pass: meanwhile the others are served.
                tokio::time::sleep(socket::ACCEPT_PAUSE).await;
            }
        }
    }
    connections.shutdown().await;
}
