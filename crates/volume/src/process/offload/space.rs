//! Free space of the shared trees. Each node reports the least space of itself and of all later nodes on the path of a log.
//! A client that is short of space requests a new report.

use std::time::Duration;

use super::log_copier;
use super::volume::{LocalClient, ReplicaState, ReplicatedVolume};
use crate::chain::{AMPLE_BYTES, TreeSpace};
use crate::log::LogPoint;
use crate::process::data_copier::CopyMethod;

/// Longest wait for the report of the later nodes at the begin of a term. Without a report, the client requests one later.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A request of this node's client for the free space.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpaceCheck {
    /// The reply waits until the log is published up to this point, or a file system is full.
    pub(super) end: LogPoint,
    /// Number of the space report that the reply needs.
    pub(super) request: u64,
}

impl ReplicaState {
    /// Whether the `CheckSpace` of this node's client can be answered.
    pub(super) fn has_space_answer(&self, client: u16) -> bool {
        let check = self.client.as_ref().filter(|local| local.number == client).and_then(|local| local.space_check);
        let (Some(check), Some(log)) = (check, self.logs.get(&client)) else { return false };
        let is_published = log.copied.chain.published_everywhere() >= check.end;
        log.copied.later_space.is_answered(check.request) && (is_published || self.is_path_full(client))
    }

    /// Whether this node, or a later one on the path of a log, does not publish for lack of space.
    pub(super) fn is_path_full(&self, client: u16) -> bool {
        self.is_full() || self.logs.get(&client).is_some_and(|log| log.copied.later_space.is_full())
    }

    /// Whether this node does not publish for lack of space.
    pub(super) fn is_full(&self) -> bool {
        // A node that catches up publishes nothing, and writers do not wait for it.
        self.is_tree_full && !self.is_catching_up
    }
}

impl ReplicatedVolume {
    /// The least space of this replica and of all later ones on the path of a log.
    pub(super) fn least_space(&self, state: &ReplicaState, client: u16) -> TreeSpace {
        let own = if state.is_catching_up {
            // Writers do not wait for a replica that catches up.
            TreeSpace::UNLIMITED
        } else if state.is_full() {
            TreeSpace::Full
        } else {
            // If statvfs(3) fails, writers are not limited: publishing will report the error.
            self.free_space(self.reserved_bytes(state)).map_or(TreeSpace::UNLIMITED, TreeSpace::Free)
        };
        let later = state.logs.get(&client).map_or(TreeSpace::UNLIMITED, |log| log.copied.later_space.reported());
        own.min(later)
    }

    /// Free space of the file system of the shared tree, less `reserved_bytes`. None if statvfs(3) fails, as after the
    /// directory was removed.
    pub(super) fn free_space(&self, reserved_bytes: u64) -> Option<u64> {
        self.directory.free_space().ok().map(|free| free.saturating_sub(reserved_bytes))
    }

    /// Space that the logs may still need. With reflinks, a log that is overwritten needs new blocks in place of those that
    /// it shares with files.
    pub(super) fn reserved_bytes(&self, state: &ReplicaState) -> u64 {
        match self.node.copy_method {
            CopyMethod::None => state.logs.len() as u64 * state.record.log_bytes,
            CopyMethod::Memcpy | CopyMethod::Async | CopyMethod::AsyncBatch | CopyMethod::Event => 0,
        }
    }

    /// Returns the least space for a log at the begin of a term, when all records are published. None if the last report was
    /// ample, or if no report arrives in time.
    pub(super) fn space_for_term(&self, client: u16) -> Option<TreeSpace> {
        let mut state = self.lock();
        let is_known = state.log(client).copied.later_space.is_known();
        if is_known && self.least_space(&state, client) >= TreeSpace::Free(AMPLE_BYTES) {
            return None;
        }
        let request = state.log(client).copied.later_space.request();
        drop(state);
        log_copier::copy_now(self, client, true);
        let is_answered =
            self.wait_until(REPORT_TIMEOUT, |state| state.log(client).copied.later_space.is_answered(request));
        is_answered.then(|| self.least_space(&self.lock(), client))
    }
}

impl LocalClient {
    /// Returns whether to send a `Published` message, and if so, stores that it is sent. `reports` is the number of space
    /// reports until now.
    pub(super) fn take_published(&mut self, published: LogPoint, reports: u64) -> bool {
        // Before the first report, the space of the later nodes is unknown.
        let has_published = reports > 0 && self.reported_published.is_none_or(|reported| reported < published);
        let has_news = self.waits_for_report.is_some_and(|earlier| earlier < reports);
        if has_published || has_news {
            self.reported_published = Some(published);
            self.waits_for_report = None;
        }
        has_published || has_news
    }
}
