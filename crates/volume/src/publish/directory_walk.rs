//! Walks any number of directories of a shared tree. Opens a directory only when it is visited, so only the directories on
//! the path to it are open.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::record::{EntryName, InodeNumber};

const OPEN_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NOATIME);

/// The walk, with the directories that are not visited yet.
#[derive(Debug)]
pub(super) struct DirectoryWalk {
    pending: Vec<PendingDirectory>,
}

#[derive(Debug)]
struct PendingDirectory {
    inode: InodeNumber,
    parent: Arc<OwnedFd>,
    /// None for the directory `parent` itself.
    name: Option<EntryName>,
}

/// A directory that is being visited.
#[derive(Debug)]
pub(super) struct WalkedDirectory {
    pub(super) inode: InodeNumber,
    pub(super) file: Arc<OwnedFd>,
}

impl DirectoryWalk {
    /// Begins at a directory.
    pub(super) fn start(inode: InodeNumber, top: OwnedFd) -> Self {
        Self { pending: vec![PendingDirectory { inode, parent: Arc::new(top), name: None }] }
    }

    /// Adds a subdirectory of a visited directory.
    pub(super) fn add(&mut self, parent: &WalkedDirectory, name: EntryName, inode: InodeNumber) {
        self.pending.push(PendingDirectory { inode, parent: Arc::clone(&parent.file), name: Some(name) });
    }

    /// Opens the next directory: the one that was added last.
    ///
    /// # Errors
    /// As open(2).
    pub(super) fn next(&mut self) -> Result<Option<WalkedDirectory>, Errno> {
        let Some(PendingDirectory { inode, parent, name }) = self.pending.pop() else { return Ok(None) };
        let file = match name {
            Some(name) => Arc::new(open_directory(&parent, name.as_bytes())?),
            None => parent,
        };
        Ok(Some(WalkedDirectory { inode, file }))
    }
}

/// Opens a directory in another one. Does not change its access time.
///
/// # Errors
/// As open(2); ENOTDIR or ELOOP for a file that is no directory.
pub(super) fn open_directory(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    openat(parent, name, OPEN_FLAGS, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Counts the open files of this process in a directory.
    fn open_files(directory: &Path) -> usize {
        let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.filter(|path| path.starts_with(directory)).count()
    }

    #[test]
    fn the_number_of_open_directories_is_bounded() {
        let top = tempfile::tempdir().unwrap();
        for outer in 0..30 {
            for inner in 0..30 {
                fs::create_dir_all(top.path().join(format!("{outer}/{inner}"))).unwrap();
            }
        }
        let opened = openat(rustix::fs::CWD, top.path(), OPEN_FLAGS, Mode::empty()).unwrap();
        let mut walk = DirectoryWalk::start(InodeNumber(0), opened);
        let mut walked = 0;
        while let Some(directory) = walk.next().unwrap() {
            walked += 1;
            assert!(open_files(top.path()) <= 3, "one for each level");
            if directory.inode.0 < 2 {
                for number in 0..30 {
                    let name = EntryName::new(number.to_string().as_bytes()).unwrap();
                    walk.add(&directory, name, InodeNumber(directory.inode.0 + 1));
                }
            }
        }
        assert_eq!(walked, 1 + 30 + 30 * 30);
    }
}
