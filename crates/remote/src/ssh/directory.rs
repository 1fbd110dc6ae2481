//! [`ClientDirectory`]: the directory with the configuration of ssh, and the sockets of its masters. Only this user has access.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tempfile::TempDir;

/// Prefix of the directory's name.
const PREFIX: &str = "farfork-ssh-";

/// Name of the file that the client locks. The lock ends with the process, also if it is killed.
const LOCK_NAME: &str = "lock";

/// A directory that is removed with this value. If the process is killed, the next client removes it.
#[derive(Debug)]
pub(super) struct ClientDirectory {
    directory: TempDir,
    _lock: File,
}

impl ClientDirectory {
    /// Makes a directory, and removes those of this user's clients that were killed.
    pub(super) fn create() -> io::Result<Self> {
        let parent = env::temp_dir();
        remove_abandoned(&parent);
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // It gets its name when it is locked, so that no other client sees it without its lock.
        let new = directory.path().join("new");
        let lock = File::create(&new)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(new, directory.path().join(LOCK_NAME))?;
        Ok(Self { directory, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let is_own = |metadata: fs::Metadata| metadata.is_dir() && metadata.uid() == geteuid().as_raw();
        if !is_named || !entry.metadata().is_ok_and(is_own) {
            continue;
        }
        let lock = File::open(entry.path().join(LOCK_NAME));
        if lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()) {
            // If it cannot be removed, a later client tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::{ClientDirectory, LOCK_NAME, PREFIX, remove_abandoned};

    #[test]
    fn only_directories_of_killed_clients_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str, file: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(file), "").unwrap();
            path
        };
        let killed = make(&format!("{PREFIX}killed"), LOCK_NAME);
        let kept = [make(&format!("{PREFIX}new"), "new"), make("other", LOCK_NAME)];
        let link = parent.path().join(format!("{PREFIX}link"));
        symlink(&kept[1], &link).unwrap();
        let running = ClientDirectory::create().unwrap();
        remove_abandoned(parent.path());
        remove_abandoned(&std::env::temp_dir());
        assert!(!killed.exists());
        assert!(kept.iter().all(|path| fs::read_dir(path).unwrap().count() == 1) && link.exists());
        assert!(running.path().join(LOCK_NAME).exists(), "it is locked");
    }
}
