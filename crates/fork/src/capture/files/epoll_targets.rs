//! Finds the open file of each registration of an epoll instance. A registration belongs to an open file, not to its number:
//! if the number is closed while a duplicate is open, the kernel still reports the file's events, under the old number
//! (epoll(7)). `builder` and `running_check` collect the instances; the open files of the whole tree must be known.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io;

use farfork_sys::process::{self, EpollEntry, EpollSlot, TaskFd};
use farfork_wire::descriptor::{EpollTarget, FileDescriptor, MovedEpollTarget, OpenFile};

use super::OpenFileTable;
use super::open_file_index::OpenFileIndex;
use crate::capture::error::{CaptureError, Refusal};

/// An epoll instance with its registrations.
#[derive(Debug)]
pub(super) struct WatchingEpoll {
    /// Index of its open file.
    pub(super) open_file: u32,
    /// Its first descriptor.
    pub(super) first: TaskFd,
    /// Its registrations, in the order of `fdinfo`.
    pub(super) entries: Vec<EpollEntry>,
}

impl WatchingEpoll {
    /// Iterates over the registrations, each with the slot that names it to kcmp(2).
    pub(super) fn slots(&self) -> impl Iterator<Item = (&EpollEntry, EpollSlot)> {
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        self.entries.iter().map(move |entry| {
            let count = counts.entry(entry.number).or_default();
            let slot = EpollSlot { epoll: self.first, target: entry.number, position: *count };
            *count += 1;
            (entry, slot)
        })
    }

    /// Refuses a registration whose file no process of the tree has open.
    pub(super) fn refusal(&self, entry: &EpollEntry) -> Refusal {
        let reason = format!(
            "it watches a file that was registered as fd {} and was closed there, and that only a process outside of the \
             tree has open now: not carried; end that process, or make a new epoll instance",
            entry.number
        );
        Refusal::new(super::fd_object(self.first.pid, self.first.fd), reason)
    }
}

/// Whether a descriptor refers to the file of a registration.
pub(super) fn is_target(descriptor: TaskFd, slot: EpollSlot) -> io::Result<bool> {
    match process::compare_with_epoll_target(descriptor, slot) {
        Ok(order) => Ok(order == Ordering::Equal),
        Err(error) if rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::BADF) => Ok(false),
        Err(error) => Err(error),
    }
}

impl OpenFileIndex {
    /// Finds the open file of a registration among all known open files.
    pub(super) fn find_epoll_target(&self, entry: &EpollEntry, slot: EpollSlot) -> Option<u32> {
        let order = |first| process::compare_with_epoll_target(first, slot).unwrap_or(Ordering::Less);
        let indexed = self.files_of_inode(entry.inode).find_map(|alike| {
            let position = alike.binary_search_by(|known| order(known.first)).ok()?;
            Some(alike[position].index)
        });
        indexed.or_else(|| {
            let mut streams = self.streams().iter();
            streams.find(|known| order(known.first) == Ordering::Equal).map(|known| known.index)
        })
    }
}

impl OpenFileTable {
    /// Sets the registrations of all epoll instances. `tables` are the descriptors of each process. Call it when all open
    /// files are known, while the processes are stopped.
    pub(super) fn resolve_epoll_targets(
        &mut self,
        tables: &BTreeMap<i32, &[FileDescriptor]>,
    ) -> Result<(), CaptureError> {
        for epoll in std::mem::take(&mut self.epolls) {
            let pid = epoll.first.pid;
            let unread = || CaptureError::reading(pid, format!("the files that fd {} watches", epoll.first.fd));
            let descriptors = tables.get(&pid).copied().unwrap_or_default();
            let mut unmoved = Vec::with_capacity(epoll.entries.len());
            for (entry, slot) in epoll.slots() {
                let target = EpollTarget { number: entry.number, events: entry.events, data: entry.data };
                let at_number = descriptors.binary_search_by_key(&entry.number, |descriptor| descriptor.number);
                if let Ok(position) = at_number {
                    // A socket's inode belongs to one open file, so the registration belongs to its number.
                    let inode = self.sockets.get(&descriptors[position].open_file);
                    if inode == Some(&entry.inode)
                        || is_target(TaskFd { pid, fd: entry.number }, slot).map_err(unread())?
                    {
                        unmoved.push(target);
                        continue;
                    }
                }
                let Some(open_file) = self.index.find_epoll_target(entry, slot) else {
                    return Err(CaptureError::refused(pid, vec![epoll.refusal(entry)]));
                };
                self.moved_epoll_targets.push(MovedEpollTarget { epoll: epoll.open_file, open_file, target });
            }
            if let OpenFile::Epoll { targets, .. } = &mut self.files[epoll.open_file as usize] {
                *targets = unmoved;
            }
        }
        Ok(())
    }
}
