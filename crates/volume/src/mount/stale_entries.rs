//! Entries that other clients have changed, and that the kernel may still have as they were.
//!
//! rename(2) and rmdir(2) arrive here with names. The kernel then moves or removes the entry that it has of the name. If it is
//! an old one, a path leads to a wrong file afterwards, or a live directory counts as removed. An invalidation is too late: it
//! waits for the lock of the directory, which the kernel holds until the operation is answered. So the answer is ESTALE. The
//! kernel looks the names up again and repeats the operation (`retry_estale` in fs/namei.c).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::record::{EntryKey, InodeNumber};

/// Inodes in [`StaleTable::not_found_since`]. It is emptied when there are so many.
const NOT_FOUND_MAX: usize = 1 << 16;

/// The entries.
#[derive(Debug, Default)]
pub(super) struct StaleEntries(Mutex<StaleTable>);

#[derive(Debug, Default)]
struct StaleTable {
    entries: HashMap<EntryKey, StaleEntry>,
    /// How often each inode is in `previous` of an entry.
    previous_counts: HashMap<InodeNumber, usize>,
    /// Inodes that the kernel has not looked up since an entry of theirs was invalidated. A call of open(2) for one of them
    /// walked its path before the invalidation, however late it arrives.
    not_found_since: HashSet<InodeNumber>,
    /// Calls of open(2) that are not answered, by number.
    openings: HashMap<u64, WatchedOpening>,
    next_opening: u64,
}

/// The kernel has walked the path to an inode, and waits for the answer.
#[derive(Debug)]
struct WatchedOpening {
    inode: InodeNumber,
    /// An entry that led to the inode was changed since then, so the kernel may have found the inode by that.
    is_stale: bool,
}

/// A call of open(2) that is not answered.
#[derive(Debug)]
pub(super) struct OpeningWatch {
    stale_entries: Arc<StaleEntries>,
    number: u64,
}

impl OpeningWatch {
    /// Whether the kernel may have found the inode by an entry that another client has changed.
    pub(super) fn is_stale(&self) -> bool {
        let table = self.stale_entries.lock();
        let opening = &table.openings[&self.number];
        let inode = &opening.inode;
        opening.is_stale || table.previous_counts.contains_key(inode) || table.not_found_since.contains(inode)
    }
}

impl Drop for OpeningWatch {
    fn drop(&mut self) {
        self.stale_entries.lock().openings.remove(&self.number);
    }
}

/// An entry that is to be invalidated.
#[derive(Debug, Default)]
struct StaleEntry {
    /// Invalidations that the kernel has not executed.
    invalidations: u32,
    /// Inodes to which the entry has led.
    previous: Vec<InodeNumber>,
    /// The last answer to the kernel since then.
    found: Option<FoundEntry>,
}

/// An entry as the kernel was answered.
#[derive(Clone, Copy, Debug)]
struct FoundEntry {
    /// None when there was no entry.
    inode: Option<InodeNumber>,
    /// The thread that has looked it up; none when every thread waits for this answer, as for mkdir(2).
    thread: Option<u32>,
}

impl StaleEntries {
    /// An entry has led to `previous`, and is invalidated. The view is locked.
    pub(super) fn add(&self, key: EntryKey, previous: InodeNumber) {
        let mut table = self.lock();
        *table.previous_counts.entry(previous).or_default() += 1;
        for opening in table.openings.values_mut().filter(|opening| opening.inode == previous) {
            opening.is_stale = true;
        }
        let entry = table.entries.entry(key).or_default();
        entry.invalidations += 1;
        entry.previous.push(previous);
        entry.found = None;
    }

