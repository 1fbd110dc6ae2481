//! Applies changes of other clients to the view. open(2) is answered only when the view has all changes that were logged
//! before the call. While the catalog cannot be read, it fails after `MountOptions::catalog_wait`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Called with EIO if the catalog could not be read in time.
pub(super) type RefreshAnswer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A call that waits for a refresh.
struct PendingRefresh {
    /// The time of the call.
    since: Duration,
    /// Whether the call only reads, so that `MountOptions::stale_reads` applies to it.
    may_be_stale: bool,
    answer: RefreshAnswer,
}

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
    /// Whether the last request is unanswered because the catalog cannot be read.
    is_delayed: bool,
    /// Answered with the last request.
    current: Vec<PendingRefresh>,
    /// Answered with the next request.
    next: Vec<PendingRefresh>,
}

/// An answered request.
#[derive(Default)]
struct AnsweredRefresh {
    /// Time at which the request was made.
    requested_at: Option<Duration>,
    calls: Vec<PendingRefresh>,
    /// Whether the catalog could not be read before.
    was_delayed: bool,
    /// The number of a request that must be sent now, if any.
    next: Option<u64>,
}

/// The result of `RefreshRequests::delay`.
#[derive(Default)]
struct DelayedCalls {
    /// Whether the catalog could be read before.
    is_new: bool,
    calls: Vec<PendingRefresh>,
}

impl fmt::Debug for RefreshRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefreshRequests").field("unanswered", &self.unanswered()).finish_non_exhaustive()
    }
}

impl RefreshRequests {
    /// Adds a call. Returns the number of a request that must be sent now, if any.
    fn add(&self, call: PendingRefresh) -> Option<u64> {
        let mut state = self.lock();
        if state.requested_at.is_some() {
            state.next.push(call);
            return None;
        }
        state.current.push(call);
        Some(state.begin_request())
    }

    /// Records that a request is unanswered because the catalog cannot be read. Returns the calls that wait no longer: those
    /// that may be stale, and those that have waited for `limit`. None if this is no news.
    fn delay(&self, number: u64, now: Duration, limit: Duration) -> DelayedCalls {
        let mut state = self.lock();
        if state.requested_at.is_none() || number != state.last {
            return DelayedCalls::default();
        }
        let is_new = !std::mem::replace(&mut state.is_delayed, true);
        let RefreshState { current, next, .. } = &mut *state;
        let ends = |call: &mut PendingRefresh| call.may_be_stale || call.since + limit <= now;
        let calls = current.extract_if(.., ends).chain(next.extract_if(.., ends)).collect();
        DelayedCalls { is_new, calls }
    }

    /// Whether the catalog cannot be read.
    fn is_delayed(&self) -> bool {
        self.lock().is_delayed
    }

    /// Ends an answered request.
    fn take(&self, number: u64) -> AnsweredRefresh {
        let mut state = self.lock();
        // A repeated request may be answered twice.
        if state.requested_at.is_none() || number != state.last {
            return AnsweredRefresh::default();
        }
        let next = std::mem::take(&mut state.next);
        let calls = std::mem::replace(&mut state.current, next);
        let (requested_at, was_delayed) = (state.requested_at.take(), std::mem::take(&mut state.is_delayed));
        let next = (!state.current.is_empty()).then(|| state.begin_request());
        AnsweredRefresh { requested_at, calls, was_delayed, next }
    }

    /// The number of the unanswered request, if any.
    pub(super) fn unanswered(&self) -> Option<u64> {
        let state = self.lock();
        state.requested_at.map(|_| state.last)
    }

