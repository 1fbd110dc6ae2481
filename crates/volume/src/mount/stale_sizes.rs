//! Detects opens of files whose size another client has changed. The reply to open(2) has no attributes, and sendfile(2),
//! splice(2), copy_file_range(2) and mapped pages end at the size that the kernel has cached. So such an open(2) is answered
//! ESTALE once: the kernel looks up the file again, and the reply to this lookup has the size.
//!
//! The kernel discards this reply if the file is invalidated meanwhile, which happens all the time when another client
//! appends to the file. So invalidations of the file wait until the thread has repeated the call.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stale_entries::REPEAT_TIME_MAX;
use crate::record::InodeNumber;

/// Limit of [`SizeTable::repeated`]. At this size, the table is emptied.
const THREADS_MAX: usize = 1024;
/// Longest time that invalidations wait for a thread. It may not repeat the call, for example because it was killed.
const HOLD_TIME_MAX: Duration = Duration::from_millis(200);

/// Files of which the kernel may have an old size.
#[derive(Debug, Default)]
pub(super) struct StaleSizes {
    table: Mutex<SizeTable>,
    /// Notified when a thread has repeated its call.
    released: Condvar,
}

#[derive(Debug, Default)]
struct SizeTable {
    /// The last event of each file after which a reply with its size may have been discarded.
    suspects: HashMap<InodeNumber, u64>,
    last_event: u64,
    /// Files that are being invalidated.
    executing: Vec<InodeNumber>,
    /// Opens that were answered ESTALE, by thread id.
    repeated: HashMap<u32, RepeatedOpen>,
}

/// An open(2) that was answered ESTALE.
#[derive(Debug)]
struct RepeatedOpen {
    inode: InodeNumber,
    /// The file that the thread has looked up since.
    found: Option<InodeNumber>,
    /// The last event of `inode`, if the kernel cannot discard the next reply with its size without another event.
    event: Option<u64>,
    /// Whether invalidations of `inode` wait for the thread.
    is_held: bool,
    at: Instant,
}

impl SizeTable {
    fn add_event(&mut self, inode: InodeNumber) {
        self.last_event += 1;
        self.suspects.insert(inode, self.last_event);
    }

    fn insert_repeated(&mut self, thread: u32, open: RepeatedOpen) {
        if self.repeated.len() >= THREADS_MAX {
            self.repeated.clear();
        }
        self.repeated.insert(thread, open);
    }

    /// Whether the kernel has received the size with the lookup of a repeated open(2), and cannot have discarded it.
    fn is_confirmed(&self, open: &RepeatedOpen) -> bool {
        let is_unchanged = open.event.is_some() && open.event == self.suspects.get(&open.inode).copied();
        is_unchanged && open.found == Some(open.inode) && !self.executing.contains(&open.inode)
    }

    fn held_until(&self, inode: InodeNumber) -> Option<Instant> {
        let held = self.repeated.values().filter(|open| open.is_held && open.inode == inode);
        held.map(|open| open.at + HOLD_TIME_MAX).max()
    }
}

impl StaleSizes {
    /// Adds a file whose size has changed and which will be invalidated.
    pub(super) fn add(&self, inode: InodeNumber) {
        self.lock().add_event(inode);
    }

    /// Removes a file that the kernel has forgotten.
    pub(super) fn remove(&self, inode: InodeNumber) {
        self.lock().suspects.remove(&inode);
    }

    /// Records that a thread has looked up a file. The reply contains the size.
    pub(super) fn note_lookup(&self, thread: u32, inode: InodeNumber) {
        if let Some(open) = self.lock().repeated.get_mut(&thread) {
            open.found = Some(inode);
        }
    }

    /// Records that an open(2) has arrived. Returns whether it is repeated after ESTALE: the kernel has looked up the file,
    /// or does not do so because the program opens `/proc/PID/fd/N`.
    pub(super) fn begin_open(&self, thread: u32, inode: InodeNumber) -> bool {
        let mut table = self.lock();
        let Some(open) = table.repeated.remove(&thread) else { return false };
        self.released.notify_all();
        if table.is_confirmed(&open) {
            table.suspects.remove(&open.inode);
        }
        (open.inode == inode || open.found == Some(inode)) && open.at.elapsed() < REPEAT_TIME_MAX
    }

    /// Whether the kernel must look up a file before a thread opens it. The thread is then answered ESTALE.
    pub(super) fn must_look_up(&self, thread: u32, inode: InodeNumber) -> bool {
        let mut table = self.lock();
        // An id of 0 does not distinguish threads: a thread could be answered ESTALE twice, and its program would see it.
        let Some(event) = table.suspects.get(&inode).copied().filter(|_| thread != 0) else { return false };
        let event = Some(event).filter(|_| !table.executing.contains(&inode));
        table.insert_repeated(thread, RepeatedOpen { inode, found: None, event, is_held: true, at: Instant::now() });
        true
    }

