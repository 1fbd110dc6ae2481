//! Private files and directories. A file that other users may read is not secret, and one that they may change is not
//! trusted. The checks apply to the opened file, so that a concurrent change of its path has no effect.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, open, openat, renameat, unlinkat};
use zeroize::Zeroizing;

use crate::trust_directory::{DirectoryError, io_error};

/// Permissions of other users to read, write or enter.
const GROUP_OTHER_ANY: u32 = 0o077;

/// Permission of other users to change a directory.
const GROUP_OTHER_WRITE: u32 = 0o022;

/// Reads a secret from a private file, or from a pipe. Errors contain `path`.
///
/// # Errors
/// [`DirectoryError::TooPermissive`] and [`DirectoryError::WrongOwner`] if other users have access,
/// [`DirectoryError::InvalidContent`] if it is longer than `bytes_max`, [`DirectoryError::Io`] if it cannot be read.
pub fn read_private(path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, DirectoryError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    read_checked(file, path, bytes_max)
}

fn read_checked(file: File, path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, DirectoryError> {
    check_permissions(&file, path, GROUP_OTHER_ANY)?;
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    if bytes.len() as u64 > bytes_max {
        return Err(DirectoryError::InvalidContent {
            path: path.into(),
            cause: format!("it has more than {bytes_max} bytes"),
        });
    }
    Ok(bytes)
}

fn check_permissions(file: &File, path: &Path, mask: u32) -> Result<(), DirectoryError> {
    let metadata = file.metadata().map_err(io_error("stat", path))?;
    let mode = metadata.mode() & 0o777;
    if mode & mask != 0 {
        return Err(DirectoryError::TooPermissive { path: path.into(), mode });
    }
    let uid = metadata.uid();
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Err(DirectoryError::WrongOwner { path: path.into(), uid });
    }
    Ok(())
}

/// An open directory. Operations use this directory even if another one is moved to its path.
pub(crate) struct PrivateDir<'a> {
    dir: File,
    path: &'a Path,
}

impl<'a> PrivateDir<'a> {
    /// Opens a directory that other users cannot change; `None` if there is none.
    ///
    /// # Errors
    /// [`DirectoryError`] if other users can change it, or if it cannot be opened.
    pub(crate) fn open(path: &'a Path) -> Result<Option<Self>, DirectoryError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match open(path, flags, Mode::empty()) {
            Ok(dir) => File::from(dir),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(io_error("open", path)(errno.into())),
        };
        check_permissions(&dir, path, GROUP_OTHER_WRITE)?;
        Ok(Some(Self { dir, path }))
    }

    /// Checks that other users cannot read the directory.
    ///
    /// # Errors
    /// [`DirectoryError::TooPermissive`] if they can.
    pub(crate) fn check_unreadable_by_others(&self) -> Result<(), DirectoryError> {
        check_permissions(&self.dir, self.path, GROUP_OTHER_ANY)
    }

    /// Reads a file of the directory; `None` if there is none.
    ///
    /// # Errors
    /// As [`read_private`].
    pub(crate) fn read(&self, name: &OsStr, bytes_max: u64) -> Result<Option<Zeroizing<Vec<u8>>>, DirectoryError> {
        let path = self.path.join(name);
        // O_NONBLOCK: if the file is a FIFO, open(2) does not wait for its other end.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(io_error("open", &path)(errno.into())),
        };
        read_checked(file, &path, bytes_max).map(Some)
    }

    /// Replaces a file of the directory atomically, and syncs it to disk.
    ///
    /// # Errors
    /// As openat(2), write(2), fsync(2), renameat(2).
    pub(crate) fn write(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        let mut draft = name.to_owned();
        draft.push(".new");
        // Removes a draft that a crash has left.
        let _ = unlinkat(&self.dir, &draft, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.dir, &draft, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(bytes)?;
        file.sync_all()?;
        renameat(&self.dir, &draft, &self.dir, name)?;
        self.dir.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_a_remedy() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("join.token");
        fs::write(&file, "secret").unwrap();
        for mode in [0o644, 0o640, 0o604, 0o660] {
            set_mode(&file, mode);
            let refused = read_private(&file, 100).unwrap_err();
            assert!(matches!(refused, DirectoryError::TooPermissive { mode: found, .. } if found == mode));
            assert!(refused.to_string().contains(&format!("chmod go= {}", file.display())), "{refused}");
        }
        for mode in [0o600, 0o400] {
            set_mode(&file, mode);
            assert_eq!(**read_private(&file, 100).unwrap(), *b"secret");
        }
        assert!(
            matches!(read_private(&file, 3), Err(DirectoryError::InvalidContent { .. })),
            "a file longer than the limit"
        );
    }

    #[test]
    fn files_of_a_directory_that_others_can_change_are_not_read() {
        let scratch = tempfile::tempdir().unwrap();
        set_mode(scratch.path(), 0o700);
        PrivateDir::open(scratch.path()).unwrap().unwrap().write(OsStr::new("key"), b"secret").unwrap();
        assert_eq!(fs::metadata(scratch.path().join("key")).unwrap().mode() & 0o777, 0o600);
        set_mode(scratch.path(), 0o720);
        assert!(matches!(PrivateDir::open(scratch.path()), Err(DirectoryError::TooPermissive { .. })));
        set_mode(scratch.path(), 0o755);
        let dir = PrivateDir::open(scratch.path()).unwrap().unwrap();
        assert!(matches!(dir.check_unreadable_by_others(), Err(DirectoryError::TooPermissive { .. })));
        assert_eq!(**dir.read(OsStr::new("key"), 100).unwrap().unwrap(), *b"secret");
    }

    #[test]
    fn a_replaced_directory_is_not_used() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, aside) = (scratch.path().join("trust"), scratch.path().join("aside"));
        for (dir, text) in [(&path, "ours"), (&aside, "theirs")] {
            fs::create_dir(dir).unwrap();
            set_mode(dir, 0o700);
            PrivateDir::open(dir).unwrap().unwrap().write(OsStr::new("roster"), text.as_bytes()).unwrap();
        }
        let opened = PrivateDir::open(&path).unwrap().unwrap();
        fs::rename(&path, scratch.path().join("away")).unwrap();
        fs::rename(&aside, &path).unwrap();
        assert_eq!(**opened.read(OsStr::new("roster"), 100).unwrap().unwrap(), *b"ours");
        opened.write(OsStr::new("roster"), b"newer").unwrap();
        assert_eq!(fs::read(path.join("roster")).unwrap(), b"theirs");
    }
}
