//! Waits with time limits. No test waits forever: if a condition is not met in time, the test fails and names the
//! condition.

use std::io::Read;
use std::panic::panic_any;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::pidfd;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::print_error;

/// Interval between two checks of a condition. Short compared with the measured times, long compared with the cost of a
/// check.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Longest wait until a killed process has ended. The kernel frees its memory first, and a process in uninterruptible
/// sleep ends only after that sleep.
const KILLED_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until the pipes of an ended process are closed. A descendant may still have them open.
const OUTPUT_LIMIT: Duration = Duration::from_secs(60);

/// The panic payload of a wait that timed out. The runner recognizes timeouts by this type, and runs the test once
/// more.
pub(crate) struct TimedOut(pub(crate) String);

/// Fails the test because a wait timed out.
#[track_caller]
pub(crate) fn time_out(message: String) -> ! {
    panic_any(TimedOut(message))
}

/// The exit status and output of a command.
pub(crate) struct CommandOutput {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    /// Requires that the command succeeded. The message begins with the cause, because reports show its first line.
    #[track_caller]
    pub(crate) fn require_success(&self) {
        let cause = self.stderr.lines().rfind(|line| line.starts_with("farfork: ")).unwrap_or_default();
        assert!(self.status.success(), "{}; {cause}\n{}{}", self.status, self.stderr, self.stdout);
    }

    /// Requires that the command failed with this exit status and a message that has all these parts.
    #[track_caller]
    pub(crate) fn require_failure(&self, status: i32, parts: &[&str]) {
        assert_eq!(self.status.code(), Some(status), "{}{}", self.stdout, self.stderr);
        let missing = parts.iter().find(|part| !self.stderr.contains(**part));
        assert!(missing.is_none(), "no {missing:?} in {}", self.stderr);
    }
}

/// Waits until `condition` returns a value. Fails the test as a timeout if that takes longer than `limit`.
#[track_caller]
pub(crate) fn wait_until<T>(what: &str, limit: Duration, condition: impl FnMut() -> Option<T>) -> T {
    match poll_within(limit, condition) {
        Some(found) => found,
        None => time_out(format!("{what}: not within {} s", limit.as_secs_f32())),
    }
}

/// Calls `condition` until it returns a value. Returns `None` if that takes longer than `limit`.
pub(crate) fn poll_within<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = condition() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Waits for a child process, and kills it if it takes longer than `limit`.
#[track_caller]
pub(crate) fn wait_exit(child: &mut Child, what: &str, limit: Duration) -> ExitStatus {
    let pidfd = pidfd::open(child.id().cast_signed()).expect("our own child has not been waited for");
    if !pidfd::wait_exit(&pidfd, limit).expect("poll works") {
        // Unwinding drops the guard, which kills the child. Before that, the runner records where the process hangs.
        let _guard = KillGuard(child);
        time_out(format!("{what}: still running after {} s", limit.as_secs_f32()));
    }
    child.wait().expect("a child that has ended can be waited for")
}

/// As [`wait_exit`]. Also returns the process's output on its pipes.
#[track_caller]
pub(crate) fn wait_with_output(mut child: Child, what: &str, limit: Duration) -> CommandOutput {
    let stdout = child.stdout.take().map(read_in_background);
    let stderr = child.stderr.take().map(read_in_background);
    let status = wait_exit(&mut child, what, limit);
    let text = |reader: Option<Receiver<String>>| match reader.map(|reader| reader.recv_timeout(OUTPUT_LIMIT)) {
        None => String::new(),
        Some(Ok(text)) => text,
        Some(Err(_)) => time_out(format!(
            "{what}: it has ended ({status}), but its output is still open after {} s",
            OUTPUT_LIMIT.as_secs()
        )),
    };
    CommandOutput { status, stdout: text(stdout), stderr: text(stderr) }
}

/// Kills the process group of a leader, and waits for the leader. If the leader was already reaped, kills nothing,
/// because its process id may be reused.
pub(crate) fn kill_group(leader: &mut Child) {
    let pid = Pid::from_child(leader);
    let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if waitid(WaitId::Pid(pid), only_look).is_ok() {
        let _ = kill_process_group(pid, Signal::KILL);
        reap_killed(leader);
    }
}

/// Waits for a killed process. If the process does not end, fails the test, unless the test is already failing.
pub(crate) fn reap_killed(child: &mut Child) {
    if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
        return;
    }
    let pid = child.id();
    let has_ended = pidfd::open(pid.cast_signed()).and_then(|pidfd| pidfd::wait_exit(&pidfd, KILLED_LIMIT));
    if has_ended.unwrap_or(false) {
        let _ = child.wait();
        return;
    }
    let message = format!("process {pid} has not ended {} s after SIGKILL", KILLED_LIMIT.as_secs());
    if thread::panicking() {
        print_error(message);
    } else {
        time_out(message);
    }
}

/// Kills a process and waits for it when the guard is dropped.
struct KillGuard<'a>(&'a mut Child);

impl Drop for KillGuard<'_> {
    fn drop(&mut self) {
        let _ = self.0.kill();
        reap_killed(self.0);
    }
}

fn read_in_background(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output that was read before an error is still useful.
        let _ = pipe.read_to_end(&mut bytes);
        // send fails if the receiver has timed out.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
