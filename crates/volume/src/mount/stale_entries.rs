//! Detects calls whose path another client changed after the kernel walked it: an entry leads to another inode, or an inode
//! has another owner or mode. Such calls are answered ESTALE: the kernel looks up all names again, and repeats the call
//! (`retry_estale` in fs/namei.c).
//!
//! An invalidation is too late for rename(2) and rmdir(2): it waits for the lock of the directory, which the kernel holds
//! until the call is answered. The kernel would move or remove its old entry, and the path would then lead to a wrong file.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::calling_thread::CallingThread;
use crate::record::{EntryKey, InodeNumber};

/// Limit of [`SuspectInodes::since`]. At this size, the set is emptied.
const SINCE_MAX: usize = 1 << 16;
/// Limit of [`StaleTable::repeated`]. At this size, the table is emptied.
const THREADS_MAX: usize = 1024;
/// Limit of [`RepeatedCall::accepted`]: more than the inodes of one path.
const ACCEPTED_MAX: usize = 4096;
/// A thread that received ESTALE repeats its call within this time, even on a machine that stalls.
pub(super) const REPEAT_TIME_MAX: Duration = Duration::from_secs(30);

/// Changes that the kernel may not have seen yet.
#[derive(Debug, Default)]
pub(super) struct StaleEntries(Mutex<StaleTable>);

#[derive(Debug, Default)]
struct StaleTable {
    entries: HashMap<EntryKey, StaleEntry>,
    /// Inodes to which an invalidated entry led, until the kernel has looked them up again.
    previous: SuspectInodes,
    /// Inodes whose owner or mode changed, until the kernel has read their attributes.
    permissions: SuspectInodes,
    /// Paths of unanswered calls, by call number.
    calls: HashMap<u64, WatchedPath>,
    next_call: u64,
    /// Calls that were answered ESTALE, by thread id.
    repeated: HashMap<u32, RepeatedCall>,
}

/// Inodes of which the kernel may have an old name or old attributes.
#[derive(Debug, Default)]
struct SuspectInodes {
    /// Number of invalidations of each inode that the kernel has not executed.
    pending: HashMap<InodeNumber, usize>,
    /// Inodes that the kernel has not requested since their last invalidation. A call with such an inode on its path walked
    /// the path before the invalidation, however late the call arrives.
    since: HashSet<InodeNumber>,
}

impl SuspectInodes {
    fn add(&mut self, inode: InodeNumber) {
        *self.pending.entry(inode).or_default() += 1;
    }

    /// Records that the kernel has executed an invalidation.
    fn remove(&mut self, inode: InodeNumber) {
        if let Entry::Occupied(mut count) = self.pending.entry(inode) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if self.since.len() >= SINCE_MAX {
            self.since.clear();
        }
        self.since.insert(inode);
    }

    /// Records that the kernel received the present state of an inode.
    fn confirm(&mut self, inode: InodeNumber) {
        self.since.remove(&inode);
    }

    fn contains(&self, inode: InodeNumber) -> bool {
        self.pending.contains_key(&inode) || self.since.contains(&inode)
    }
}

/// The path of an unanswered call.
#[derive(Debug)]
struct WatchedPath {
    /// The inodes of the path, the last one first.
    inodes: Vec<InodeNumber>,
    /// Inodes of the path whose entry changed after the call arrived.
    replaced: Vec<InodeNumber>,
    /// Inodes of the path whose owner or mode changed after the call arrived.
    permissions: Vec<InodeNumber>,
}

#[derive(Debug)]
struct RepeatedCall {
    /// The suspects of the first call, and the inodes that the thread has looked up since.
    accepted: Vec<InodeNumber>,
    at: Instant,
}

impl StaleTable {
    /// Records that an inode has changed. `list` selects the list of a watched path for this kind of change.
    fn note_change(&mut self, inode: InodeNumber, list: fn(&mut WatchedPath) -> &mut Vec<InodeNumber>) {
        for path in self.calls.values_mut().filter(|path| path.inodes.contains(&inode)) {
            list(path).push(inode);
        }
        for repeated in self.repeated.values_mut() {
            repeated.accepted.retain(|accepted| *accepted != inode);
        }
    }

