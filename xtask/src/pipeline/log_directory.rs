//! The directory of a run's logs, which no other run uses. It is next to the build products, so that the logs survive a
//! checkout: `test-logs/PID`, and `test-logs/latest` is a link to the one of the latest run.

use std::fs::{self, DirEntry};
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

/// Makes the directory of this run, and removes those of old runs.
pub(super) fn create(workspace: &Workspace) -> Result<PathBuf> {
    let parent = workspace.products().join(PARENT);
    create_in(&parent, process::id())
        .with_context(|| format!("no directory for logs can be made in {}", parent.display()))
}

fn create_in(parent: &Path, pid: u32) -> io::Result<PathBuf> {
    fs::create_dir_all(parent)?;
    let name = pid.to_string();
    let own = parent.join(&name);
    // A run that had the same process number has ended.
    remove(&own)?;
    remove_old(parent)?;
    fs::create_dir(&own)?;
    // A rename replaces the link at once. Another run may do the same.
    let link = parent.join(format!("{LATEST}-{pid}"));
    remove(&link)?;
    symlink(&name, &link)?;
    fs::rename(&link, parent.join(LATEST))?;
    Ok(own)
}

/// Removes the directories of ended runs, except the latest.
fn remove_old(parent: &Path) -> io::Result<()> {
    let mut ended = Vec::new();
    for entry in fs::read_dir(parent)? {
        ended.extend(change_time_of_ended_run(&entry?));
    }
    ended.sort_by(|one, other| other.cmp(one));
    ended.iter().skip(KEPT_RUNS_MAX).try_for_each(|(_, pid)| remove(&parent.join(pid.to_string())))
}

/// Returns the time at which the last log of an ended run was made, and the process number of the run.
fn change_time_of_ended_run(entry: &DirEntry) -> Option<(SystemTime, u32)> {
    let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
    let is_running = Path::new("/proc").join(pid.to_string()).exists();
    // Another run may have removed the directory.
    let changed = entry.metadata().and_then(|data| data.modified()).ok()?;
    (!is_running).then_some((changed, pid))
}

/// Removes a directory or file. It is no error if there is none: another run may have removed it.
fn remove(path: &Path) -> io::Result<()> {
    let is_directory = path.symlink_metadata().is_ok_and(|data| data.is_dir());
    let removed = if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The number of a process that has ended.
    fn ended_pid() -> u32 {
        let mut process = Command::new("true").spawn().unwrap();
        process.wait().unwrap();
        process.id()
    }

    #[test]
    fn logs_of_running_and_of_the_latest_runs_are_kept() {
        let parent = std::env::temp_dir().join(format!("farfork-xtask-{}-log-directories", process::id()));
        let mut running = Command::new("sleep").arg("100").spawn().unwrap();
        let kept = create_in(&parent, running.id()).unwrap();
        fs::write(kept.join("one.log"), "text").unwrap();
        let first = create_in(&parent, ended_pid()).unwrap();
        let later: Vec<_> = (0..=KEPT_RUNS_MAX).map(|_| create_in(&parent, ended_pid()).unwrap()).collect();
        let own = create_in(&parent, process::id()).unwrap();
        let latest = fs::canonicalize(parent.join(LATEST)).unwrap();
        let left = (kept.join("one.log").exists(), first.exists(), later.iter().filter(|path| path.exists()).count());
        running.kill().unwrap();
        running.wait().unwrap();
        fs::write(own.join("one.log"), "text").unwrap();
        assert!(!create_in(&parent, process::id()).unwrap().join("one.log").exists(), "the run before had this number");
        assert_eq!(latest, fs::canonicalize(&own).unwrap());
        assert_eq!(left, (true, false, KEPT_RUNS_MAX));
        fs::remove_dir_all(parent).unwrap();
    }
}
