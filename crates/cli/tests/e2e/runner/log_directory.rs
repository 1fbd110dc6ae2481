//! `LogDirectory`: the logs of the tests of a run. It is not in the directory of the run, and stays when the run has ended:
//! logs of failed tests are read later.

use std::env;
use std::fs::{self, DirEntry, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{identity, run_directory};

/// Environment variable with the directory for logs.
const VARIABLE: &str = "FARFORK_TEST_LOGS";

/// The directory with the usual log directory of each run.
const PARENT: &str = "e2e-logs";

/// Suffix of the names of these directories, which begin with the name of the run. A directory with only the name of a run
/// would be removed with the run, if `TMPDIR` names its parent.
const SUFFIX: &str = ".logs";

/// Time for which logs of earlier runs are kept.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The log directory of a run.
pub(super) struct LogDirectory {
    path: PathBuf,
    /// Whether the user has chosen the directory. Other runs may use it at the same time.
    is_chosen: bool,
}

impl LogDirectory {
    /// Makes the directory of this run, or uses the one that the user names. Removes old log directories of other runs.
    pub(super) fn create(run_name: &str) -> io::Result<Self> {
        let chosen = env::var_os(VARIABLE);
        let is_chosen = chosen.is_some();
        let advice = format!("set {VARIABLE} to a directory that can be written");
        let path = match chosen {
            // The report names the logs by absolute paths.
            Some(directory) => std::path::absolute(&directory).map_err(|error| {
                io::Error::other(format!("log directory {}: {error}; {advice}", directory.display()))
            })?,
            None => {
                let parent = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PARENT);
                remove_old(&parent);
                parent.join(format!("{run_name}{SUFFIX}"))
            }
        };
        run_directory::make_with_parents(&path)
            .map_err(|error| io::Error::other(format!("log directory {}: {error}; {advice}", path.display())))?;
        Ok(Self { path, is_chosen })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the log of a test.
    pub(super) fn path_of(&self, test: &str, suffix: &str) -> PathBuf {
        let path = self.path.join(format!("{}{suffix}.log", test.replace("::", ".")));
        // An earlier run may have left a log with this name.
        let _ = fs::remove_file(&path);
        path
    }

    /// Removes the directory at the end of a run without logs, unless the user has chosen it.
    pub(super) fn remove_if_empty(&self) {
        if !self.is_chosen {
            // Fails unless the directory is empty, as it is when all tests passed.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Opens a log to append to it. Makes its directory again if that was removed during the run, as `cargo clean` does.
pub(super) fn open_log(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        run_directory::make_with_parents(directory)?;
    }
    File::options().create(true).append(true).open(path)
}

/// Removes the log directories of ended runs that were not changed for a day.
fn remove_old(parent: &Path) {
    let is_of_ended_run = |name: &str| name.strip_suffix(SUFFIX).is_some_and(identity::is_name_of_dead_run);
    let is_old = |entry: &DirEntry| {
        let changed = entry.metadata().and_then(|data| data.modified());
        changed.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > AGE_MAX))
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_of_ended_run) && is_old(entry)) {
        if run_directory::is_own(&entry.path()) {
            // Another run may remove it too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
