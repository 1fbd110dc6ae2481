//! Files of a replica that may be missing, or replaced by files of another type. A symbolic link counts as another type: a
//! replica has all its parts in its own directory. `log`, `publish` and `process` use these functions.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Whether an error of a system call with a path means that a file is missing, or that a file of another type is at its path
/// or at the path of its directory.
pub(crate) fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory)
        // ENXIO is the error of open(2) for a socket.
        || matches!(Errno::from_io_error(error), Some(Errno::LOOP | Errno::NXIO))
}

/// The metadata of the file at a path, also of a symbolic link; none if there is no file.
///
/// # Errors
/// As lstat(2).
pub(crate) fn find_metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if is_lost(&error) => Ok(None),
        found => found.map(Some),
    }
}

/// Opens a regular file. Does not open a FIFO, because this would wait.
///
/// # Errors
/// As open(2); `is_lost` recognises the errors for files of other types.
pub(crate) fn open_regular_file(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file_type = fs::symlink_metadata(path)?.file_type();
    if file_type.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if !file_type.is_file() && !file_type.is_symlink() {
        return Err(Errno::NXIO.into());
    }
    options.clone().custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

/// Removes a file of any type, and a directory with all files in it. A missing file is no error.
///
/// # Errors
/// As unlink(2) and rmdir(2).
pub(crate) fn remove_any(path: &Path) -> io::Result<()> {
    let removed = match find_metadata(path)? {
        None => return Ok(()),
        Some(found) if found.is_dir() => fs::remove_dir_all(path),
        Some(_) => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Renames a file to a path. A file or directory that is there is removed, with all files in it.
///
/// # Errors
/// As rename(2).
pub(crate) fn replace_any(new: &Path, path: &Path) -> io::Result<()> {
    match fs::rename(new, path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            fs::remove_dir_all(path)?;
            fs::rename(new, path)
        }
        renamed => renamed,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// The ways to put something else in the place of a regular file or a directory.
    pub(crate) type Replacement = fn(&Path) -> io::Result<()>;

    /// Replacements of a regular file by files of other types.
    pub(crate) const OTHERS_FOR_FILE: [Replacement; 6] =
        [make_directory, link_to_moved, link_to_nothing, link_to_itself, make_fifo, make_socket];
    /// Replacements of a directory by files of other types.
    pub(crate) const OTHERS_FOR_DIRECTORY: [Replacement; 6] =
        [make_file, link_to_moved, link_to_nothing, link_to_itself, make_fifo, make_socket];

    /// Moves the file or directory at a path away, and calls `replace` for the path.
    pub(crate) fn exchange(path: &Path, replace: Replacement) {
        fs::rename(path, moved(path)).unwrap();
        replace(path).unwrap();
    }

    /// Undoes `exchange`.
    pub(crate) fn restore(path: &Path) {
        remove_any(path).unwrap();
        fs::rename(moved(path), path).unwrap();
    }

    fn moved(path: &Path) -> std::path::PathBuf {
        path.with_extension("moved")
    }

    fn make_file(path: &Path) -> io::Result<()> {
        fs::write(path, b"another file")
    }

    fn make_directory(path: &Path) -> io::Result<()> {
        fs::create_dir(path)?;
        make_file(&path.join("file"))
    }

    fn link_to_moved(path: &Path) -> io::Result<()> {
        symlink(moved(path), path)
    }

    fn link_to_nothing(path: &Path) -> io::Result<()> {
        symlink("missing", path)
    }

    fn link_to_itself(path: &Path) -> io::Result<()> {
        symlink(path, path)
    }

    fn make_fifo(path: &Path) -> io::Result<()> {
        Ok(mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0)?)
    }

    fn make_socket(path: &Path) -> io::Result<()> {
        UnixListener::bind(path).map(drop)
    }

    #[test]
    fn only_a_regular_file_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut options = OpenOptions::new();
        let options = options.read(true);
        assert!(is_lost(&open_regular_file(options, &path).unwrap_err()), "it is missing");
        for replace in OTHERS_FOR_FILE {
            make_file(&path).unwrap();
            assert!(open_regular_file(options, &path).is_ok());
            exchange(&path, replace);
            let error = open_regular_file(options, &path).unwrap_err();
            assert!(is_lost(&error), "{error}");
            assert!(is_lost(&open_regular_file(options, &path.join("inner")).unwrap_err()));
            assert!(find_metadata(&path).unwrap().is_some());
            remove_any(&path).unwrap();
            assert!(find_metadata(&path).unwrap().is_none());
            remove_any(&path).unwrap();
        }
        assert!(!is_lost(&Errno::IO.into()) && !is_lost(&Errno::ACCESS.into()), "a later try may succeed");
    }

    #[test]
    fn a_file_takes_the_place_of_any_other() {
        let directory = tempfile::tempdir().unwrap();
        let [path, new] = ["file", "new"].map(|name| directory.path().join(name));
        for replace in OTHERS_FOR_FILE {
            make_file(&path).unwrap();
            exchange(&path, replace);
            make_file(&new).unwrap();
            replace_any(&new, &path).unwrap();
            assert!(path.symlink_metadata().unwrap().is_file());
            assert!(!new.exists());
        }
    }
}
