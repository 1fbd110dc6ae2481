//! The name of a run, which contains the identity of its supervisor. The run's control groups and directory have this
//! name, so a later run finds the ones whose supervisor has ended. The supervisor also locks them, because its process id means
//! nothing in another pid namespace, from which the directory may not be visible.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use farfork_sys::pidfd;
use farfork_sys::process_identity::ProcessIdentity;
use rustix::process::geteuid;

use super::run_directory;

/// Prefix of the names of all runs.
const PREFIX: &str = "farfork-tests-";

/// Returns the name of this process's run.
pub(super) fn own_name() -> io::Result<String> {
    Ok(name_of(&ProcessIdentity::of(std::process::id().cast_signed())?))
}

/// Returns the name of the run of a supervisor.
pub(crate) fn name_of(supervisor: &ProcessIdentity) -> String {
    format!("{PREFIX}{}-{}", supervisor.pid, supervisor.start_ticks)
}

/// Returns the names of runs, among the entries of a directory, whose supervisors have ended. Ignores entries of other
/// users, who can give any name to a file in `/tmp`.
pub(super) fn dead_names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let owned = entries.filter(|entry| is_own_entry(&entry.path()) && !run_directory::has_lock(&entry.path()));
    let names = owned.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_name_of_dead_run(name)).collect()
}

/// Returns whether this user owns a file, a directory, a control group or a symbolic link itself.
pub(super) fn is_own_entry(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.uid() == geteuid().as_raw())
}

/// Returns whether this is the name of a run whose supervisor has ended.
pub(super) fn is_name_of_dead_run(name: &str) -> bool {
    supervisor_of(name).is_some_and(|supervisor| is_dead(&supervisor)) && !run_directory::is_locked(name)
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

/// Returns whether a supervisor has ended. A zombie has ended too: only its parent can reap it. If the state is unknown,
/// the supervisor counts as running.
fn is_dead(supervisor: &ProcessIdentity) -> bool {
    match supervisor.open() {
        Ok(None) => true,
        Ok(Some(process)) => pidfd::wait_exit(&process, Duration::ZERO).unwrap_or(false),
        Err(_) => false,
    }
}
