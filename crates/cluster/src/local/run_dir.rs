//! The directory that a cluster is in: made, locked, removed.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::LocalError;

/// Removes the run directory, unless somebody has put something else there.
pub(super) fn remove(path: &Path) {
    let _ = fs::remove_dir(path);
}

/// Makes the run directory, for its owner alone; tells whether it was missing.
pub(super) fn make(path: &Path) -> Result<bool, LocalError> {
    if path.is_dir() {
        return Ok(false);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("make", path))?;
    Ok(true)
}

/// The path without symbolic links, as it will be compared with.
pub(super) fn real_path(path: &Path) -> Result<PathBuf, LocalError> {
    path.canonicalize().map_err(failed("find", path))
}

/// For `map_err`.
pub(super) fn failed<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LocalError + 'a {
    move |cause| LocalError::State { action, path: path.to_owned(), cause }
}

/// Keeps other commands off the run directory while the cluster in it is made or removed.
pub(super) fn lock(run_dir: &Path) -> Result<File, LocalError> {
    let directory = File::open(run_dir).map_err(failed("lock", run_dir))?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LocalError::Busy { run_dir: run_dir.to_owned() }),
        Err(errno) => Err(failed("lock", run_dir)(errno.into())),
    }
}