    fn lock(&self) -> MutexGuard<'_, RefreshState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.answer_refreshed(false, Box::new(|_| {}));
        }
    }

    /// Calls `answer` when the view has all records that other clients have logged until now, or with EIO if the catalog cannot
    /// be read for too long. Does not block. `only_reads` tells whether the call may see an older state if the mount permits it.
    pub(super) fn answer_refreshed(&self, only_reads: bool, answer: RefreshAnswer) {
        let may_be_stale = only_reads && self.options.stale_reads;
        if may_be_stale && self.refresh.is_delayed() {
            return answer(Ok(()));
        }
        if let Some(request) = self.refresh.add(PendingRefresh { since: boot_time(), may_be_stale, answer }) {
            self.link.send(OffloadRequest::Refresh(request));
        }
    }

    /// Handles an attempt to answer `OffloadRequest::Refresh` that has failed because the catalog cannot be read.
    pub fn delay_refresh(&self, request: u64) {
        let limit = self.options.catalog_wait;
        let DelayedCalls { is_new, calls } = self.refresh.delay(request, boot_time(), limit);
        if is_new {
            let limit_s = limit.as_secs();
            tracing::warn!(
                limit_s,
                "the catalog cannot be read: open(2) fails with EIO if this lasts for the limit; see `farfork volume status`"
            );
        }
        for PendingRefresh { may_be_stale, answer, .. } in calls {
            answer(if may_be_stale { Ok(()) } else { Err(Errno::IO) });
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
        let AnsweredRefresh { requested_at, calls, was_delayed, next } = self.refresh.take(request);
        if was_delayed {
            tracing::info!("the catalog can be read again");
        }
        if let Some(requested_at) = requested_at {
            self.lock().permission.confirm(requested_at);
        }
        if let Some(next) = next {
            self.link.send(OffloadRequest::Refresh(next));
        }
        calls.into_iter().for_each(|call| (call.answer)(Ok(())));
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
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A call that sends its number and its result.
    fn call(
        number: u32,
        since: Duration,
        may_be_stale: bool,
        sender: &Sender<(u32, Result<(), Errno>)>,
    ) -> PendingRefresh {
        let sender = sender.clone();
        PendingRefresh { since, may_be_stale, answer: Box::new(move |result| sender.send((number, result)).unwrap()) }
    }

    #[test]
    fn calls_during_a_request_share_the_next_request() {
        let (requests, (sender, _answers)) = (RefreshRequests::default(), channel());
        let call = || call(0, Duration::ZERO, false, &sender);
        assert_eq!(requests.add(call()), Some(1));
        assert_eq!((requests.add(call()), requests.add(call())), (None, None));
        let first = requests.take(1);
        assert_eq!((first.calls.len(), first.next), (1, Some(2)));
        let repeated = requests.take(1);
        assert!(repeated.calls.is_empty() && repeated.requested_at.is_none(), "a repeated answer gives nothing");
        assert_eq!(requests.unanswered(), Some(2));
        let second = requests.take(2);
        assert!(second.requested_at >= first.requested_at);
        assert_eq!((second.calls.len(), second.next), (2, None));
        assert_eq!(requests.unanswered(), None);
    }

    #[test]
    fn without_the_catalog_a_call_ends_at_its_limit_unless_it_may_be_stale() {
        let (requests, (sender, answers)) = (RefreshRequests::default(), channel());
        let (now, later) = (Duration::from_secs(100), Duration::from_secs(101));
        requests.add(call(1, now, false, &sender));
        requests.add(call(2, later, false, &sender));
        requests.add(call(3, later, true, &sender));
        let end_calls = |at: Duration| {
            let DelayedCalls { is_new, calls } = requests.delay(1, at, LIMIT);
            calls.into_iter().for_each(|call| (call.answer)(Ok(())));
            (is_new, answers.try_iter().map(|(number, _)| number).collect::<Vec<_>>())
        };
        assert_eq!((requests.is_delayed(), end_calls(later)), (false, (true, vec![3])));
        assert_eq!((requests.is_delayed(), end_calls(now + LIMIT)), (true, (false, vec![1])));
        assert!(requests.delay(2, later + LIMIT, LIMIT).calls.is_empty(), "not the last request");
        let answered = requests.take(1);
        assert_eq!((answered.was_delayed, answered.next, requests.is_delayed()), (true, Some(2), false));
    }
}
