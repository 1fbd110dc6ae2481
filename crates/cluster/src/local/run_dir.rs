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

/// Removes the run directory, unless it has other files. If containers of another daemon are mounted on it, it is removed
/// with the last of them.
pub(super) fn remove_run_dir(path: &Path) {
    point::remove_when_unused(path);
}

/// Makes the run directory, for its owner alone; tells whether it was missing.
pub(super) fn make_run_dir(path: &Path) -> Result<bool, LocalError> {
    if path.is_dir() {
        return Ok(false);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(run_dir_error("make", path))?;
    Ok(true)
}

/// Makes a directory of the cluster, for its owner alone.
pub(super) fn make_private_dir(path: &Path) -> Result<(), LocalError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(run_dir_error("make", path))
}

/// Where the nodes agree on volumes.
pub(super) fn volumes_dir(cluster_dir: &Path) -> PathBuf {
    cluster_dir.join("volumes")
}

/// The path without symbolic links, as it will be compared with.
pub(super) fn real_path(path: &Path) -> Result<PathBuf, LocalError> {
    path.canonicalize().map_err(run_dir_error("find", path))
}

/// For `map_err`.
pub(super) fn run_dir_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LocalError + 'a {
    move |cause| LocalError::State { action, path: path.to_owned(), cause }
}

/// The process that makes or removes the cluster locks it. Not the directory itself: a daemon's containers with a shared root have one of
/// the same name for their mounts, and lock it ([`farfork_sys::mount::point`]).
const LOCK: &str = "cluster.lock";

/// Attempts to lock a file that others remove meanwhile; a second one hardly ever meets that again.
const LOCK_ATTEMPTS_MAX: usize = 8;

/// Keeps other commands off the run directory.
#[derive(Debug)]
pub(super) struct RunDirLock {
    path: PathBuf,
    _file: File,
}

impl RunDirLock {
    /// To be called when no cluster is there any more.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Keeps other commands off the run directory while the cluster in it is made or removed.
pub(super) fn lock_run_dir(run_dir: &Path) -> Result<RunDirLock, LocalError> {
    let path = run_dir.join(LOCK);
    for _ in 0..LOCK_ATTEMPTS_MAX {
        let file = File::options().append(true).create(true).open(&path).map_err(run_dir_error("lock", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => break,
            Err(errno) => return Err(run_dir_error("lock", &path)(errno.into())),
        }
        // The process that held the lock may have removed it.
        let locked = file.metadata().map_err(run_dir_error("lock", &path))?;
        if fs::metadata(&path).is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino())) {
            return Ok(RunDirLock { path, _file: file });
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
        locked.remove();
        lock_run_dir(above.path()).unwrap().remove();
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
