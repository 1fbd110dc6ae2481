//! `ChildProcess`: a process that this program starts and waits for, with a time limit and a process group of its own.
//! `signals` ends all of them when this program gets a signal, `guard` ends them when it is killed, and `tree` finds their
//! descendants.

mod guard;
mod signals;
mod tree;

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::terminal::print_line;
pub(crate) use signals::end_run_by_signal;

/// setsid(1). It executes the program in the same process, unless it is the leader of a group already: then it starts a
/// further process, which no signal to the group reaches.
const SETSID: &str = "setsid";

/// Executes a program in the same process, after a line of its standard input. The program has no standard input: a read from
/// the terminal would stop it, because it is in the background.
const WAITING: &str = "read -r line && exec \"$@\" < /dev/null";

/// Interval between two checks whether a process has ended.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The running processes. The number of a process is also the number of its group.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn lock_running() -> MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running process.
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    /// Starts a process in a new process group, so that a signal can be sent to it and to the processes that it starts, and
    /// to no other. Takes program, arguments, environment and directory of `command`, and not its files.
    ///
    /// The program begins when the guard knows the group. So it ends even if this program is killed right after it has begun.
    pub(crate) fn start(command: &Command, stdout: Stdio, stderr: Stdio) -> Result<Self> {
        let mut waiting = waiting(command);
        // A session begins with a new group.
        if command.get_program() != SETSID {
            waiting.process_group(0);
        }
        // After a signal, the lock is never released, so that no further process starts.
        let mut running = lock_running();
        let child = waiting.stdout(stdout).stderr(stderr).spawn();
        let mut child = child.with_context(|| format!("{command:?} cannot be started"))?;
        running.push(child.id());
        guard::set_groups(&running);
        if let Some(mut input) = child.stdin.take() {
            // Fails if the process was killed.
            let _ = input.write_all(b"\n");
        }
        Ok(Self(child))
    }

    /// Waits until the process ends. After `limit`, kills it with all its descendants, and returns `None`.
    pub(crate) fn wait(mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                print_line(format_args!("\n== not done after {} s; these processes are killed:", limit.as_secs()));
                print_line(tree::kill(self.0.id()));
                self.0.wait()?;
                return Ok(None);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let mut running = lock_running();
        running.retain(|pid| *pid != self.0.id());
        guard::set_groups(&running);
    }
}

/// Returns a command that executes the program of `command` when it reads a line. If there is none, it ends.
fn waiting(command: &Command) -> Command {
    let mut waiting = Command::new("sh");
    waiting.args(["-c", WAITING, "sh"]).arg(command.get_program()).args(command.get_args()).stdin(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => waiting.env(name, value),
            None => waiting.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        waiting.current_dir(directory);
    }
    waiting
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
pub(crate) fn status(command: &Command, limit: Duration) -> Result<ExitStatus> {
    let status = ChildProcess::start(command, Stdio::inherit(), Stdio::inherit())?.wait(limit)?;
    status.with_context(|| format!("{command:?} was not done after {} s, and was killed", limit.as_secs()))
}

/// As `status`, and returns what the command wrote to standard error. Its standard output is discarded.
pub(crate) fn status_and_stderr(command: &Command, limit: Duration) -> Result<(ExitStatus, String)> {
    let (mut reader, writer) = io::pipe()?;
    let child = ChildProcess::start(command, Stdio::null(), writer.into())?;
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
        let script = "read line && exit 1; set -- $(cat /proc/$$/stat); [ $5 = $$ ]";
        assert!(status(&shell(script), LIMIT).unwrap().success());
    }

    /// So does a process whose group the guard does not know when this program is killed.
    #[test]
    fn a_process_without_permission_to_begin_ends() {
        let mut child = waiting(&shell("exit 3")).spawn().unwrap();
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert_eq!(status(&shell("exit 3"), LIMIT).unwrap().code(), Some(3));
    }

    #[test]
    fn a_process_has_the_environment_and_directory_of_the_command() {
        let mut command =
            shell("[ \"$FARFORK_TEST\" = 'a  b' ] && [ -z \"$HOME\" ] && [ \"$(pwd)\" = / ] && [ $# = 1 ]");
        command.args(["sh", "one word"]).env("FARFORK_TEST", "a  b").env_remove("HOME").current_dir("/");
        assert!(status(&command, LIMIT).unwrap().success());
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
        let (status, stderr) = status_and_stderr(&shell("echo out; echo err >&2; exit 3"), LIMIT).unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(3), "err\n"));
    }

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let error = status_and_stderr(&shell("sleep 100"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("sh was not done after 0 s"), "{error}");
        assert!(status(&shell("sleep 100"), Duration::from_millis(50)).is_err());
    }
}
