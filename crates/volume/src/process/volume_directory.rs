//! The directory of a volume on one node: log, shared tree, locks and sockets.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::log::{LogFile, LogFileError, LogHeader};
use crate::publish::SharedTree;

/// Paths of one volume. The path itself is short enough for a Unix socket inside of it.
#[derive(Clone, Debug)]
pub struct VolumeDirectory {
    path: PathBuf,
}

/// Why a volume cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The directory exists, or cannot be made.
    #[error("cannot create the directory of the volume: {0}")]
    Directory(#[source] io::Error),
    /// The log cannot be made.
    #[error("cannot create the log: {0}")]
    Log(#[source] io::Error),
    /// The shared tree cannot be made.
    #[error("cannot create the shared tree: {0}")]
    SharedTree(#[source] io::Error),
}

impl VolumeDirectory {
    /// Names a volume, and touches nothing.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Creates a volume: its directory with an empty log and an empty shared tree.
    ///
    /// # Errors
    /// When a part cannot be made. What was made is left for the caller to remove.
    pub fn create(path: &Path, volume: u64, ring_bytes: u64) -> Result<Self, CreateError> {
        DirBuilder::new().mode(0o700).create(path).map_err(CreateError::Directory)?;
        let directory = Self::new(path);
        let header = LogHeader { volume, client: 1, epoch: 1, ring_bytes };
        LogFile::create(&directory.log_path(), &header).map_err(CreateError::Log)?;
        SharedTree::create(&directory.shared_path()).map_err(CreateError::SharedTree)?;
        Ok(directory)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tree that ordinary tools list.
    pub fn shared_path(&self) -> PathBuf {
        self.path.join("shared")
    }

    /// Opens the log.
    ///
    /// # Errors
    /// As `LogFile::open`.
    pub fn open_log(&self) -> Result<LogFile, LogFileError> {
        LogFile::open(&self.log_path())
    }

    /// Opens the shared tree.
    ///
    /// # Errors
    /// As `SharedTree::open`.
    pub fn open_shared(&self) -> io::Result<SharedTree> {
        SharedTree::open(&self.shared_path())
    }

    /// Takes the lock of a role, when its present holder ends. The lock ends with the file.
    ///
    /// # Errors
    /// As open(2) and flock(2).
    pub(super) fn lock(&self, role: &str) -> io::Result<File> {
        let file = self.open_lock(role)?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(file)
    }

    /// Takes the lock of a role; none while another process has it.
    ///
    /// # Errors
    /// As `lock`.
    pub(super) fn try_lock(&self, role: &str) -> io::Result<Option<File>> {
        let file = self.open_lock(role)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The socket that a role listens on.
    pub(super) fn socket_path(&self, role: &str) -> PathBuf {
        self.path.join(format!("{role}.socket"))
    }

    fn open_lock(&self, role: &str) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.join(format!("{role}.lock")))
    }

    fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }
}
