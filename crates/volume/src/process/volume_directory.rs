//! The directory of a volume on one node: its id, the logs of all clients, and the shared tree. The directory is also the
//! lock of the client.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::control::LastCheck;
use super::open_tree::FileIdentity;
use super::store::{ignore_missing, try_lock};
use crate::chain::RECORD_BYTES;
use crate::log::{LogFile, LogFileError, LogHeader};
use crate::publish::{SharedTree, available_bytes};
use crate::replica_file::{find_metadata, is_lost, open_regular_file, remove_any, replace_any};

/// The file with the id of the volume.
pub(super) const IDENTITY: &str = "volume";
pub(super) const LOGS: &str = "logs";
pub(super) const SHARED: &str = "shared";
/// The file with the boot id of the machine when the replica was last opened.
const BOOT: &str = "boot";
/// The file with the result of the last check.
const LAST_CHECK: &str = "last-check";
/// The file with the device number of the latest mount on this node.
const MOUNT_DEVICE: &str = "mount-device";
/// The boot id, which changes with each boot of the machine: proc_sys_kernel(5).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Interval between two attempts to take the lock of the client.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Maximum number of replicas of one volume that are set aside.
const ASIDE_MAX: u32 = 100;

/// Paths of one volume.
#[derive(Clone, Debug)]
pub struct VolumeDirectory {
    path: PathBuf,
}

/// Why a replica cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The directory exists, or cannot be made.
    #[error("cannot create the directory {path}: {source}")]
    Directory {
        /// Path of the directory.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The shared tree cannot be made.
    #[error(
        "cannot create the shared tree in {path}: {source}; the file system must support trusted extended attributes"
    )]
    SharedTree {
        /// The directory of the volume.
        path: String,
        /// The cause.
        source: io::Error,
    },
}

