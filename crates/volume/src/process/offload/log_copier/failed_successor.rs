//! Handles a successor that does not take the log: it is tried again, or removed from the chain.

use std::time::Instant;

use farfork_wire::NodeName;

use super::super::successor::SuccessorFailure;
use super::sender::{LogSender, SendTask};
use crate::chain::membership;
use crate::chain::{ChainError, PeerError, TreeSpace};
use crate::replay::LogReplay;

impl LogSender {
    /// Schedules the next attempt, which continues at the end of the part that the successor has validated. A successor that
    /// was silent, has refused the log, or was too slow, is removed from the chain.
    pub(super) fn handle_failure(
        &mut self,
        task: &SendTask,
        successor: &NodeName,
        started: Instant,
        error: &ChainError,
    ) {
        self.link = None;
        let (volume, client) = (&self.volume.key.name, self.client);
        if !self.successor.is_failing() {
            tracing::warn!(%error, %volume, client, node = %successor, "the next replica does not take the log, and is tried again");
        }
        // An attempt may have sent bytes for long before the successor became silent.
        let started = started.max(self.successor.progress.advanced_at());
        let silent =
            if may_be_silent(error) { self.volume.find_silent_nodes(&task.record, successor) } else { Vec::new() };
        let failure = self.failure_of(task, successor, error, !silent.is_empty());
        if failure == SuccessorFailure::DiskFull {
            self.volume.lock().log(client).later_space.report(TreeSpace::Full, task.space_request);
        }
        if self.successor.fail(failure, started, Instant::now()) {
            return self.change_chain(task, successor, &silent, error);
        }
        // A successor that is alive may have a later record of the volume.
        if failure != SuccessorFailure::Silent
            && let Err(error) = self.volume.read_record()
        {
            tracing::warn!(%error, "the catalog is read again");
        }
    }

    fn failure_of(
        &self,
        task: &SendTask,
        successor: &NodeName,
        error: &ChainError,
        is_silent: bool,
    ) -> SuccessorFailure {
        match error {
            ChainError::OtherPath => SuccessorFailure::OtherPath,
            ChainError::DiskFull if task.record.chain.contains(successor) => SuccessorFailure::DiskFull,
            ChainError::DiskFull => SuccessorFailure::Refusing,
            error if error.is_refusal() => SuccessorFailure::Refusing,
            // This node cannot read the catalog, which says nothing about the successor.
            ChainError::Peer(PeerError::Catalog(_)) => SuccessorFailure::Unknown,
            _ if is_silent => SuccessorFailure::Silent,
            // A node that waits for its own successor is alive.
            _ => SuccessorFailure::Waiting,
        }
    }

    /// Removes the successor from the chain, and all other silent nodes; or this node if its own log is the reason.
    fn change_chain(&mut self, task: &SendTask, successor: &NodeName, silent: &[NodeName], reason: &ChainError) {
        let volume = &self.volume.key.name;
        if matches!(reason, ChainError::PublishedAhead) || (reason.is_refusal() && !self.is_log_valid()) {
            tracing::error!(%reason, %volume, client = self.client, "the log of this node is damaged: the node leaves the chain");
            match self.volume.leave_chain() {
                // This node is the last live replica. So its successor is a replica that catches up, and is removed below.
                Ok(false) => {}
                Ok(true) => return self.successor.reset(),
                Err(error) => return tracing::error!(%error, %volume, "the chain cannot be changed, and writing waits"),
            }
        }
        let epoch = task.record.epoch;
        let removed = self.volume.update_catalog(|current| {
            if silent.contains(successor) {
                membership::remove_silent(current, silent, &self.volume.node.name, epoch)
            } else {
                membership::remove_member(current, successor, epoch)
            }
        });
        match removed {
            Ok(record) => {
                tracing::warn!(%reason, %volume, node = %successor, epoch = record.epoch, "a replica does not take its log, and has left the chain");
                self.successor.reset();
            }
            Err(error) => tracing::error!(%error, %volume, "the chain cannot be changed, and writing waits"),
        }
    }

    /// Whether the unpublished part of this node's log is still valid.
    fn is_log_valid(&self) -> bool {
        let chain = self.volume.lock().log(self.client).chain.clone();
        let mark = chain.published();
        let mut replay = LogReplay::new(self.log.header().ring_bytes, mark.point, mark.epoch);
        // An error does not count if the mark has changed: published records may be overwritten.
        replay.read_to(&self.log, chain.stored()).is_ok()
            || self.volume.lock().log(self.client).chain.published() != mark
    }
}

/// Whether a failure may be caused by a successor whose process does not answer. A refusal is an answer. An error of the
/// catalog says nothing about the successor.
fn may_be_silent(error: &ChainError) -> bool {
    match error {
        ChainError::OtherPath | ChainError::DiskFull | ChainError::Peer(PeerError::Catalog(_)) => false,
        error => !error.is_refusal(),
    }
}