    /// Returns the inodes of a path of which the kernel may have an old name or old permissions. The thread has just looked
    /// up `found`, so the name of `found` is not suspect.
    fn suspects_of(&self, call: u64, found: Option<InodeNumber>) -> Vec<InodeNumber> {
        let path = &self.calls[&call];
        let is_suspect = |inode: &InodeNumber| {
            let is_replaced = path.replaced.contains(inode) || self.previous.contains(*inode);
            let has_other_permissions = path.permissions.contains(inode) || self.permissions.contains(*inode);
            has_other_permissions || (is_replaced && Some(*inode) != found)
        };
        path.inodes.iter().copied().filter(is_suspect).collect()
    }
}

/// Watches the path of a call until this value is dropped.
#[derive(Debug)]
pub(super) struct PathWatch {
    stale_entries: Arc<StaleEntries>,
    call: u64,
}

impl PathWatch {
    /// Checks the path of a call of a thread.
    ///
    /// # Errors
    /// ESTALE: the kernel must walk the path again. A repeated call is accepted if each suspect was already suspect in the
    /// first call, or was looked up by the thread since. The first condition is for the directory where a relative path
    /// begins: the kernel does not look it up again, so it stays suspect.
    pub(super) fn check(&self, thread: u32) -> Result<(), Errno> {
        self.check_found(thread, None)
    }

    /// Whether the kernel may have an old name or old permissions of a part of the path.
    pub(super) fn is_suspect(&self) -> bool {
        !self.stale_entries.lock().suspects_of(self.call, None).is_empty()
    }

    /// As `check`, for open(2). `found` is the file that the thread has looked up after ESTALE.
    pub(super) fn check_found(&self, thread: u32, found: Option<InodeNumber>) -> Result<(), Errno> {
        let mut table = self.stale_entries.lock();
        let suspects = table.suspects_of(self.call, found);
        let is_repeated = |repeated: &RepeatedCall| {
            repeated.at.elapsed() < REPEAT_TIME_MAX && suspects.iter().all(|inode| repeated.accepted.contains(inode))
        };
        if suspects.is_empty() || table.repeated.get(&thread).is_some_and(is_repeated) {
            return Ok(());
        }
        if table.repeated.len() >= THREADS_MAX {
            table.repeated.clear();
        }
        table.repeated.insert(thread, RepeatedCall { accepted: suspects, at: Instant::now() });
        Err(Errno::STALE)
    }
}

impl Drop for PathWatch {
    fn drop(&mut self) {
        self.stale_entries.lock().calls.remove(&self.call);
    }
}

/// Checks the path of a call of a thread, as [`PathWatch::check`] does.
pub(super) fn check_path(watch: Option<&PathWatch>, thread: u32) -> Result<(), Errno> {
    watch.map_or(Ok(()), |watch| watch.check(thread))
}

/// As `check_path`, for a change of attributes. The request does not show whether the call has a path. The kernel repeats no
/// call without one, such as fchmod(2).
pub(super) fn check_changed_path(watch: Option<&PathWatch>, caller: CallingThread) -> Result<(), Errno> {
    match watch {
        Some(watch) if watch.is_suspect() && caller.changes_file_at_path() => watch.check(caller.thread),
        _ => Ok(()),
    }
}

/// As `check_path`, for a call with several paths.
pub(super) fn check_paths(watches: &[Option<PathWatch>], thread: u32) -> Result<(), Errno> {
    watches.iter().try_for_each(|watch| check_path(watch.as_ref(), thread))
}

/// An entry that is to be invalidated.
#[derive(Debug, Default)]
struct StaleEntry {
    /// Invalidations that the kernel has not executed.
    invalidations: u32,
    /// Inodes to which the entry has led.
    previous: Vec<InodeNumber>,
    /// The last answer about this entry since it was added.
    found: Option<FoundEntry>,
}

/// The state of an entry in an answer to the kernel.
#[derive(Clone, Copy, Debug)]
struct FoundEntry {
    /// None when there was no entry.
    inode: Option<InodeNumber>,
    /// The thread that looked up the entry; none if a call such as mkdir(2) created it, because all threads wait for that
    /// answer.
    thread: Option<u32>,
}