impl VolumeDirectory {
    /// Creates the paths of a volume. Accesses no file.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Renames an unusable file or directory at the path of a replica, and returns its new path. A replica without data is
    /// removed instead.
    ///
    /// # Errors
    /// As rename(2); `AlreadyExists` when a client has the volume mounted.
    pub(super) fn set_aside(&self, id: u64) -> io::Result<Option<PathBuf>> {
        let Some(found) = find_metadata(&self.path)? else { return Ok(None) };
        let _lock = match self.try_lock_client() {
            // No client has the lock of a file that is no directory.
            Err(error) if is_lost(&error) => None,
            lock => Some(lock?.ok_or(io::ErrorKind::AlreadyExists)?),
        };
        if found.is_dir() && !self.has_data()? {
            fs::remove_dir_all(&self.path)?;
            return Ok(None);
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A volume's name has no dot, so these names are not used by volumes.
        let first = format!("{name}.{id:016x}");
        let others = (2..=ASIDE_MAX).map(|number| format!("{first}.{number}"));
        let mut paths = [first.clone()].into_iter().chain(others).map(|name| self.path.with_file_name(name));
        let is_free = |path: &PathBuf| matches!(find_metadata(path), Ok(None));
        let aside = paths.find(is_free).ok_or(io::ErrorKind::AlreadyExists)?;
        fs::rename(&self.path, &aside)?;
        Ok(Some(aside))
    }

    /// Whether the directory tree has any file other than the volume's small files.
    fn has_data(&self) -> io::Result<bool> {
        let small = [IDENTITY, BOOT, LAST_CHECK, MOUNT_DEVICE].map(|name| self.path.join(name));
        let mut directories = vec![self.path.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    directories.push(entry.path());
                } else if !small.contains(&entry.path()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Creates an empty replica. The file with the id is written last: a directory without it is incomplete, as after a
    /// crash.
    ///
    /// # Errors
    /// When a part cannot be made. The caller must remove the parts that exist.
    pub(super) fn create(path: &Path, id: u64) -> Result<Self, CreateError> {
        let text = || path.display().to_string();
        let failed = |source| CreateError::Directory { path: text(), source };
        DirBuilder::new().mode(0o700).recursive(true).create(path.parent().unwrap_or(path)).map_err(failed)?;
        DirBuilder::new().mode(0o700).create(path).map_err(failed)?;
        let directory = Self::new(path);
        fs::create_dir(path.join(LOGS)).map_err(failed)?;
        let shared = SharedTree::create(&directory.shared_path());
        shared.map_err(|source| CreateError::SharedTree { path: text(), source })?;
        directory.write_id(id).map_err(failed)?;
        Ok(directory)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Free space of the file system for unprivileged processes, in bytes. It is also limited by the free inodes, at
    /// `RECORD_BYTES` each, unless the file system reports no limit of inodes.
    ///
    /// # Errors
    /// As statvfs(3).
    pub(super) fn free_space(&self) -> io::Result<u64> {
        let state = rustix::fs::statvfs(&self.path)?;
        let inode_bytes = if state.f_files == 0 { u64::MAX } else { state.f_favail.saturating_mul(RECORD_BYTES) };
        Ok(available_bytes(&state).min(inode_bytes))
    }

    /// Path of the shared tree. Ordinary tools list its subdirectory `tree`.
    pub fn shared_path(&self) -> PathBuf {
        self.path.join(SHARED)
    }

    /// Path at which a new shared tree is built before it replaces the present one.
    pub(super) fn new_shared_path(&self) -> PathBuf {
        self.path.join("shared.new")
    }

    /// Path of the replaced shared tree until it is removed.
    pub(super) fn old_shared_path(&self) -> PathBuf {
        self.path.join("shared.old")
    }

    /// The path of the shared tree. Between the two renames that replace it, only the old tree exists.
    ///
    /// # Errors
    /// As lstat(2).
    pub(super) fn present_shared_path(&self) -> io::Result<PathBuf> {
        let shared = self.shared_path();
        Ok(if find_metadata(&shared)?.is_some() { shared } else { self.old_shared_path() })
    }

    /// Restores the old shared tree if a crash has interrupted its replacement by a new one.
    ///
    /// # Errors
    /// As rename(2).
    pub(super) fn finish_tree_exchange(&self) -> io::Result<()> {
        let (present, old) = (self.present_shared_path()?, self.old_shared_path());
        if present == old { ignore_missing(fs::rename(old, self.shared_path())) } else { Ok(()) }
    }

    /// Opens the shared tree.
    ///
    /// # Errors
    /// As `SharedTree::open`.
    pub fn open_shared(&self) -> io::Result<SharedTree> {
        SharedTree::open(&self.shared_path())
    }

    /// The id of the volume.
    ///
    /// # Errors
    /// As open(2); `InvalidData` for a file without an id.
    pub(super) fn id(&self) -> io::Result<u64> {
        let text = self.read_file(IDENTITY)?;
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn write_id(&self, id: u64) -> io::Result<()> {
        let mut file = File::create_new(self.path.join(IDENTITY))?;
        writeln!(file, "{id}")?;
        file.sync_all()?;
        File::open(&self.path)?.sync_all()
    }

    /// Whether the machine may have rebooted since `mark_start`, so that data which was only in memory is lost.
    ///
    /// # Errors
    /// As open(2).
    pub(super) fn has_restarted(&self) -> io::Result<bool> {
        match self.read_file(BOOT) {
            Ok(marked) => Ok(marked != fs::read_to_string(BOOT_ID)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // A file of another type does not tell.
            Err(error) if is_lost(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Saves the boot id, so that `has_restarted` finds a later reboot. On a full disk, the older id stays, so the replica
    /// leaves the chain once more when its process restarts.
    ///
    /// # Errors
    /// As open(2).
    pub(super) fn mark_start(&self) -> io::Result<()> {
        let (marked, present) = (self.read_file(BOOT), fs::read_to_string(BOOT_ID)?);
        if marked.as_ref().is_ok_and(|marked| *marked == present) {
            return Ok(());
        }
        match self.replace_file(BOOT, present.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && marked.is_ok() => Ok(()),
            replaced => replaced,
        }
    }

    /// Reads a small file.
    fn read_file(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        open_regular_file(OpenOptions::new().read(true), &self.path.join(name))?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Replaces a small file. A crash leaves the old file or the new one.
    fn replace_file(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let (path, new) = (self.path.join(name), self.path.join(name).with_extension("new"));
        remove_any(&new)?;
        File::create_new(&new)?.write_all(contents)?;
        replace_any(&new, &path)
    }

    /// Reads the saved result of the last check; none if it cannot be read.
    pub(super) fn last_check(&self) -> Option<LastCheck> {
        serde_json::from_str(&self.read_file(LAST_CHECK).ok()?).ok()
    }

    /// Saves the result of a check.
    ///
    /// # Errors
    /// As open(2); `NotFound` without a replica.
    pub(super) fn save_last_check(&self, last: &LastCheck) -> io::Result<()> {
        self.replace_file(LAST_CHECK, &serde_json::to_vec(last)?)
    }

    /// Reads the device number of the latest mount on this node; none if it cannot be read.
    pub(super) fn mount_device(&self) -> Option<String> {
        self.read_file(MOUNT_DEVICE).ok()
    }

    /// Saves the device number of a mount.
    ///
    /// # Errors
    /// As open(2); `NotFound` without a replica.
    pub(super) fn save_mount_device(&self, device: &str) -> io::Result<()> {
        self.replace_file(MOUNT_DEVICE, device.as_bytes())
    }

    /// Path of the log of a client.
    pub(super) fn log_path(&self, client: u16) -> PathBuf {
        self.path.join(LOGS).join(client.to_string())
    }

    /// Creates the log of a client and its mark, unless they exist. A crash leaves a complete log or none.
    ///
    /// # Errors
    /// As `LogFile::create`.
    pub(super) fn ensure_log(&self, header: &LogHeader) -> io::Result<()> {
        let client = header.client;
        self.open_shared()?.create_mark(client)?;
        let path = self.log_path(client);
        if path.exists() {
            return Ok(());
        }
        let new = path.with_extension("new");
        remove_any(&new)?;
        LogFile::create(&new, header).inspect_err(|_| {
            // Frees the space of the incomplete log, for example on a full disk.
            let _ = fs::remove_file(&new);
        })?;
        fs::rename(&new, &path)
    }

    /// The clients that have a log here, in order.
    ///
    /// # Errors
    /// As readdir(3).
    pub(super) fn log_clients(&self) -> io::Result<Vec<u16>> {
        let mut clients = Vec::new();
        for entry in fs::read_dir(self.path.join(LOGS))? {
            clients.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u16>().ok()));
        }
        clients.sort_unstable();
        Ok(clients)
    }

    /// Opens the log of a client.
    ///
    /// # Errors
    /// As `LogFile::open`.
    pub(super) fn open_log(&self, client: u16) -> Result<LogFile, LogFileError> {
        LogFile::open(&self.log_path(client))
    }

    /// Takes the lock of the client; none while a client runs, or while the replica is removed. The directory itself is
    /// locked, because a file in it may be removed while a client runs, and the next client would lock another file.
    ///
    /// # Errors
    /// As open(2) and flock(2); `NotFound` if the directory was removed since it was opened.
    pub(super) fn try_lock_client(&self) -> io::Result<Option<File>> {
        self.try_lock_opened(self.open()?)
    }

    /// As [`Self::try_lock_client`], but waits for the lock, at most `limit`.
    pub(super) fn lock_client(&self, limit: Duration) -> io::Result<Option<File>> {
        let deadline = Instant::now() + limit;
        loop {
            let lock = self.try_lock_client()?;
            if lock.is_some() || Instant::now() >= deadline {
                return Ok(lock);
            }
            thread::sleep(LOCK_RETRY);
        }
    }

    fn open(&self) -> io::Result<File> {
        let flags = OFlags::DIRECTORY.bits().cast_signed();
        OpenOptions::new().read(true).custom_flags(flags).open(&self.path)
    }

    fn try_lock_opened(&self, opened: File) -> io::Result<Option<File>> {
        let Some(lock) = try_lock(opened)? else { return Ok(None) };
        let is_same = FileIdentity::of(&lock.metadata()?) == FileIdentity::of(&fs::metadata(&self.path)?);
        if is_same { Ok(Some(lock)) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica_file::tests::{OTHERS_FOR_FILE, exchange};

    const ID: u64 = 7;

    fn replica() -> (tempfile::TempDir, VolumeDirectory) {
        let store = tempfile::tempdir().unwrap();
        let directory = VolumeDirectory::create(&store.path().join("data"), ID).unwrap();
        (store, directory)
    }

    #[test]
    fn what_has_data_is_kept_under_another_name_each_time() {
        let (store, directory) = replica();
        fs::remove_file(directory.path.join(IDENTITY)).unwrap();
        assert_eq!(directory.set_aside(ID).unwrap(), None, "as after a crash of `create`");
        assert!(!directory.path.exists());
        for name in ["data.0000000000000007", "data.0000000000000007.2"] {
            VolumeDirectory::create(&directory.path, ID).unwrap();
            fs::write(directory.shared_path().join("tree/file"), b"data").unwrap();
            let client = directory.try_lock_client().unwrap().unwrap();
            assert_eq!(directory.set_aside(ID).unwrap_err().kind(), io::ErrorKind::AlreadyExists, "it is mounted");
            drop(client);
            let aside = directory.set_aside(ID).unwrap().unwrap();
            assert_eq!(aside, store.path().join(name));
            assert_eq!(fs::read(aside.join("shared/tree/file")).unwrap(), b"data");
        }
        assert_eq!(directory.set_aside(ID).unwrap(), None, "there is nothing");
    }

    #[test]
    fn only_one_client_has_a_replica_however_its_files_change() {
        let (_store, directory) = replica();
        let client = directory.try_lock_client().unwrap().unwrap();
        for entry in fs::read_dir(&directory.path).unwrap() {
            remove_any(&entry.unwrap().path()).unwrap();
        }
        assert!(directory.try_lock_client().unwrap().is_none());
        drop(client);
        assert!(directory.try_lock_client().unwrap().is_some());
    }

    #[test]
    fn the_lock_of_a_removed_replica_is_not_taken() {
        let (_store, directory) = replica();
        let removed = || {
            let opened = directory.open().unwrap();
            fs::remove_dir_all(&directory.path).unwrap();
            opened
        };
        let kind_of = |opened| directory.try_lock_opened(opened).unwrap_err().kind();
        assert_eq!(kind_of(removed()), io::ErrorKind::NotFound);
        VolumeDirectory::create(&directory.path, ID).unwrap();
        let opened = removed();
        VolumeDirectory::create(&directory.path, ID).unwrap();
        assert_eq!(kind_of(opened), io::ErrorKind::NotFound, "another replica has its place");
        assert!(directory.try_lock_client().unwrap().is_some());
    }

    #[test]
    fn small_files_take_the_place_of_files_of_other_types() {
        for replace in OTHERS_FOR_FILE {
            let (_store, directory) = replica();
            assert!(!directory.has_restarted().unwrap(), "a new replica has lost nothing");
            let last = LastCheck { at_seconds: 7, differences: 0, repaired: Vec::new() };
            directory.mark_start().unwrap();
            directory.save_last_check(&last).unwrap();
            for name in [BOOT, LAST_CHECK] {
                exchange(&directory.path.join(name), replace);
                replace(&directory.path.join(name).with_extension("new")).unwrap();
            }
            assert!(directory.has_restarted().unwrap(), "the boot id is unknown");
            assert!(directory.last_check().is_none());
            directory.mark_start().unwrap();
            directory.save_last_check(&last).unwrap();
            assert!(!directory.has_restarted().unwrap());
            assert!(directory.last_check().is_some());
        }
    }
}
