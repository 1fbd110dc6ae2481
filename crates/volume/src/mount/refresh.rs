//! Applies changes of other clients to the view. open(2) is answered only when the view has all changes that were logged
//! before the call.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::client::{ClientState, VolumeClient};
use super::invalidation::DeferredAnswer;
use super::offload_link::OffloadRequest;
use super::open_modes::may_read;
use super::stale_entries::PathWatch;
use super::write_permission::boot_time;
use crate::change::ChangeSet;
use crate::log::LogPoint;
use crate::publish::{PublishedMark, has_applied_others, load_namespace};
use crate::record::InodeNumber;
use crate::view::CachedObjects;

/// Answers that wait for a refresh by the offload process. At most one request is unanswered; answers that are added during
/// it share the next request.
#[derive(Default)]
pub(super) struct RefreshRequests {
    state: Mutex<RefreshState>,
}

#[derive(Default)]
struct RefreshState {
    /// The number of the last request.
    last: u64,
    /// Time at which the last request was made, if it is unanswered.
    requested_at: Option<Duration>,
    /// Called when the last request is answered.
    current: Vec<DeferredAnswer>,
    /// Called when the next request is answered.
    next: Vec<DeferredAnswer>,
}

/// An answered request.
#[derive(Default)]
struct AnsweredRefresh {
    /// Time at which the request was made.
    requested_at: Option<Duration>,
    answers: Vec<DeferredAnswer>,
    /// The number of a request that must be sent now, if any.
    next: Option<u64>,
}

impl fmt::Debug for RefreshRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefreshRequests").field("unanswered", &self.unanswered()).finish_non_exhaustive()
    }
}

impl RefreshRequests {
    /// Adds an answer. Returns the number of a request that must be sent now, if any.
    fn add(&self, answer: DeferredAnswer) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.requested_at.is_some() {
            state.next.push(answer);
            return None;
        }
        state.current.push(answer);
        Some(state.begin_request())
    }

    /// Ends an answered request.
    fn take(&self, number: u64) -> AnsweredRefresh {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A repeated request may be answered twice.
        if state.requested_at.is_none() || number != state.last {
            return AnsweredRefresh::default();
        }
        let next = std::mem::take(&mut state.next);
        let answers = std::mem::replace(&mut state.current, next);
        let requested_at = state.requested_at.take();
        let next = (!state.current.is_empty()).then(|| state.begin_request());
        AnsweredRefresh { requested_at, answers, next }
    }

    /// The number of the unanswered request, if any.
    pub(super) fn unanswered(&self) -> Option<u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.requested_at.map(|_| state.last)
    }
}

impl RefreshState {
    fn begin_request(&mut self) -> u64 {
        self.last += 1;
        self.requested_at = Some(boot_time());
        self.last
    }
}

/// An open(2) of a file.
#[derive(Debug)]
pub(super) struct FileOpening {
    pub(super) inode: InodeNumber,
    thread: u32,
    /// Whether the kernel must have the size of the file before the answer.
    needs_size: bool,
    watch: Option<PathWatch>,
}

impl VolumeClient {
    /// Whether the view may lack records that another client has logged: this client is not the writer, or may have been
    /// fenced since its lease was renewed.
    pub(super) fn may_be_stale(&self) -> bool {
        let now = boot_time();
        let mut state = self.lock();
        let (must_begin, has_lease) = (state.permission.note_use(now), state.permission.has_lease(now));
        drop(state);
        if must_begin {
            self.lease_used.notify_one();
        }
        !has_lease
    }

    /// Waits until the lease is in use, and requests its renewal.
    pub fn renew_lease(&self) {
        let is_unused = |state: &mut ClientState| !state.permission.needs_renewal(boot_time());
        drop(self.lease_used.wait_while(self.lock(), is_unused).unwrap_or_else(PoisonError::into_inner));
        if self.refresh.unanswered().is_none() {
            self.answer_refreshed(Box::new(|| {}));
        }
    }

    /// Calls `answer` when the view has all records that other clients have logged until now. Does not block.
    pub(super) fn answer_refreshed(&self, answer: DeferredAnswer) {
        if let Some(request) = self.refresh.add(answer) {
            self.link.send(OffloadRequest::Refresh(request));
        }
    }

