//! Finds the open file that a descriptor refers to, by comparing it with one descriptor of each known open file.
//!
//! Descriptors of one inode may refer to one open file or to several. kcmp(2) compares and orders them. So a few comparisons
//! suffice, even for thousands of files that share the kernel's anonymous inode (eventfd, timerfd, epoll).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use farfork_sys::process::{self, FdInfo, TaskFd};

use super::OpenFd;

/// Key of an open file, equal for all its descriptors: device, inode, and the number of an eventfd.
pub(super) type OpenFileKey = (u64, u64, Option<u32>);

/// An open file that was found before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownOpenFile {
    /// The first known descriptor of the open file.
    pub(super) first: TaskFd,
    /// Index among the open files of the descriptor.
    pub(super) index: u32,
}

/// The known open files. Those with the same key are in the order of kcmp(2).
#[derive(Debug, Default)]
pub(super) struct OpenFileIndex {
    by_key: BTreeMap<OpenFileKey, Vec<KnownOpenFile>>,
    /// Descriptors of standard streams: each has its own open file.
    streams: Vec<KnownOpenFile>,
}

impl OpenFd {
    /// The key that it shares with all descriptors of its open file.
    pub(super) fn open_file_key(&self, info: &FdInfo) -> OpenFileKey {
        (self.device, self.inode, info.event_counter.and_then(|counter| counter.number))
    }
}

impl OpenFileIndex {
    /// Finds the open file of a descriptor, or returns the position at which to insert a new one. All processes must be
    /// stopped. If kcmp(2) fails, because a process was killed for example, the files count as different.
    pub(super) fn find(&self, identity: OpenFileKey, descriptor: TaskFd) -> Result<KnownOpenFile, usize> {
        let alike = self.by_key.get(&identity).map_or(&[][..], Vec::as_slice);
        let order = |first| process::compare_open_files(first, descriptor).unwrap_or(Ordering::Less);
        alike.binary_search_by(|known| order(known.first)).map(|position| alike[position])
    }

    /// Adds an open file at its position.
    pub(super) fn insert(&mut self, identity: OpenFileKey, position: usize, open_file: KnownOpenFile) {
        self.by_key.entry(identity).or_default().insert(position, open_file);
    }

    /// Adds a descriptor of a standard stream.
    pub(super) fn add_stream(&mut self, stream: KnownOpenFile) {
        self.streams.push(stream);
    }

    /// The descriptors of standard streams.
    pub(super) fn streams(&self) -> &[KnownOpenFile] {
        &self.streams
    }

    /// The open files with an inode number. Each element has open files in the order of kcmp(2).
    pub(super) fn files_of_inode(&self, inode: u64) -> impl Iterator<Item = &[KnownOpenFile]> {
        self.by_key.iter().filter(move |((_, number, _), _)| *number == inode).map(|(_, alike)| &alike[..])
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::{KnownOpenFile, OpenFileIndex, TaskFd};

    #[test]
    fn each_duplicate_is_found_among_many_of_one_inode() {
        let files: Vec<OwnedFd> = (0..100).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
        let duplicates: Vec<OwnedFd> = files.iter().map(|file| file.try_clone().unwrap()).collect();
        let own = std::process::id().cast_signed();
        let descriptor = |file: &OwnedFd| TaskFd { pid: own, fd: file.as_raw_fd().cast_unsigned() };
        let (mut firsts, identity) = (OpenFileIndex::default(), (0, 0, None));
        for (index, file) in files.iter().enumerate() {
            let position = firsts.find(identity, descriptor(file)).expect_err("no earlier file is the same");
            firsts.insert(identity, position, KnownOpenFile { first: descriptor(file), index: index as u32 });
        }
        for (index, (file, duplicate)) in files.iter().zip(&duplicates).enumerate() {
            let known = KnownOpenFile { first: descriptor(file), index: index as u32 };
            assert_eq!(firsts.find(identity, descriptor(duplicate)), Ok(known));
        }
        assert_eq!(firsts.find((0, 1, None), descriptor(&files[0])), Err(0), "another inode");
    }
}
