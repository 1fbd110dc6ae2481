//! Bounded waiting. Nothing in these tests waits for ever: what does not happen in time is a failure that says what was
//! waited for.

use std::io::Read;
use std::process::{Child, ExitStatus};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_sys::pidfd;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Between two looks at a condition: short against what is measured, long against what it costs.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How a bounded command ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Waits until `condition` gives something.
pub(crate) fn until<T>(what: &str, limit: Duration, condition: impl FnMut() -> Option<T>) -> T {
    within(limit, condition).unwrap_or_else(|| panic!("{what}: not within {} s", limit.as_secs_f32()))
}

/// What `condition` gives, if it does in time.
pub(crate) fn within<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
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

/// Waits for a process of ours, and kills it when it takes longer than `limit`.
pub(crate) fn wait(child: &mut Child, what: &str, limit: Duration) -> ExitStatus {
    let pidfd = pidfd::open(child.id().cast_signed()).expect("our own child has not been waited for");
    if !pidfd::wait_exit(&pidfd, limit).expect("poll works") {
        child.kill().expect("our own child can be killed");
        child.wait().expect("a killed child ends");
        panic!("{what}: still running after {} s", limit.as_secs_f32());
    }
    child.wait().expect("a child that has ended can be waited for")
}

/// As [`wait`], with what the process writes to its pipes meanwhile.
pub(crate) fn wait_with_output(mut child: Child, what: &str, limit: Duration) -> Ended {
    let stdout = child.stdout.take().map(read_in_background);
    let stderr = child.stderr.take().map(read_in_background);
    let status = wait(&mut child, what, limit);
    let text = |reader: Option<JoinHandle<String>>| reader.map(|r| r.join().expect("a reader")).unwrap_or_default();
    Ended { status, stdout: text(stdout), stderr: text(stderr) }
}

/// Kills a process that leads a group, with all that are in it, and waits for it; one that was waited for has given its number
/// back, and nobody is killed.
pub(crate) fn kill_group(leader: &mut Child) {
    let pid = Pid::from_child(leader);
    let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if waitid(WaitId::Pid(pid), only_look).is_ok() {
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = leader.wait();
    }
}

fn read_in_background(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error still helps to understand it.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