    /// Calls `answer` when all invalidations of inodes that are queued now are done.
    pub(super) fn answer_invalidated(&self, answer: DeferredAnswer) {
        match self.kernel_caches.get() {
            Some(caches) => caches.answer_after_inodes(answer),
            None => answer(),
        }
    }

    /// Invalidates a file of which the kernel has wrong data and a wrong size.
    pub(super) fn invalidate_file(&self, inode: InodeNumber) {
        if let Some(caches) = self.kernel_caches.get() {
            let [inodes, sizes] = [BTreeSet::from([inode]), BTreeSet::from([inode])];
            caches.invalidate(CachedObjects { inodes, sizes, ..CachedObjects::default() });
        }
    }

    /// Invalidates attributes of a file of which the kernel may have an old mode.
    pub(super) fn invalidate_attributes(&self, inode: InodeNumber) {
        if let Some(caches) = self.kernel_caches.get() {
            caches.invalidate_attributes(inode);
        }
    }

    /// Invalidates a part of a file of which the kernel has wrong data.
    pub(super) fn invalidate_data(&self, inode: InodeNumber, offset: u64, bytes: u32) {
        if let Some(caches) = self.kernel_caches.get() {
            caches.invalidate_data(inode, offset, bytes);
        }
    }

    /// Invalidates a written part of a file if the kernel may have read it again, without the written data, after the
    /// write(2) filled its pages. The request of the write arrived at `arrived`, and is not answered yet.
    ///
    /// The answer must not wait: the kernel may hold locks of the pages until then, and the invalidation takes these locks.
    /// An open(2) that follows the answer waits for the invalidation.
    pub(super) fn invalidate_reread_data(&self, inode: InodeNumber, offset: u64, bytes: u32, arrived: Instant) {
        if let Some(caches) = self.kernel_caches.get()
            && caches.dropped_pages.may_have_dropped_since(inode, arrived)
        {
            caches.invalidate_data(inode, offset, bytes);
        }
    }

    /// Handles the answer to `OffloadRequest::Refresh`: the view has all records that other clients had logged before this
    /// request. This client was not fenced then.
    pub fn acknowledge_refresh(&self, request: u64) {
        let AnsweredRefresh { requested_at, answers, next } = self.refresh.take(request);
        if let Some(requested_at) = requested_at {
            self.lock().permission.confirm(requested_at);
        }
        if let Some(next) = next {
            self.link.send(OffloadRequest::Refresh(next));
        }
        answers.into_iter().for_each(|answer| answer());
    }

    /// Applies changes of another client that were published on this node.
    pub fn apply_foreign(&self, client: u16, changes: &ChangeSet) {
        let mut state = self.lock();
        state.set_applied(client, changes.end);
        let cached = state.namespace.apply_published(changes);
        if let Some(caches) = self.kernel_caches.get() {
            caches.invalidate(cached);
        }
    }

    /// The point up to which the view has the log of each client, by client number. Later clients may be missing.
    pub fn applied_points(&self) -> Vec<LogPoint> {
        self.lock().applied.clone()
    }

    /// Whether the view has the log of each other client exactly up to its mark in the shared tree.
    pub fn has_applied(&self, marks: &[PublishedMark]) -> bool {
        has_applied_others(self.number(), &self.lock().applied, marks)
    }

    /// Reads the namespace from the shared tree again. Nothing may be published during the call.
    ///
    /// # Errors
    /// As `load_namespace`; `InvalidInput` if this client has unpublished records, which the tree lacks.
    pub fn reload(&self, marks: &[PublishedMark]) -> io::Result<()> {
        if self.has_unpublished() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let inode_max = marks[usize::from(self.number())].inode_max;
        let loaded = load_namespace(&self.shared, self.number(), inode_max)?;
        let mut state = self.lock();
        let cached = state.namespace.replace_with(loaded);
        for (client, mark) in marks.iter().enumerate() {
            state.set_applied(client as u16, mark.point);
        }
        if let Some(caches) = self.kernel_caches.get() {
            caches.invalidate(cached);
        }
        Ok(())
    }

