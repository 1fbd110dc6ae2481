//! `ScratchDirectory`: the files of a benchmark's nodes and programs. It is locked while the benchmark runs.
//!
//! The kernel releases the lock when the benchmark ends, even if SIGKILL ends it. Then `remover` removes the directory with
//! the nodes and mounts in it. If that process was killed too, the next benchmark removes them (`leftovers`).

mod leftovers;
mod remover;

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::error::BenchError;

pub(crate) use leftovers::remove_group;
pub(crate) use remover::run_remover;

/// The usual parent of scratch directories. It is on the file system of the default run directory, because the file system
/// affects the cost of a child. It is not /tmp, which is mounted noexec on some machines.
pub(crate) const SCRATCH_PARENT: &str = "/run";

/// Prefix of the names of scratch directories and control groups. The pid of the benchmark follows.
pub(crate) const SCRATCH_PREFIX: &str = "farfork-bench-";

/// The directory of a cluster in a scratch directory.
pub(crate) const CLUSTER_DIRECTORY: &str = "cluster";

/// The mount point of a file system in a scratch directory. Further scratch directories may be in it.
pub(crate) const MOUNT_DIRECTORY: &str = "mount";

/// Limit on attempts to make a directory. An attempt fails if another benchmark examines the new directory before it is
/// locked, which rarely happens twice.
const CREATE_ATTEMPTS_MAX: usize = 8;

/// A directory that is removed when this value is dropped, or after the benchmark has ended.
#[derive(Debug)]
pub(crate) struct ScratchDirectory {
    directory: TempDir,
    _lock: File,
}

impl ScratchDirectory {
    /// Makes a directory in `parent`. First removes the directories there of benchmarks that have ended. `farfork` is the
    /// program that removes this directory if the benchmark is killed.
    pub(crate) fn create(parent: &Path, farfork: &Path) -> Result<Self, BenchError> {
        leftovers::remove_ended(parent);
        // Report only the kind of the error, because its text names the path of the new directory.
        let failed = |cause: io::Error| BenchError::File { path: parent.to_owned(), cause: cause.kind().into() };
        let prefix = format!("{SCRATCH_PREFIX}{}-", std::process::id());
        for _ in 0..CREATE_ATTEMPTS_MAX {
            let mut builder = tempfile::Builder::new();
            // Programs of other users read it, and only this user changes it, whatever the umask is.
            builder.prefix(&prefix).permissions(Permissions::from_mode(0o755));
            let directory = builder.tempdir_in(parent).map_err(failed)?;
            if let Some(lock) = lock(directory.path(), FlockOperation::NonBlockingLockExclusive) {
                remover::register(directory.path(), farfork)?;
                return Ok(Self { directory, _lock: lock });
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Keeps the directory when this value is dropped, because nodes in it could not be removed. The remover tries again
    /// when the benchmark has ended.
    pub(crate) fn keep(&mut self) {
        self.directory.disable_cleanup(true);
    }
}

/// Locks a directory. Returns `None` if another process has removed it, or has locked it and `operation` does not wait.
fn lock(directory: &Path, operation: FlockOperation) -> Option<File> {
    let file = File::open(directory).ok()?;
    flock(&file, operation).ok()?;
    let (locked, present) = (file.metadata().ok()?, directory.symlink_metadata().ok()?);
    ((locked.dev(), locked.ino()) == (present.dev(), present.ino())).then_some(file)
}
