//! A mount point directory on the node's file system, created by its first user and removed after the last. Each user, in
//! any process, holds a shared lock on the directory.
//!
//! A marker file distinguishes a created directory from a directory that existed before. A directory without the marker is
//! never removed. A mount hides the marker, but only in its own mount namespace.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The file that marks a directory as created by this module.
const MARKER_FILE: &str = ".mount-point";
/// Maximum number of attempts to lock a directory. An attempt fails if another process removes the directory at the same
/// time; two such removals in a row are rare.
const ATTEMPTS_MAX: usize = 8;

/// A locked directory to mount on. It is not removed while this value exists.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    _lock: File,
}

impl MountPoint {
    /// Locks the directory, and creates it if it is missing. Its parent must exist.
    ///
    /// # Errors
    /// As mkdir(2), open(2), flock(2).
    pub fn acquire(path: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS_MAX {
            match fs::create_dir(path) {
                Ok(()) => drop(File::create(path.join(MARKER_FILE))?),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let directory = File::open(path)?;
            flock(&directory, FlockOperation::LockShared)?;
            if fs::metadata(path).is_ok_and(|now| is_same_inode(&now, &directory)) {
                return Ok(Self { path: path.to_owned(), _lock: directory });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Unlocks the directory, and removes it if it has no other user.
    pub fn release(self) {
        let path = self.path.clone();
        drop(self);
        remove_unused(&path);
    }
}

/// Removes the directory if [`MountPoint::acquire`] created it and no user is left. Returns whether it was removed.
pub fn remove_unused(path: &Path) -> bool {
    let Ok(directory) = File::open(path) else { return false };
    let mark = path.join(MARKER_FILE);
    if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() || !mark.exists() {
        return false;
    }
    // A process that waits for the lock in `MountPoint::acquire` then finds that the directory was replaced or removed.
    fs::remove_file(mark).is_ok() && fs::remove_dir(path).is_ok()
}

/// Removes an empty directory that this module did not create: now, or when its last user releases it.
pub fn remove_when_unused(path: &Path) {
    let is_empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty && File::create(path.join(MARKER_FILE)).is_ok() {
        remove_unused(path);
    }
}

fn is_same_inode(now: &fs::Metadata, held: &File) -> bool {
    held.metadata().is_ok_and(|held| (held.dev(), held.ino()) == (now.dev(), now.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_release_removes_the_mount_point() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("point");
        let (one, two) = (MountPoint::acquire(&path).unwrap(), MountPoint::acquire(&path).unwrap());
        one.release();
        assert!(path.exists() && !remove_unused(&path));
        two.release();
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_existed_before_is_kept() {
        let above = tempfile::tempdir().unwrap();
        MountPoint::acquire(above.path()).unwrap().release();
        assert!(above.path().exists());
    }

    #[test]
    fn a_mount_point_of_a_dead_process_is_removed() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("point");
        drop(MountPoint::acquire(&path).unwrap()); // `release` is not called
        assert!(path.exists() && remove_unused(&path) && !path.exists());
    }
}
