//! Attended children: they end when the caller of their fork disconnects. A batch holds the attended children of one
//! fork on this node. It exists as long as the node that received the fork request keeps the stream of the start
//! request open.
//!
//! The node that received the request reports a disconnected caller with `Peer.EndBatch`. If that node dies, the stream
//! breaks and no child ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use farfork_api::limits::CALLER_GONE_GRACE;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::children::{Child, HeldChild};

/// The batches of attended children on this node, by batch number. The node that received the fork request draws the
/// number.
#[derive(Debug, Default)]
pub(crate) struct AttendedBatches(Mutex<HashMap<u64, Weak<AttendedBatch>>>);

/// The attended children of one fork on this node.
#[derive(Debug, Default)]
pub(crate) struct AttendedBatch {
    state: Mutex<BatchState>,
    /// Whether the caller wants no further starts.
    is_stopped: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct BatchState {
    /// Whether the caller has disconnected. Children that are added later are killed: their results would not be
    /// collected.
    is_caller_gone: bool,
    children: Vec<HeldChild>,
}

impl AttendedBatches {
    /// Registers a batch, which stays registered until its last reference is dropped. A second share of the same fork gets
    /// the same batch: this node may start the children of a node that does not run.
    pub(crate) fn register(&self, number: u64) -> Arc<AttendedBatch> {
        let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(batch) = batches.get(&number).and_then(Weak::upgrade) {
            return batch;
        }
        batches.retain(|_, batch| batch.strong_count() > 0);
        let batch = Arc::new(AttendedBatch::default());
        batches.insert(number, Arc::downgrade(&batch));
        batch
    }

    /// Stops the starts of a batch: children that have not begun to start are reported as failed. Ignores an unknown batch.
    pub(crate) fn stop_starts(&self, number: u64) {
        if let Some(batch) = self.find(number) {
            batch.is_stopped.send_replace(true);
        }
    }

    /// Ends the children of a batch whose caller has disconnected: by SIGTERM, and after a grace period by SIGKILL.
    /// Ignores an unknown batch. Must be called within the runtime.
    pub(crate) fn end_children(&self, number: u64) {
        if let Some(batch) = self.find(number) {
            batch.end_children();
        }
    }

    fn find(&self, number: u64) -> Option<Arc<AttendedBatch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&number).and_then(Weak::upgrade)
    }
}

impl AttendedBatch {
    /// Adds a started child. If the caller has disconnected, the child is killed at once.
    pub(crate) fn add(&self, child: HeldChild) {
        let mut state = self.state();
        if state.is_caller_gone {
            send_signal(child.child(), Signal::KILL);
        }
        state.children.push(child);
    }

    /// Whether the caller wants no further starts.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.is_stopped.borrow()
    }

    /// Waits until the caller wants no further starts.
    pub(crate) async fn wait_stopped(&self) {
        // The sender lives as long as this batch, so the wait cannot fail.
        let _ = self.is_stopped.subscribe().wait_for(|is_stopped| *is_stopped).await;
    }

    fn end_children(&self) {
        let living: Vec<Arc<Child>> = {
            let mut state = self.state();
            state.is_caller_gone = true;
            state.children.iter().filter(|child| child.is_alive()).map(|child| child.child().clone()).collect()
        };
        if living.is_empty() {
            return;
        }
        tracing::info!(count = living.len(), "children are ended: the caller of their fork has disconnected");
        living.iter().for_each(|child| send_signal(child, Signal::TERM));
        tokio::spawn(async move {
            sleep(CALLER_GONE_GRACE).await;
            living.iter().filter(|child| child.is_alive()).for_each(|child| send_signal(child, Signal::KILL));
        });
    }

    /// Ignores poisoning: every change is complete under its lock.
    fn state(&self) -> MutexGuard<'_, BatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send_signal(child: &Child, signal: Signal) {
    // The child may have ended by itself.
    let _ = child.kill(signal.as_raw().unsigned_abs());
}

#[cfg(test)]
mod tests {
    use super::AttendedBatches;
    use std::sync::Arc;

    #[test]
    fn the_shares_of_a_fork_have_one_batch() {
        let batches = AttendedBatches::default();
        let (first, second, other) = (batches.register(1), batches.register(1), batches.register(2));
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
    }
}
