//! Remembers when the kernel may have dropped its pages of a file. A write(2) fills pages, and its request then waits for the
//! write permission. If the pages are dropped meanwhile, a read(2) fills new ones without the written data, and the kernel
//! does not repair them at the end of the write. So the client drops the written range again after such a write.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::record::InodeNumber;

/// Longest time from the moment at which the kernel fills the pages of a write(2) until the request arrives here.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// Limit of [`PageTable::files`]. At this size, finished drops are removed.
const FILES_MAX: usize = 4096;

/// Why pages of a file are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropReason {
    /// The file has changed.
    ChangedFile,
    /// A write(2) of this node has changed a part of the file that the kernel may have read before.
    OwnWrite,
}

/// Files whose pages were dropped.
#[derive(Debug, Default)]
pub(super) struct DroppedPages(Mutex<PageTable>);

#[derive(Debug, Default)]
struct PageTable {
    files: HashMap<InodeNumber, PageDrops>,
    /// Drops that ended up to this time may be missing from `files`.
    complete_since: Option<Instant>,
}

/// The drops of one file.
#[derive(Debug, Default)]
struct PageDrops {
    /// Number of drops that are queued or being executed.
    pending: u32,
    changed_file: Option<Instant>,
    own_write: Option<Instant>,
}

impl DroppedPages {
    /// Records that pages of a file will be dropped.
    pub(super) fn begin(&self, inode: InodeNumber) {
        self.lock().files.entry(inode).or_default().pending += 1;
    }

    /// Records that the pages are dropped.
    pub(super) fn end(&self, inode: InodeNumber, reason: DropReason, now: Instant) {
        let mut table = self.lock();
        let drops = table.files.entry(inode).or_default();
        drops.pending = drops.pending.saturating_sub(1);
        match reason {
            DropReason::ChangedFile => drops.changed_file = Some(now),
            DropReason::OwnWrite => drops.own_write = Some(now),
        }
        if table.files.len() >= FILES_MAX {
            table.files.retain(|_, drops| drops.pending > 0);
            table.complete_since = Some(now);
        }
    }

    /// Whether pages of a file may have been dropped after a write(2) filled them. Its request arrived at `arrived`.
    ///
    /// Drops for own writes count only after this time. Otherwise, each write of a series would cause a drop that counts for
    /// the next one.
    pub(super) fn may_have_dropped_since(&self, inode: InodeNumber, arrived: Instant) -> bool {
        let table = self.lock();
        let is_recent = |end: Option<Instant>| end.is_some_and(|end| end + REQUEST_TIME_MAX >= arrived);
        let is_later = |end: Option<Instant>| end.is_some_and(|end| end >= arrived);
        let has_dropped =
            |drops: &PageDrops| drops.pending > 0 || is_recent(drops.changed_file) || is_later(drops.own_write);
        is_recent(table.complete_since) || table.files.get(&inode).is_some_and(has_dropped)
    }

    fn lock(&self) -> MutexGuard<'_, PageTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(5);
    const OTHER: InodeNumber = InodeNumber(6);

    #[test]
    fn pages_are_dropped_from_the_begin_of_a_drop_until_the_oldest_request_has_arrived() {
        let (pages, now) = (DroppedPages::default(), Instant::now());
        assert!(!pages.may_have_dropped_since(FILE, now));
        pages.begin(FILE);
        assert!(pages.may_have_dropped_since(FILE, now) && !pages.may_have_dropped_since(OTHER, now));
        pages.end(FILE, DropReason::ChangedFile, now);
        assert!(pages.may_have_dropped_since(FILE, now + REQUEST_TIME_MAX));
        assert!(!pages.may_have_dropped_since(FILE, now + REQUEST_TIME_MAX + Duration::from_nanos(1)));
    }

    #[test]
    fn a_drop_for_a_write_does_not_count_for_the_next_write() {
        let (pages, now) = (DroppedPages::default(), Instant::now());
        pages.begin(FILE);
        pages.end(FILE, DropReason::OwnWrite, now);
        assert!(pages.may_have_dropped_since(FILE, now));
        assert!(!pages.may_have_dropped_since(FILE, now + Duration::from_nanos(1)));
    }

    #[test]
    fn removed_drops_count_for_every_file() {
        let (pages, now) = (DroppedPages::default(), Instant::now());
        pages.begin(OTHER);
        for inode in (0..FILES_MAX as u64).map(|inode| InodeNumber(100 + inode)) {
            pages.begin(inode);
            pages.end(inode, DropReason::ChangedFile, now);
        }
        let later = now + REQUEST_TIME_MAX + Duration::from_nanos(1);
        assert!(pages.may_have_dropped_since(FILE, now) && !pages.may_have_dropped_since(FILE, later));
        assert!(pages.may_have_dropped_since(OTHER, later), "its drop has not ended");
        assert!(pages.lock().files.len() < FILES_MAX);
    }
}
