//! The directory of a run, which contains everything that its tests make in files. It is in the temporary directory. A
//! symbolic link in `/run` leads to it, so that a later run with another temporary directory finds it.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::identity;

/// The directory with the links. Each link has the name of its run.
const LINKS: &str = "/run";

/// Makes the directory of the run with this name, and the link to it.
pub(super) fn create(name: &str) -> io::Result<PathBuf> {
    let directory = std::path::absolute(env::temp_dir())?.join(name);
    let advice = "set TMPDIR to a directory that can be written";
    fs::create_dir(&directory)
        .map_err(|error| io::Error::other(format!("directory {}: {error}; {advice}", directory.display())))?;
    let link = Path::new(LINKS).join(name);
    symlink(&directory, &link).map_err(|error| {
        let _ = fs::remove_dir(&directory);
        io::Error::other(format!("link {}: {error}", link.display()))
    })?;
    Ok(directory)
}

/// Returns the directory that the run with this name has, or would have.
pub(super) fn of_run(name: &str) -> PathBuf {
    let target = fs::read_link(Path::new(LINKS).join(name)).ok();
    target.filter(|target| target.ends_with(name)).unwrap_or_else(|| env::temp_dir().join(name))
}

/// Returns the directories whose entries have the names of runs.
pub(super) fn parents() -> [PathBuf; 2] {
    [env::temp_dir(), LINKS.into()]
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
