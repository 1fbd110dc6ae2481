//! `Janitor`: a process that outlives the supervisor, so that a killed supervisor leaves nothing. It waits for the end
//! of the supervisor, removes the remains of the run, and ends. If the janitor is killed too, the next run cleans up.

use std::env;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farfork_sys::pidfd;

use super::group_set::GroupSet;
use super::{cleanup, identity};
use crate::harness::wait;

/// The first argument of a janitor. The name of the run follows.
pub(crate) const JANITOR_ARGUMENT: &str = "--janitor";

/// For the killed janitor to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Longer than any run: the janitor must not wait forever either.
const WAIT_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The supervisor's handle of the janitor.
pub(super) struct Janitor(Mutex<Child>);

impl Janitor {
    /// Starts the janitor of this process's run.
    pub(super) fn start(run_name: &str) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("test-janitor").arg(JANITOR_ARGUMENT).arg(run_name);
        // Signals of the terminal and readers of the output must not affect it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(Mutex::new(command.spawn()?)))
    }

    /// Ends the janitor, after everything was removed.
    pub(super) fn stop(&self) {
        let mut process = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = process.kill();
        wait::poll_within(END_LIMIT, || process.try_wait().transpose());
    }
}

/// Waits for the supervisor's end, and removes the remains of its run.
pub(crate) fn clean_after(run_name: &str) -> ExitCode {
    // The name in lists of processes, which would otherwise be `exe`.
    let _ = rustix::thread::set_name(c"test-janitor");
    let Some(supervisor) = identity::supervisor_of(run_name) else { return ExitCode::FAILURE };
    if let Ok(Some(process)) = supervisor.open()
        && !pidfd::wait_exit(&process, WAIT_LIMIT).unwrap_or(false)
    {
        return ExitCode::FAILURE;
    }
    let directory = env::temp_dir().join(run_name);
    match GroupSet::named(run_name) {
        Ok(groups) if groups.exists() || directory.exists() => {
            let problems = cleanup::remove_all(&groups, &directory, run_name);
            if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
