//! Changes of other clients: they are applied to the view, and open(2) waits for those that were made before.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::io::Errno;

use super::client::VolumeClient;
use super::offload_link::OffloadRequest;
use crate::change::ChangeSet;
use crate::log::LogPoint;
use crate::publish::{PublishedMark, load_namespace};
use crate::record::InodeNumber;

/// Requests that are not answered.
#[derive(Debug, Default)]
pub(super) struct RefreshRequests {
    state: Mutex<RequestNumbers>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct RequestNumbers {
    last: u64,
    unanswered: BTreeSet<u64>,
}

impl RefreshRequests {
    fn add(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.last += 1;
        let number = state.last;
        state.unanswered.insert(number);
        number
    }

    fn wait(&self, number: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.unanswered.contains(&number) {
            state = self.answered.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn remove(&self, number: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).unanswered.remove(&number);
        self.answered.notify_all();
    }

    pub(super) fn unanswered(&self) -> Vec<u64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).unanswered.iter().copied().collect()
    }
}

impl VolumeClient {
    /// Whether the view may lack what another client has logged.
    pub(super) fn may_be_stale(&self) -> bool {
        self.term().is_none()
    }

    /// Waits until the view and the kernel's caches of inodes have what other clients have logged before. Not in a thread
    /// that serves requests.
    pub(super) fn wait_refreshed(&self) {
        let number = self.refresh.add();
        self.link.send(OffloadRequest::Refresh(number));
        self.refresh.wait(number);
        if let Some(caches) = self.kernel_caches.get() {
            caches.wait_inodes();
        }
    }

    /// The view has everything that was requested.
    pub fn acknowledge_refresh(&self, request: u64) {
        self.refresh.remove(request);
    }

    /// Another client's changes were published on this node.
    pub fn apply_foreign(&self, client: u16, changes: &ChangeSet) {
        let mut state = self.lock();
        state.set_applied(client, changes.end);
        state.namespace.apply_published(changes);
        drop(state);
        let Some(caches) = self.kernel_caches.get() else { return };
        changes.inodes.keys().for_each(|inode| caches.invalidate_inode(*inode));
        changes.entries.keys().for_each(|entry| caches.invalidate_entry(entry.clone()));
    }

    /// Whether the view has each log of other clients exactly as far as the shared tree.
    pub fn has_applied(&self, marks: &[PublishedMark]) -> bool {
        let state = self.lock();
        let others = marks.iter().enumerate().filter(|(client, _)| *client != usize::from(self.number()));
        others.into_iter().all(|(client, mark)| state.applied(client) == mark.point)
    }

    /// Reads the namespace again. Nothing is published meanwhile, and this client has nothing unpublished.
    ///
    /// # Errors
    /// As `load_namespace`.
    pub fn reload(&self, marks: &[PublishedMark]) -> std::io::Result<()> {
        let inode_max = marks[usize::from(self.number())].inode_max;
        let loaded = load_namespace(&self.shared, self.number(), inode_max)?;
        let mut state = self.lock();
        let stale = state.namespace.replace_with(loaded);
        for (client, mark) in marks.iter().enumerate() {
            state.set_applied(client as u16, mark.point);
        }
        drop(state);
        if let Some(caches) = self.kernel_caches.get() {
            stale.inodes.into_iter().for_each(|inode| caches.invalidate_inode(inode));
            stale.entries.into_iter().for_each(|entry| caches.invalidate_entry(entry));
        }
        Ok(())
    }

    /// Whether a file may be opened that the kernel has found before the view was refreshed.
    pub(super) fn check_linked(&self, inode: InodeNumber) -> Result<(), Errno> {
        let is_linked = self.lock().namespace.inode(inode).is_ok_and(|inode| inode.entry_count > 0);
        // With ESTALE the kernel walks the path again.
        if is_linked || self.base_files.is_open(inode) { Ok(()) } else { Err(Errno::STALE) }
    }
}

impl super::client::ClientState {
    fn applied(&self, client: usize) -> LogPoint {
        self.applied.get(client).copied().unwrap_or(LogPoint::START)
    }

    fn set_applied(&mut self, client: u16, point: LogPoint) {
        let index = usize::from(client);
        if self.applied.len() <= index {
            self.applied.resize(index + 1, LogPoint::START);
        }
        self.applied[index] = point;
    }
}
