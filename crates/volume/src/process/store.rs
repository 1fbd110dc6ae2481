//! The store of a node: a directory with one directory for each volume, and the sockets and locks of its processes.

//   store/offload.socket  control.socket  worker.socket  offload.lock  worker.lock
//   store/NAME/volume     id of the volume
//   store/NAME/logs/C     log of client C; on the client's node, the client appends to it
//   store/NAME/shared     the shared tree
//
// The lock of a client is the directory of the volume. `store/offload.failure` exists while the offload process cannot start, and
// says why.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use farfork_cluster::catalog::VolumeName;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::volume_directory::VolumeDirectory;

/// Longest path of a store, in bytes. The path of a Unix socket in it has at most 107 bytes.
pub const STORE_PATH_BYTES_MAX: usize = 90;

/// Paths of one store.
#[derive(Clone, Debug)]
pub struct VolumeStore {
    path: PathBuf,
}

impl VolumeStore {
    /// Creates the paths of a store. Accesses no file.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of a volume.
    pub fn volume(&self, name: &str) -> VolumeDirectory {
        VolumeDirectory::new(&self.path.join(name))
    }

    /// The volumes that a client of this node has mounted, or is about to mount.
    ///
    /// # Errors
    /// As readdir(3) and flock(2). A store that does not exist has none.
    pub fn mounted_volumes(&self) -> io::Result<Vec<String>> {
        let mut mounted = Vec::new();
        for name in self.volume_names()? {
            if self.volume(&name).try_lock_client()?.is_none() {
                mounted.push(name);
            }
        }
        Ok(mounted)
    }

    /// The names of the volumes with a replica in the store, sorted. A store that does not exist has none.
    ///
    /// # Errors
    /// As readdir(3).
    pub fn volume_names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            // The store may have other directories: lost+found of a file system that is mounted at the store, and replicas
            // that were set aside, which have names that no volume can have.
            if VolumeName::new(&name).is_ok() && self.volume(&name).id().is_ok() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Why the last start of the offload process has failed; none if it has not.
    pub fn start_failure(&self) -> Option<String> {
        // The file is empty while it is being written.
        fs::read_to_string(self.start_failure_path()).ok().filter(|failure| !failure.is_empty())
    }

    /// Records why the offload process cannot start, or removes the record.
    ///
    /// # Errors
    /// As write(2) and unlink(2).
    pub fn record_start_failure(&self, failure: Option<&str>) -> io::Result<()> {
        match failure {
            Some(failure) => fs::write(self.start_failure_path(), failure),
            None => ignore_missing(fs::remove_file(self.start_failure_path())),
        }
    }

    fn start_failure_path(&self) -> PathBuf {
        self.path.join("offload.failure")
    }

    /// Path of the socket at which clients attach.
    pub(super) fn offload_socket(&self) -> PathBuf {
        self.path.join("offload.socket")
    }

    /// Path of the socket for commands.
    pub(super) fn control_socket(&self) -> PathBuf {
        self.path.join("control.socket")
    }

    /// Path of the socket at which the worker receives change sets.
    pub(super) fn worker_socket(&self) -> PathBuf {
        self.path.join("worker.socket")
    }

    /// Takes the lock of a process, after its present owner has ended. Closing the file releases the lock.
    ///
    /// # Errors
    /// As open(2) and flock(2).
    pub(super) fn lock(&self, process: &str) -> io::Result<File> {
        let file = open_lock(&self.path, process)?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(file)
    }

    /// Takes the lock of a process; none while another process has it.
    ///
    /// # Errors
    /// As `lock`.
    pub(super) fn try_lock(&self, process: &str) -> io::Result<Option<File>> {
        try_lock(open_lock(&self.path, process)?)
    }
}

/// Takes the lock of a file; none while another process has it.
pub(super) fn try_lock(file: File) -> io::Result<Option<File>> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Ignores ENOENT after the removal of a file or directory.
pub(super) fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn open_lock(directory: &Path, name: &str) -> io::Result<File> {
    let path = directory.join(format!("{name}.lock"));
    let mut options = OpenOptions::new();
    // Without O_NONBLOCK, open(2) of a FIFO in the place of the lock would wait.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits().cast_signed());
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_are_mounted() {
        let directory = tempfile::tempdir().unwrap();
        let store = VolumeStore::new(directory.path());
        fs::create_dir(directory.path().join("lost+found")).unwrap();
        VolumeDirectory::create(&directory.path().join("data"), 7).unwrap();
        assert_eq!(store.mounted_volumes().unwrap(), Vec::<String>::new());
        let _client = store.volume("data").try_lock_client().unwrap();
        assert_eq!(store.mounted_volumes().unwrap(), ["data"]);
        assert_eq!(fs::read_dir(directory.path().join("lost+found")).unwrap().count(), 0, "it stays as it is");
    }
}
