//! The directory of a run, which contains everything that its tests make in files. It is in the temporary directory. A
//! symbolic link in `/run` leads to it, so that a later run with another temporary directory finds it.

use std::env;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use super::identity;

/// The directory with the links. Each link has the name of its run.
const LINKS: &str = "/run";

/// Permissions of directories that the runner makes, without those that the umask clears. Programs of other users read them.
const MODE: u32 = 0o755;

/// The permissions to write of the group and of others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Longest path of a socket (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The longest path of a worker's socket, in the directory of the run.
const LONGEST_SOCKET: &str = "w9999/supervisor.sock";

const ADVICE: &str = "set TMPDIR to a directory that can be written";

/// Returns the temporary directory as an absolute path without symbolic links, like the paths in the kernel's mount table.
pub(super) fn temporary_directory() -> io::Result<PathBuf> {
    let directory = env::temp_dir();
    let describe =
        |error: &dyn Display| io::Error::other(format!("directory {}: {error}; {ADVICE}", directory.display()));
    let real = directory.canonicalize().map_err(|error| describe(&error))?;
    match real.to_str() {
        None => Err(describe(&"its path is not UTF-8")),
        Some(LINKS) => Err(describe(&"links with the names of runs are in it")),
        // Lists of paths are separated by colons.
        Some(path) if path.contains(':') => Err(describe(&"its path has a colon")),
        Some(_) => Ok(real),
    }
}

/// Makes the directory of the run with this name, and the link to it.
pub(super) fn create(name: &str, temporary: &Path) -> io::Result<PathBuf> {
    let directory = temporary.join(name);
    if directory.join(LONGEST_SOCKET).as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let cause = "the paths of sockets in it would be too long";
        return Err(io::Error::other(format!("directory {}: {cause}; {ADVICE}", directory.display())));
    }
    make(&directory)
        .map_err(|error| io::Error::other(format!("directory {}: {error}; {ADVICE}", directory.display())))?;
    let link = Path::new(LINKS).join(name);
    symlink(&directory, &link).map_err(|error| {
        let _ = fs::remove_dir(&directory);
        io::Error::other(format!("link {}: {error}; run the tests as root, with {LINKS} writable", link.display()))
    })?;
    Ok(directory)
}

/// Locks a directory or control group of this process's run as long as the returned file is open.
pub(super) fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Returns whether the supervisor of the run with this name holds the lock of its directory.
pub(super) fn is_locked(name: &str) -> bool {
    let directory = of_run(name, &env::temp_dir());
    is_own(&directory) && has_lock(&directory)
}

/// Returns whether a supervisor holds the lock of a directory or control group.
pub(super) fn has_lock(directory: &Path) -> bool {
    let is_free = |file: File| flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    File::open(directory).is_ok_and(|file| !is_free(file))
}

/// Removes the directory of a run in which nothing was made, and its link.
pub(super) fn remove_empty(directory: &Path) {
    let _ = fs::remove_dir(directory);
    remove_links_into(directory);
}

/// Makes a directory that [`is_own`] recognizes.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().mode(MODE).create(directory)
}

/// As [`make`], with the directories above it. An existing directory stays as it is.
pub(super) fn make_with_parents(directory: &Path) -> io::Result<()> {
    DirBuilder::new().mode(MODE).recursive(true).create(directory)
}

/// Returns whether a path is a directory that only this user can have made and changed. Other users can make directories
/// in `/tmp` and `/var/tmp`, with files that name any process, control group or path.
pub(super) fn is_own(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| {
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & WRITABLE_BY_OTHERS == 0
    })
}

/// Returns the directory that the run with this name has, or would have.
pub(super) fn of_run(name: &str, temporary: &Path) -> PathBuf {
    let target = fs::read_link(Path::new(LINKS).join(name)).ok();
    target.filter(|target| target.ends_with(name)).unwrap_or_else(|| temporary.join(name))
}

/// Returns the names of the runs that have a directory or a link, and whose supervisors have ended.
pub(super) fn dead_names(temporary: &Path) -> impl Iterator<Item = String> {
    let mut with_directory = identity::dead_names_in(temporary);
    with_directory.retain(|name| is_own(&temporary.join(name)));
    with_directory.into_iter().chain(identity::dead_names_in(Path::new(LINKS)))
}

/// Returns the directories whose entries have the names of runs.
pub(super) fn parents(temporary: &Path) -> [PathBuf; 2] {
    [temporary.to_owned(), LINKS.into()]
}

/// Removes the links to a directory that was removed, and to directories in it: a test of the runner starts a run whose
/// directory is in the directory of its own run.
pub(super) fn remove_links_into(directory: &Path) {
    let entries = fs::read_dir(LINKS).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_name().to_str().is_some_and(identity::is_name_of_run));
    for link in links.map(|entry| entry.path()) {
        if fs::read_link(&link).is_ok_and(|target| target.starts_with(directory)) {
            let _ = fs::remove_file(link);
        }
    }
}