    /// Records that an open(2) is answered ESTALE for another reason.
    pub(super) fn note_stale_path(&self, thread: u32, inode: InodeNumber) {
        let open = RepeatedOpen { inode, found: None, event: None, is_held: false, at: Instant::now() };
        self.lock().insert_repeated(thread, open);
    }

    /// Waits until no thread repeats an open(2) of a file.
    pub(super) fn wait_for_opens(&self, inode: InodeNumber) {
        let mut table = self.lock();
        while let Some(until) = table.held_until(inode)
            && let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            table = self.released.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Executes an invalidation of a file.
    pub(super) fn invalidate(&self, inode: InodeNumber, notify: impl FnOnce()) {
        self.lock().executing.push(inode);
        notify();
        let mut table = self.lock();
        if let Some(at) = table.executing.iter().position(|executing| *executing == inode) {
            table.executing.swap_remove(at);
        }
        if table.suspects.contains_key(&inode) {
            table.add_event(inode);
        }
    }

    fn lock(&self) -> MutexGuard<'_, SizeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(5);
    const OTHER: InodeNumber = InodeNumber(6);

    /// Opens a file as a thread: the first attempt, then a lookup and the second attempt. Returns whether the first one is
    /// answered ESTALE.
    fn open(sizes: &StaleSizes, thread: u32, inode: InodeNumber) -> bool {
        let is_stale = !sizes.begin_open(thread, inode) && sizes.must_look_up(thread, inode);
        if is_stale {
            sizes.note_lookup(thread, inode);
            assert!(sizes.begin_open(thread, inode), "a repeated open(2) succeeds");
        }
        is_stale
    }

    #[test]
    fn a_file_is_looked_up_once_after_a_change() {
        let sizes = StaleSizes::default();
        assert!(!open(&sizes, 1, FILE));
        sizes.add(FILE);
        sizes.invalidate(FILE, || {});
        assert!(!open(&sizes, 1, OTHER));
        assert!(open(&sizes, 1, FILE));
        assert!(!open(&sizes, 1, FILE) && !open(&sizes, 2, FILE), "the kernel has the size");
        sizes.add(FILE);
        assert!(open(&sizes, 2, FILE), "the size has changed again");
        sizes.add(FILE);
        sizes.remove(FILE);
        assert!(!open(&sizes, 1, FILE), "the kernel has forgotten the file");
    }

    #[test]
    fn a_size_that_the_kernel_may_have_discarded_is_looked_up_again() {
        let sizes = StaleSizes::default();
        sizes.add(FILE);
        assert!(sizes.must_look_up(1, FILE));
        sizes.note_lookup(1, FILE);
        sizes.invalidate(FILE, || {});
        assert!(sizes.begin_open(1, FILE), "the program does not see ESTALE");
        assert!(open(&sizes, 1, FILE), "invalidated during the lookup");
        sizes.add(FILE);
        sizes.invalidate(FILE, || assert!(open(&sizes, 1, FILE)));
        assert!(open(&sizes, 1, FILE), "opened during the invalidation");
        sizes.add(FILE);
        assert!(sizes.must_look_up(1, FILE) && sizes.begin_open(1, FILE), "opened without a lookup");
        assert!(open(&sizes, 1, FILE));
    }

    #[test]
    fn a_thread_that_opens_another_file_does_not_repeat_a_call() {
        let sizes = StaleSizes::default();
        sizes.add(FILE);
        sizes.add(OTHER);
        assert!(sizes.must_look_up(1, FILE));
        assert!(!sizes.begin_open(1, OTHER) && sizes.must_look_up(1, OTHER));
        sizes.note_stale_path(2, FILE);
        sizes.note_lookup(2, OTHER);
        assert!(sizes.begin_open(2, OTHER), "the name leads to another file");
        assert!(!sizes.must_look_up(0, FILE), "an unknown thread");
    }

    #[test]
    fn invalidations_wait_for_a_repeated_open() {
        let sizes = StaleSizes::default();
        sizes.add(FILE);
        assert!(sizes.must_look_up(1, FILE));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sizes.wait_for_opens(FILE));
            sizes.wait_for_opens(OTHER);
            sizes.begin_open(1, FILE);
            waiting.join().unwrap();
        });
        assert!(sizes.must_look_up(1, FILE));
        // The thread never repeats the call.
        sizes.wait_for_opens(FILE);
    }
}
