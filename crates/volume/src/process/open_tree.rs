//! The directories of an open shared tree. `replica_loss` compares them with the ones at their paths, which may be those of
//! an older copy. Does not look into directories whose entries change while a volume is used.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::publish::SharedTree;
use crate::replica_file::find_metadata;

/// Identifies a file while it is open: the file system does not give the inode number of an open file to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The identity of the file with this metadata.
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The directories of a shared tree that were at its path when it was opened.
pub(super) struct OpenTree(Vec<OpenDirectory>);

struct OpenDirectory {
    path: PathBuf,
    identity: FileIdentity,
    /// The modification time, in seconds and nanoseconds, of a directory whose entries never change. Not the change time: a
    /// backup program may set access times, and this changes nothing of the replica.
    modified: Option<(i64, i64)>,
    /// Keeps the identity.
    _opened: File,
}

impl OpenTree {
    /// Opens the directories of the shared tree at a path. Leaves out those that cannot be opened, because these are lost.
    pub(super) fn open(path: &Path) -> Self {
        let open = |name: &str| -> io::Result<OpenDirectory> {
            let path = path.join(name);
            // A FIFO in the place of the directory would make open(2) wait.
            let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
            let metadata = opened.metadata()?;
            let modified = (name == SharedTree::FIXED_DIRECTORY).then(|| modification_time(&metadata));
            Ok(OpenDirectory { path, identity: FileIdentity::of(&metadata), modified, _opened: opened })
        };
        Self(SharedTree::DIRECTORIES.iter().filter_map(|name| open(name).ok()).collect())
    }

    /// Finds a directory that is no longer the one that was opened, or whose entries were exchanged; none if there is none.
    ///
    /// # Errors
    /// As lstat(2).
    pub(super) fn find_replaced(&self) -> io::Result<Option<PathBuf>> {
        for directory in &self.0 {
            let is_same = |found: &Metadata| {
                let has_same_entries = directory.modified.is_none_or(|modified| modified == modification_time(found));
                has_same_entries && FileIdentity::of(found) == directory.identity
            };
            if !find_metadata(&directory.path)?.is_some_and(|found| is_same(&found)) {
                return Ok(Some(directory.path.clone()));
            }
        }
        Ok(None)
    }
}

fn modification_time(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}