    /// Opens a file for a thread. The kernel may have looked up the file before the view was refreshed.
    ///
    /// # Errors
    /// ESTALE if another client has removed or renamed the file, or changed its size: the kernel then walks the path again,
    /// and looks up each name.
    pub(super) fn open_file(&self, opening: &FileOpening) -> Result<(), Errno> {
        let FileOpening { inode, thread, needs_size, ref watch } = *opening;
        let held = self.open_retries.end(thread, inode);
        let found = held.is_some().then_some(inode);
        let checked = watch.as_ref().map_or(Ok(()), |watch| watch.check_found(thread, found));
        let Some(caches) = self.kernel_caches.get() else { return self.open_base_file(inode, held) };
        if needs_size && checked.is_ok() && caches.stale_sizes.must_look_up(thread, inode) {
            self.open_retries.begin(thread);
            return Err(Errno::STALE);
        }
        checked.and_then(|()| self.open_base_file(inode, held)).inspect_err(|_| {
            self.open_retries.begin(thread);
            caches.stale_sizes.note_stale_path(thread, inode);
        })?;
        caches.invalidate_attributes(inode);
        Ok(())
    }

    /// Records that an open(2) has arrived.
    pub(super) fn begin_opening(&self, inode: InodeNumber, thread: u32, flags: i32) -> FileOpening {
        let watch = self.watch_path(inode);
        let is_repeated = self.kernel_caches.get().is_some_and(|caches| caches.stale_sizes.begin_open(thread, inode));
        FileOpening { inode, thread, needs_size: !is_repeated && may_read(flags), watch }
    }

    /// Watches the path of an inode from the arrival of a request on. None before `watch_kernel_caches`, when the kernel
    /// knows only the root.
    pub(super) fn watch_path(&self, inode: InodeNumber) -> Option<PathWatch> {
        let caches = self.kernel_caches.get()?;
        let state = self.lock();
        Some(caches.stale_entries.watch_path(state.namespace.path_of(inode)))
    }

    /// `held` is the data, if it was opened at the lookup. It stays readable if another client removes the file.
    fn open_base_file(&self, inode: InodeNumber, held: Option<Arc<File>>) -> Result<(), Errno> {
        let is_linked = self.lock().namespace.inode(inode).is_ok_and(|inode| inode.entry_count > 0);
        if let Some(data) = held {
            self.base_files.open_with(inode, data);
        } else if is_linked || self.base_files.is_open(inode) {
            self.base_files.open(inode);
        } else {
            return Err(Errno::STALE);
        }
        match self.published_file(inode) {
            // Another client has removed the file, and the view does not have this change yet.
            Err(Errno::STALE) => {
                self.base_files.release(inode);
                return Err(Errno::STALE);
            }
            Err(error) => tracing::warn!(%error, ?inode, "a file of the shared tree cannot be opened"),
            Ok(_) => {}
        }
        Ok(())
    }
}

impl ClientState {
    /// Whether this client has created an inode and not published it, so that the shared tree lacks it.
    pub(super) fn is_new(&self, inode: InodeNumber) -> bool {
        self.namespace.is_created_since(inode, self.log.ring().tail().sequence)
    }

    fn set_applied(&mut self, client: u16, point: LogPoint) {
        let index = usize::from(client);
        if self.applied.len() <= index {
            self.applied.resize(index + 1, LogPoint::START);
        }
        self.applied[index] = point;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn answers_added_during_a_request_share_the_next_request() {
        let requests = RefreshRequests::default();
        let given = Arc::new(AtomicU32::new(0));
        let answer = || -> DeferredAnswer {
            let given = Arc::clone(&given);
            Box::new(move || _ = given.fetch_add(1, Ordering::Relaxed))
        };
        assert_eq!(requests.add(answer()), Some(1));
        assert_eq!((requests.add(answer()), requests.add(answer())), (None, None));
        let first = requests.take(1);
        assert_eq!((first.answers.len(), first.next), (1, Some(2)));
        let repeated = requests.take(1);
        assert!(repeated.answers.is_empty() && repeated.requested_at.is_none(), "a repeated answer gives nothing");
        assert_eq!(requests.unanswered(), Some(2));
        let AnsweredRefresh { requested_at, answers, next } = requests.take(2);
        assert!(requested_at >= first.requested_at);
        answers.into_iter().for_each(|answer| answer());
        assert_eq!((given.load(Ordering::Relaxed), next), (2, None));
        assert_eq!(requests.unanswered(), None);
    }
}
