//! The directory of a run's logs, which no other run uses. It is next to the build products, so that the logs survive a
//! checkout: `test-logs/PID`, and `test-logs/latest` is a link to the one of the latest run. A run locks its directory, because
//! its process number means nothing in another pid namespace, such as a container with the same build products.

use std::fs::{self, DirEntry, File, TryLockError};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

const PARENT: &str = "test-logs";
const LATEST: &str = "latest";

/// Number of ended runs whose logs are kept.
const KEPT_RUNS_MAX: usize = 5;

/// The directory of one run.
struct LockedDirectory {
    path: PathBuf,
    /// The directory is locked as long as this file is open.
    lock: File,
}

/// Makes the directory of this run, and removes those of old runs.
pub(super) fn create(workspace: &Workspace) -> Result<PathBuf> {
    let parent = workspace.products().join(PARENT);
    let LockedDirectory { path, lock } = create_in(&parent, process::id())
        .with_context(|| format!("no directory for logs can be made in {}", parent.display()))?;
    // Open until this process ends.
    std::mem::forget(lock);
    Ok(path)
}

fn create_in(parent: &Path, pid: u32) -> io::Result<LockedDirectory> {
    fs::create_dir_all(parent)?;
    // Only one run at a time makes and removes directories.
    let creation = File::open(parent)?;
    creation.lock()?;
    let name = free_name(parent, pid);
    let path = parent.join(&name);
    // A run that had the same process number has ended.
    remove(&path)?;
    remove_old(parent)?;
    fs::create_dir(&path)?;
    let lock = File::open(&path)?;
    lock.lock()?;
    // A rename replaces the link at once.
    let link = parent.join(format!("{LATEST}-{name}"));
    remove(&link)?;
    symlink(&name, &link)?;
    fs::rename(&link, parent.join(LATEST))?;
    Ok(LockedDirectory { path, lock })
}

/// Returns the process number, with a suffix if a run in another pid namespace has the same number.
fn free_name(parent: &Path, pid: u32) -> String {
    let mut name = pid.to_string();
    let mut number = 1;
    while is_locked(&parent.join(&name)) {
        number += 1;
        name = format!("{pid}-{number}");
    }
    name
}

/// Returns whether the run of a directory has not ended.
fn is_locked(directory: &Path) -> bool {
    File::open(directory).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Removes the directories of ended runs, except the latest.
fn remove_old(parent: &Path) -> io::Result<()> {
    let mut ended = Vec::new();
    for entry in fs::read_dir(parent)? {
        ended.extend(change_time_of_ended_run(&entry?));
    }
    ended.sort_by(|one, other| other.cmp(one));
    ended.iter().skip(KEPT_RUNS_MAX).try_for_each(|(_, path)| remove(path))
}

/// Returns the time at which the last log of an ended run was made, and the directory of the run.
fn change_time_of_ended_run(entry: &DirEntry) -> Option<(SystemTime, PathBuf)> {
    let is_of_run = entry.file_name().to_str()?.split('-').all(|part| part.parse::<u32>().is_ok());
    let changed = entry.metadata().and_then(|data| data.modified()).ok()?;
    (is_of_run && !is_locked(&entry.path())).then(|| (changed, entry.path()))
}

/// Removes a directory or file. It is no error if there is none.
fn remove(path: &Path) -> io::Result<()> {
    let is_directory = path.symlink_metadata().is_ok_and(|data| data.is_dir());
    let removed = if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("farfork-xtask-{}-{name}", process::id()))
    }

    /// Makes the directory of a run that has ended.
    fn make_ended(parent: &Path, pid: u32) -> PathBuf {
        create_in(parent, pid).unwrap().path
    }

    #[test]
    fn logs_of_running_and_of_the_latest_runs_are_kept() {
        let parent = scratch("log-directories");
        let running = create_in(&parent, 1).unwrap();
        fs::write(running.path.join("one.log"), "text").unwrap();
        let first = make_ended(&parent, 2);
        let later: Vec<_> = (3..).take(KEPT_RUNS_MAX + 1).map(|pid| make_ended(&parent, pid)).collect();
        let own = create_in(&parent, 100).unwrap();
        let latest = fs::canonicalize(parent.join(LATEST)).unwrap();
        let left =
            (running.path.join("one.log").exists(), first.exists(), later.iter().filter(|path| path.exists()).count());
        assert_eq!(latest, fs::canonicalize(&own.path).unwrap());
        assert_eq!(left, (true, false, KEPT_RUNS_MAX));
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn runs_with_one_process_number_have_logs_of_their_own() {
        let parent = scratch("log-numbers");
        let ended = make_ended(&parent, 1);
        fs::write(ended.join("one.log"), "text").unwrap();
        let first = create_in(&parent, 1).unwrap();
        assert_eq!((&first.path, first.path.join("one.log").exists()), (&ended, false), "logs of an ended run");
        fs::write(first.path.join("one.log"), "text").unwrap();
        let others = [(); 2].map(|()| create_in(&parent, 1).unwrap());
        assert!(first.path.join("one.log").exists(), "another run has removed the logs");
        assert!(others[0].path != first.path && others[0].path != others[1].path);
        fs::remove_dir_all(parent).unwrap();
    }
}
