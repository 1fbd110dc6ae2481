//! Pool of child directories, created in advance: on a journaling file system, creating a directory with its files
//! takes as long as restoring the child.
//!
//! An unused directory is removed when the daemon stops. After a crash, the next daemon removes it, because it contains
//! no `child.json`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_api::limits::CONCURRENT_STARTS_MAX;
use farfork_api::run_dir::RunDir;
use farfork_fork::resume;
use farfork_wire::{ChildId, NodeName};

use super::random_id;
use crate::children::OutputStream;

/// If fewer directories are ready, the pool is refilled. Concurrent starts need up to this number. Each directory holds
/// three descriptors.
const READY_MIN: usize = CONCURRENT_STARTS_MAX;
const READY_MAX: usize = 2 * READY_MIN;

/// A child's directory with its empty files. Only the owner has access. Dropping the object removes the directory.
#[derive(Debug)]
pub(super) struct ChildDir {
    id: ChildId,
    directory: RemoveOnDrop,
    files: ChildFiles,
}

/// The files of a child's directory before the child is started, open for writing.
#[derive(Debug)]
pub(super) struct ChildFiles {
    /// The child's standard output.
    pub(super) output: OwnedFd,
    /// The child's standard error.
    pub(super) error: OwnedFd,
    /// The child's wait status.
    pub(super) status: OwnedFd,
}

/// A directory that is removed when this object is dropped; `None` once a child owns the directory.
#[derive(Debug)]
struct RemoveOnDrop(Option<PathBuf>);

/// The pool of a node.
#[derive(Debug)]
pub(super) struct ChildDirPool {
    node: NodeName,
    run_dir: RunDir,
    ready: Mutex<Vec<ChildDir>>,
}

impl ChildDir {
    fn create(node: &NodeName, run_dir: &RunDir) -> io::Result<Self> {
        let id = ChildId::new(node.clone(), random_id()?);
        let directory = run_dir.child_dir(&id);
        DirBuilder::new().mode(0o700).create(&directory)?;
        let made = RemoveOnDrop(Some(directory.clone()));
        let output = |stream: OutputStream| {
            let mut options = OpenOptions::new();
            options
                .append(true)
                .create_new(true)
                .mode(0o600)
                .open(directory.join(stream.file_name()))
                .map(OwnedFd::from)
        };
        let (output, error) = (output(OutputStream::Stdout)?, output(OutputStream::Stderr)?);
        let files = ChildFiles { output, error, status: resume::create_status_file(&directory)? };
        Ok(Self { id, directory: made, files })
    }

    /// Returns the child's id, its directory and the files in it. The caller removes the directory.
    pub(super) fn into_parts(mut self) -> (ChildId, PathBuf, ChildFiles) {
        (self.id, self.directory.0.take().expect("only this and a drop take it"), self.files)
    }
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Some(directory) = self.0.take() {
            remove_directory(&directory);
        }
    }
}

impl ChildDirPool {
    /// Creates an empty pool: the first child waits until its directory is created.
    pub(super) fn new(node: NodeName, run_dir: RunDir) -> Self {
        Self { node, run_dir, ready: Mutex::default() }
    }

    /// Returns the directory that contains the child directories.
    pub(super) fn base_dir(&self) -> PathBuf {
        self.run_dir.children_dir()
    }

    /// Takes a ready directory, or creates one.
    ///
    /// # Errors
    /// As mkdir(2), open(2).
    pub(super) fn take(&self) -> io::Result<ChildDir> {
        let ready = self.ready().pop();
        ready.map_or_else(|| ChildDir::create(&self.node, &self.run_dir), Ok)
    }

    /// Whether the pool needs a refill.
    pub(super) fn is_low(&self) -> bool {
        self.ready().len() < READY_MIN
    }

    /// Fills the pool up to [`READY_MAX`] directories.
    pub(super) fn refill(&self) {
        while self.ready().len() < READY_MAX {
            match ChildDir::create(&self.node, &self.run_dir) {
                Ok(child_dir) => self.put_back(child_dir),
                Err(error) => return tracing::debug!(%error, "no child directory can be created in advance"),
            }
        }
    }

    /// Adds a directory, or removes the directory if the pool is full.
    fn put_back(&self, child_dir: ChildDir) {
        let mut ready = self.ready();
        if ready.len() < READY_MAX {
            ready.push(child_dir);
        }
    }

    fn ready(&self) -> MutexGuard<'_, Vec<ChildDir>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a child's directory with its contents.
pub(super) fn remove_directory(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        tracing::warn!(directory = %directory.display(), %error, "the directory of a child that did not start is not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::{ChildDirPool, READY_MAX, READY_MIN, RunDir};
    use farfork_fork::resume::STATUS_FILE;
    use std::fs::{self, File};
    use std::io::Write as _;

    #[test]
    fn an_unused_child_directory_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(parent.path().join("run"));
        let _lock = run_dir.acquire().unwrap();
        let pool = ChildDirPool::new("n1".parse().unwrap(), run_dir.clone());
        pool.refill();
        let count = || fs::read_dir(run_dir.children_dir()).unwrap().count();
        assert_eq!(count(), READY_MAX);
        let (id, directory, files) = pool.take().unwrap().into_parts();
        assert_eq!(directory, run_dir.child_dir(&id));
        File::from(files.status).write_all(b"done").unwrap();
        assert_eq!(fs::read(directory.join(STATUS_FILE)).unwrap(), b"done");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3);
        assert!(!pool.is_low());
        let other = pool.take().unwrap();
        assert_ne!(other.id, id, "each directory is taken once");
        pool.refill();
        assert_eq!(count(), READY_MAX + 2);
        let taken: Vec<_> = (0..=READY_MAX - READY_MIN).map(|_| pool.take().unwrap()).collect();
        assert!(pool.is_low(), "a pool with some directories left is low");
        drop((taken, other, pool));
        assert_eq!(count(), 1, "the directory of a child stays");
    }
}