    /// The kernel has executed an invalidation.
    pub(super) fn remove(&self, key: &EntryKey) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(key) else { return };
        entry.invalidations -= 1;
        if entry.invalidations > 0 {
            return;
        }
        for previous in table.entries.remove(key).map(|entry| entry.previous).unwrap_or_default() {
            if let Entry::Occupied(mut count) = table.previous_counts.entry(previous) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            if table.not_found_since.len() >= NOT_FOUND_MAX {
                table.not_found_since.clear();
            }
            table.not_found_since.insert(previous);
        }
    }

    /// Watches the entries of an inode that is being opened.
    pub(super) fn watch_opening(self: &Arc<Self>, inode: InodeNumber) -> OpeningWatch {
        let mut table = self.lock();
        let number = table.next_opening;
        table.next_opening += 1;
        table.openings.insert(number, WatchedOpening { inode, is_stale: false });
        OpeningWatch { stale_entries: Arc::clone(self), number }
    }

    /// A lookup by a thread is answered, or with no thread the creation of an entry.
    pub(super) fn note_answer(&self, thread: Option<u32>, key: &EntryKey, inode: Option<InodeNumber>) {
        let mut table = self.lock();
        if let Some(inode) = inode {
            table.not_found_since.remove(&inode);
        }
        if let Some(entry) = table.entries.get_mut(key) {
            entry.found = Some(FoundEntry { inode, thread });
        }
    }

    /// Checks that the kernel has an entry as the view has it, where it leads to `target`. The view is locked.
    ///
    /// # Errors
    /// ESTALE: the thread is to look the entry up again.
    pub(super) fn check(&self, thread: u32, key: &EntryKey, target: Option<InodeNumber>) -> Result<(), Errno> {
        let is_known = |found: FoundEntry| found.inode == target && found.thread.is_none_or(|by| by == thread);
        match self.lock().entries.get(key) {
            Some(entry) if !entry.found.is_some_and(is_known) => Err(Errno::STALE),
            _ => Ok(()),
        }
    }

    /// The inodes that the kernel may still have for an entry.
    pub(super) fn previous_inodes(&self, key: &EntryKey) -> Vec<InodeNumber> {
        self.lock().entries.get(key).map(|entry| entry.previous.clone()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, StaleTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::EntryName;

    const OLD: InodeNumber = InodeNumber(5);
    const NEW: InodeNumber = InodeNumber(6);

    fn key(name: &str) -> EntryKey {
        EntryKey { parent: InodeNumber::ROOT, name: EntryName::new(name.as_bytes()).unwrap() }
    }

    #[test]
    fn a_thread_that_looks_up_again_may_go_on() {
        let stale = StaleEntries::default();
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Ok(()));
        stale.add(key("a"), OLD);
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Err(Errno::STALE));
        assert_eq!(stale.check(1, &key("b"), Some(NEW)), Ok(()), "another entry");
        stale.note_answer(Some(1), &key("a"), Some(NEW));
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Ok(()));
        assert_eq!(stale.check(2, &key("a"), Some(NEW)), Err(Errno::STALE), "another thread");
        assert_eq!(stale.check(1, &key("a"), Some(OLD)), Err(Errno::STALE), "it leads elsewhere again");
        stale.note_answer(Some(1), &key("a"), None);
        assert_eq!(stale.check(1, &key("a"), None), Ok(()), "there is none");
        stale.note_answer(None, &key("a"), Some(NEW));
        assert_eq!(stale.check(2, &key("a"), Some(NEW)), Ok(()), "it was created");
    }

    #[test]
    fn an_entry_is_stale_until_the_last_invalidation() {
        let stale = StaleEntries::default();
        stale.add(key("a"), OLD);
        stale.note_answer(Some(1), &key("a"), Some(NEW));
        stale.add(key("a"), NEW);
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Err(Errno::STALE), "it was changed after the answer");
        assert_eq!(stale.previous_inodes(&key("a")), [OLD, NEW]);
        stale.remove(&key("a"));
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Err(Errno::STALE));
        stale.remove(&key("a"));
        assert_eq!(stale.check(1, &key("a"), Some(NEW)), Ok(()));
        assert!(stale.previous_inodes(&key("a")).is_empty());
    }

    #[test]
    fn an_inode_that_is_being_opened_may_have_been_found_by_an_old_name() {
        let stale = Arc::<StaleEntries>::default();
        let is_stale = |inode| stale.watch_opening(inode).is_stale();
        stale.add(key("a"), OLD);
        stale.add(key("b"), OLD);
        stale.add(key("b"), NEW);
        stale.remove(&key("a"));
        assert!(is_stale(OLD) && is_stale(NEW));
        let (before, other) = (stale.watch_opening(OLD), stale.watch_opening(NEW));
        stale.remove(&key("b"));
        stale.remove(&key("b"));
        assert!(is_stale(OLD) && is_stale(NEW) && before.is_stale(), "the paths were walked before the invalidations");
        for inode in [OLD, NEW] {
            stale.note_answer(Some(1), &key("c"), Some(inode));
        }
        assert!(!is_stale(OLD) && !is_stale(NEW) && !before.is_stale(), "they were looked up since");
        stale.add(key("a"), OLD);
        stale.remove(&key("a"));
        stale.note_answer(Some(1), &key("c"), Some(OLD));
        assert!(before.is_stale(), "this path was walked before the invalidation");
        assert!(!is_stale(OLD) && !other.is_stale());
    }
}
