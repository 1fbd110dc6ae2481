//! `Janitor`: a process that outlives the supervisor, so that a killed supervisor leaves nothing. It waits for the
//! supervisor's end, removes the remains of the run, and exits. If the janitor is killed too, the next run cleans up.

use std::env;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farfork_sys::pidfd;

use super::group_set::GroupSet;
use super::{cleanup, identity, run_directory};
use crate::harness::wait;

/// First argument of a janitor. The next argument is the name of the run.
pub(crate) const JANITOR_ARGUMENT: &str = "--janitor";

/// Longest wait until the killed janitor has ended.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Longest wait for the supervisor's end: longer than any run.
const WAIT_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The supervisor's handle for the janitor.
pub(super) struct Janitor(Mutex<Child>);

impl Janitor {
    /// Starts the janitor of this run. `temporary` is the temporary directory, without symbolic links.
    pub(super) fn start(run_name: &str, temporary: &Path) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("test-janitor").arg(JANITOR_ARGUMENT).arg(run_name).env("TMPDIR", temporary);
        // A process group of its own and no output: signals of the terminal and closed pipes do not affect the janitor.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(Mutex::new(command.spawn()?)))
    }

    /// Kills the janitor after everything was removed.
    pub(super) fn stop(&self) {
        let mut process = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = process.kill();
        wait::poll_within(END_LIMIT, || process.try_wait().transpose());
    }
}

/// Waits for the supervisor's end, and removes the remains of its run. Runs in the janitor process.
pub(crate) fn clean_after(run_name: &str) -> ExitCode {
    // Sets the name in process lists, which would otherwise be `exe`.
    let _ = rustix::thread::set_name(c"test-janitor");
    let Some(supervisor) = identity::supervisor_of(run_name) else { return ExitCode::FAILURE };
    if let Ok(Some(process)) = supervisor.open()
        && !pidfd::wait_exit(&process, WAIT_LIMIT).unwrap_or(false)
    {
        return ExitCode::FAILURE;
    }
    // A later run that removes the same objects holds the lock until it has removed all of them.
    let Some(_lock) = cleanup::lock_removal() else { return ExitCode::FAILURE };
    let directory = run_directory::of_run(run_name, &env::temp_dir());
    // This process may have been moved to another group, such as the one of another login session.
    match GroupSet::find(run_name) {
        Ok(groups) if groups.exists() || directory.exists() => {
            let problems = cleanup::remove_all(&groups, &directory, run_name);
            if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
