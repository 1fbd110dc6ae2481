//! Creates, locks and removes the directory of a local cluster.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use farfork_sys::mount::point;
#[cfg(test)]
use farfork_sys::mount::point::MountPoint;
use rustix::fs::{FlockOperation, flock};

use super::error::LocalError;

/// Removes the run directory, unless it has other files. If another daemon's containers use it as a mount point, it is
/// removed with the last of these containers.
pub(super) fn remove_run_dir(path: &Path) {
    point::remove_when_unused(path);
}

/// Makes the run directory, to which only its owner has access. Returns whether it was missing.
pub(super) fn make_run_dir(path: &Path) -> Result<bool, LocalError> {
    if path.is_dir() {
        return Ok(false);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(run_dir_error("make", path))?;
    Ok(true)
}

/// Makes a directory of the cluster, to which only its owner has access.
pub(super) fn make_private_dir(path: &Path) -> Result<(), LocalError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(run_dir_error("make", path))
}

/// The directory of the catalog of volumes.
pub(super) fn volumes_dir(cluster_dir: &Path) -> PathBuf {
    cluster_dir.join("volumes")
}

/// Returns the path without symbolic links, so that `ClusterState::remove_files` can compare it.
pub(super) fn real_path(path: &Path) -> Result<PathBuf, LocalError> {
    path.canonicalize().map_err(run_dir_error("find", path))
}

/// Converts the I/O error of `action`, for `map_err`.
pub(super) fn run_dir_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LocalError + 'a {
    move |cause| LocalError::State { action, path: path.to_owned(), cause }
}

/// The lock file: the process that makes or removes the cluster locks it. The directory itself may be the mount point of
/// containers with a shared root, whose daemon locks it ([`farfork_sys::mount::point`]).
const LOCK: &str = "cluster.lock";

/// Limit on attempts to lock the file. An attempt fails if the previous holder removes the file between open(2) and
/// flock(2), which rarely happens twice.
const LOCK_ATTEMPTS_MAX: usize = 8;

/// The lock on a run directory, held while a command makes or removes the cluster in it.
#[derive(Debug)]
pub(super) struct RunDirLock {
    path: PathBuf,
    file: File,
}

impl RunDirLock {
    /// Removes the lock file, after the cluster has been removed.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for RunDirLock {
    /// Unlocks explicitly: a process that another thread has just forked may still have the descriptor.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Locks the run directory, while the cluster in it is made or removed. Fails with [`LocalError::Busy`] if another command
/// has locked it.
pub(super) fn lock_run_dir(run_dir: &Path) -> Result<RunDirLock, LocalError> {
    let path = run_dir.join(LOCK);
    for _ in 0..LOCK_ATTEMPTS_MAX {
        let file = File::options().append(true).create(true).open(&path).map_err(run_dir_error("lock", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => break,
            Err(errno) => return Err(run_dir_error("lock", &path)(errno.into())),
        }
        // The process that held the lock may have removed the file after it was opened here.
        let locked = file.metadata().map_err(run_dir_error("lock", &path))?;
        if fs::metadata(&path).is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino())) {
            return Ok(RunDirLock { path, file });
        }
    }
    Err(LocalError::Busy { run_dir: run_dir.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_run_directory_is_busy() {
        let above = tempfile::tempdir().unwrap();
        let locked = lock_run_dir(above.path()).unwrap();
        assert!(matches!(lock_run_dir(above.path()), Err(LocalError::Busy { .. })));
        let inherited = locked.file.try_clone().unwrap();
        drop(locked);
        lock_run_dir(above.path()).unwrap().remove();
        drop(inherited);
        assert_eq!(fs::read_dir(above.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_run_directory_with_mount_points_is_not_removed() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("run");
        make_run_dir(&path).unwrap();
        let needed = MountPoint::acquire(&path).unwrap();
        lock_run_dir(&path).unwrap().remove();
        remove_run_dir(&path);
        assert!(path.exists());
        needed.release();
        assert!(!path.exists());
    }
}