impl StaleEntries {
    /// Adds an entry that led to `previous` and will be invalidated. The caller has locked the view.
    pub(super) fn add(&self, key: EntryKey, previous: InodeNumber) {
        let mut table = self.lock();
        table.previous.add(previous);
        table.note_change(previous, |path| &mut path.replaced);
        let entry = table.entries.entry(key).or_default();
        entry.invalidations += 1;
        entry.previous.push(previous);
        entry.found = None;
    }

    /// Records that the kernel has executed an invalidation.
    pub(super) fn remove(&self, key: &EntryKey) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(key) else { return };
        entry.invalidations -= 1;
        if entry.invalidations > 0 {
            return;
        }
        for previous in table.entries.remove(key).map(|entry| entry.previous).unwrap_or_default() {
            table.previous.remove(previous);
        }
    }

    /// Adds an inode whose owner or mode changed and which will be invalidated. The caller has locked the view.
    pub(super) fn add_permissions(&self, inode: InodeNumber) {
        let mut table = self.lock();
        table.permissions.add(inode);
        table.note_change(inode, |path| &mut path.permissions);
    }

    /// Records that the kernel has executed an invalidation of attributes.
    pub(super) fn remove_permissions(&self, inode: InodeNumber) {
        self.lock().permissions.remove(inode);
    }

    /// Watches the path of a call. `inodes` begins with the last inode of the path.
    pub(super) fn watch_path(self: &Arc<Self>, inodes: Vec<InodeNumber>) -> PathWatch {
        let mut table = self.lock();
        let call = table.next_call;
        table.next_call += 1;
        table.calls.insert(call, WatchedPath { inodes, replaced: Vec::new(), permissions: Vec::new() });
        PathWatch { stale_entries: Arc::clone(self), call }
    }

    /// Records an answer with the attributes of an inode. The caller has locked the view.
    pub(super) fn note_attributes(&self, inode: InodeNumber) {
        self.lock().permissions.confirm(inode);
    }

    /// Records the answer to a lookup by `thread`, or, without a thread, to the creation of an entry.
    pub(super) fn note_answer(&self, thread: Option<u32>, key: &EntryKey, inode: Option<InodeNumber>) {
        let mut table = self.lock();
        if let Some(inode) = inode {
            table.previous.confirm(inode);
            table.permissions.confirm(inode);
            if let Some(repeated) = thread.and_then(|thread| table.repeated.get_mut(&thread))
                && repeated.accepted.len() < ACCEPTED_MAX
            {
                repeated.accepted.push(inode);
            }
        }
        if let Some(entry) = table.entries.get_mut(key) {
            entry.found = Some(FoundEntry { inode, thread });
        }
    }

    /// Checks that an entry leads to `target` for the kernel, as it does in the view. The caller has locked the view.
    ///
    /// # Errors
    /// ESTALE: the kernel must look up the entry again.
    pub(super) fn check(&self, thread: u32, key: &EntryKey, target: Option<InodeNumber>) -> Result<(), Errno> {
        let is_known = |found: FoundEntry| found.inode == target && found.thread.is_none_or(|by| by == thread);
        match self.lock().entries.get(key) {
            Some(entry) if !entry.found.is_some_and(is_known) => Err(Errno::STALE),
            _ => Ok(()),
        }
    }

    /// Returns the inodes to which an entry may still lead in the kernel's cache.
    pub(super) fn previous_inodes(&self, key: &EntryKey) -> Vec<InodeNumber> {
        self.lock().entries.get(key).map(|entry| entry.previous.clone()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, StaleTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::record::EntryName;

    const OLD: InodeNumber = InodeNumber(5);
    const NEW: InodeNumber = InodeNumber(6);

    fn key(name: &str) -> EntryKey {
        EntryKey { parent: InodeNumber::ROOT, name: EntryName::new(name.as_bytes()).unwrap() }
    }

    /// Whether a thread without earlier calls is answered ESTALE.
    fn is_stale_for_new_thread(path: &PathWatch) -> bool {
        static THREADS: AtomicU32 = AtomicU32::new(100);
        path.check(THREADS.fetch_add(1, Ordering::Relaxed)).is_err()
    }

    #[test]
    fn a_thread_that_repeats_the_lookup_may_continue() {
        let stale = StaleEntries::default();
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Ok(()));
        stale.add(key("a"), OLD);
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Err(Errno::STALE));
        assert_eq!(stale.check(1, &key("b"), Some(NEW)), Ok(()), "another entry");
        stale.note_answer(Some(1), &key("a"), Some(NEW));
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Ok(()));
        assert_eq!(stale.check(2, &key("a"), Some(NEW)), Err(Errno::STALE), "another thread");
        assert_eq!(stale.check(1, &key("a"), Some(OLD)), Err(Errno::STALE), "the entry leads to another inode again");
        stale.note_answer(Some(1), &key("a"), None);
        assert_eq!(stale.check(1, &key("a"), None), Ok(()), "there is no entry");
        stale.note_answer(None, &key("a"), Some(NEW));
        assert_eq!(stale.check(2, &key("a"), Some(NEW)), Ok(()), "the entry was created");
    }

    #[test]
    fn an_entry_is_stale_until_the_last_invalidation() {
        let stale = StaleEntries::default();
        stale.add(key("a"), OLD);
        stale.note_answer(Some(1), &key("a"), Some(NEW));
        stale.add(key("a"), NEW);
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Err(Errno::STALE), "the entry was changed after the answer");
        assert_eq!(stale.previous_inodes(&key("a")), [OLD, NEW]);
        stale.remove(&key("a"));
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Err(Errno::STALE));
        stale.remove(&key("a"));
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Ok(()));
        assert!(stale.previous_inodes(&key("a")).is_empty());
    }

    #[test]
    fn an_inode_found_by_an_invalidated_name_is_stale() {
        let stale = Arc::<StaleEntries>::default();
        let is_stale = |inode| is_stale_for_new_thread(&stale.watch_path(vec![inode]));
        stale.add(key("a"), OLD);
        stale.add(key("b"), OLD);
        stale.add(key("b"), NEW);
        stale.remove(&key("a"));
        assert!(is_stale(OLD) && is_stale(NEW));
        let (before, other) = (stale.watch_path(vec![OLD]), stale.watch_path(vec![NEW]));
        stale.remove(&key("b"));
        stale.remove(&key("b"));
        assert!(
            is_stale(OLD) && is_stale(NEW) && is_stale_for_new_thread(&before),
            "the paths were walked before the invalidations"
        );
        for inode in [OLD, NEW] {
            stale.note_answer(Some(1), &key("c"), Some(inode));
        }
        assert!(!is_stale(OLD) && !is_stale(NEW) && !is_stale_for_new_thread(&before), "both were looked up since");
        stale.add(key("a"), OLD);
        stale.remove(&key("a"));
        stale.note_answer(Some(1), &key("c"), Some(OLD));
        assert!(is_stale_for_new_thread(&before), "this path was walked before the invalidation");
        assert!(!is_stale(OLD) && !is_stale_for_new_thread(&other));
    }

    #[test]
    fn a_path_through_a_directory_that_was_renamed_is_walked_again_once() {
        let (stale, file) = (Arc::<StaleEntries>::default(), InodeNumber(7));
        let early = stale.watch_path(vec![file, OLD]);
        stale.add(key("a"), OLD);
        let call = || stale.watch_path(vec![file, OLD]);
        assert_eq!((early.check(1), early.check(1)), (Err(Errno::STALE), Ok(())), "a relative path is repeated");
        assert_eq!((call().check(1), call().check(2)), (Ok(()), Err(Errno::STALE)), "another thread");
        stale.remove(&key("a"));
        assert_eq!((call().check(1), call().check(3)), (Ok(()), Err(Errno::STALE)), "the path was walked before");
        stale.note_answer(Some(1), &key("b"), Some(OLD));
        assert_eq!(call().check(3), Ok(()), "the directory was found by its new name");
        stale.add(key("b"), OLD);
        assert_eq!(call().check(1), Err(Errno::STALE), "the directory was renamed again");
    }

    #[test]
    fn changed_permissions_of_a_path_are_read_before_the_call() {
        let (stale, file) = (Arc::<StaleEntries>::default(), InodeNumber(7));
        stale.add_permissions(OLD);
        let is_stale = || is_stale_for_new_thread(&stale.watch_path(vec![file, OLD]));
        assert!(is_stale());
        stale.remove_permissions(OLD);
        assert!(is_stale() && !is_stale_for_new_thread(&stale.watch_path(vec![file])));
        stale.note_attributes(OLD);
        assert!(!is_stale());
    }
}
