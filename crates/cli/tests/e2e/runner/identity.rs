//! The name of a run, which contains the identity of its supervisor. The run's control groups and directory have this
//! name, so a later run finds the ones whose supervisor has ended.

use std::io;
use std::path::{Path, PathBuf};

use farfork_sys::process_identity::ProcessIdentity;

/// Prefix of the names of all runs.
const PREFIX: &str = "farfork-tests-";

/// Returns the name of this process's run.
pub(super) fn own_name() -> io::Result<String> {
    let own = ProcessIdentity::of(std::process::id().cast_signed())?;
    Ok(format!("{PREFIX}{}-{}", own.pid, own.start_ticks))
}

/// Returns the names of runs, among the entries of a directory, whose supervisors have ended.
pub(super) fn dead_names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| supervisor_of(name).is_some_and(|supervisor| is_dead(&supervisor))).collect()
}

/// Returns the entries of a directory that belong to the runs of one supervisor.
pub(super) fn entries_of(supervisor: u32, directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_of_supervisor = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(supervisor_of).is_some_and(|found| found.pid.cast_unsigned() == supervisor)
    };
    entries.filter(is_of_supervisor).collect()
}

/// Returns whether a run can have this name.
pub(super) fn is_name_of_run(name: &str) -> bool {
    supervisor_of(name).is_some()
}

/// Parses the supervisor from the name of a run.
pub(super) fn supervisor_of(name: &str) -> Option<ProcessIdentity> {
    let (pid, start_ticks) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Some(ProcessIdentity { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
}

/// Returns whether a supervisor has ended. If that is unknown, it counts as running.
fn is_dead(supervisor: &ProcessIdentity) -> bool {
    match supervisor.open() {
        Ok(process) => process.is_none(),
        Err(_) => false,
    }
}
