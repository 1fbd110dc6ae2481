//! `ChildProcess`: a process that this program starts and waits for, with a time limit and a process group of its own.
//! `signals` ends all of them when this program gets a signal, `guard` ends them when it is killed, and `tree` finds their
//! descendants.

mod guard;
mod signals;
mod tree;

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::terminal::print_line;
use guard::GroupGuard;
pub(crate) use signals::end_run_by_signal;

/// setsid(1). It executes the program in the same process, unless it is the leader of a group already: then it starts a
/// further process, which no signal to the group reaches.
const SETSID: &str = "setsid";

/// Interval between two checks whether a process has ended.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

static RUNNING: Mutex<Vec<RunningProcess>> = Mutex::new(Vec::new());

/// A process that runs, and its process group.
#[derive(Debug, Clone, Copy)]
struct RunningProcess {
    pid: u32,
    group: u32,
}

fn lock_running() -> MutexGuard<'static, Vec<RunningProcess>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running process.
pub(crate) struct ChildProcess {
    process: Child,
    running: RunningProcess,
    /// Dropped after the process has ended.
    _guard: GroupGuard,
}

impl ChildProcess {
    /// Starts a process in a new process group, so that a signal can be sent to it and to the processes that it starts, and
    /// to no other. It has no standard input: a read from the terminal would stop it, because it is in the background.
    ///
    /// The process ends even if this program is killed right after the start: the guard of the group has started before. Only a
    /// process that begins a session may continue, if this program is killed before the guard knows the group.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        // After a signal, the lock is never released, so that no further process starts.
        let mut all = lock_running();
        let mut guard = GroupGuard::start().context("sh(1) cannot be started")?;
        command.stdin(Stdio::null()).process_group(guard.group().cast_signed());
        let process = command.spawn().with_context(|| format!("{command:?} cannot be started"))?;
        let mut running = RunningProcess { pid: process.id(), group: guard.group() };
        if command.get_program() == SETSID {
            running.group = process.id();
            guard.add_group(running.group);
        }
        all.push(running);
        Ok(Self { process, running, _guard: guard })
    }

    /// Waits until the process ends. After `limit`, kills it with all its descendants, and returns `None`.
    pub(crate) fn wait(mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                print_line(format_args!("\n== not done after {} s; these processes are killed:", limit.as_secs()));
                print_line(tree::kill(self.running));
                self.process.wait()?;
                return Ok(None);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        lock_running().retain(|process| process.pid != self.running.pid);
    }
}

/// Returns a command that runs `program` in a session of its own.
pub(crate) fn in_own_session(program: &str) -> Command {
    let mut command = Command::new(SETSID);
    command.arg(program);
    command
}

/// Runs a command until it ends. It writes to the terminal itself.
///
/// # Errors
/// If it cannot be started, or is not done after `limit`.
pub(crate) fn status(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    let status = ChildProcess::start(command)?.wait(limit)?;
    status.with_context(|| format!("{command:?} was not done after {} s, and was killed", limit.as_secs()))
}

/// As `status`, and returns what the command wrote to standard error. Its standard output is discarded.
pub(crate) fn status_and_stderr(command: &mut Command, limit: Duration) -> Result<(ExitStatus, String)> {
    let (mut reader, writer) = io::pipe()?;
    let started = ChildProcess::start(command.stdout(Stdio::null()).stderr(writer));
    // The command has the write end. Without ours, the pipe ends with the processes that write to it.
    command.stderr(Stdio::null());
    let child = started?;
    let output = thread::spawn(move || {
        let mut output = Vec::new();
        reader.read_to_end(&mut output).map(|_| output)
    });
    let status = child.wait(limit)?;
    let Ok(output) = output.join() else { bail!("the output of {command:?} cannot be read") };
    let output = String::from_utf8_lossy(&output?).into_owned();
    let status = status.with_context(|| {
        let program = command.get_program().display();
        format!("{output}\n{program} was not done after {} s, and was killed", limit.as_secs())
    })?;
    Ok((status, output))
}

/// Returns a command that runs a script of a test.
#[cfg(test)]
pub(crate) fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn a_process_has_a_group_of_its_own_and_no_input() {
        let script =
            "read line && exit 1; set -- $(cat /proc/$$/stat /proc/$OWN/stat); [ $5 != ${57} ] && [ $5 != $$ ]";
        let own = std::process::id().to_string();
        assert!(status(shell(script).env("OWN", own), LIMIT).unwrap().success());
    }

    #[test]
    fn a_process_in_its_own_session_is_the_started_one() {
        let mut command = in_own_session("sh");
        command.args(["-c", "set -- $(cat /proc/$$/stat); [ $5 = $$ ] && [ $6 = $$ ] && [ $4 = $OWN ]"]);
        let own = std::process::id().to_string();
        assert!(status(command.env("OWN", own), LIMIT).unwrap().success());
    }

    #[test]
    fn standard_error_is_returned_with_the_status() {
        let (status, stderr) = status_and_stderr(&mut shell("echo out; echo err >&2; exit 3"), LIMIT).unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(3), "err\n"));
    }

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let error = status_and_stderr(&mut shell("sleep 100"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("sh was not done after 0 s"), "{error}");
        assert!(status(&mut shell("sleep 100"), Duration::from_millis(50)).is_err());
    }
}
