//! Threads that another process traces. A thread has at most one tracer (ptrace(2)): a capture waits for it, or fails.
//!
//! Most tracers detach within a moment: the call timer after its check, the tracer of another capture after its pause,
//! and a killed tracer when the kernel has torn it down. A debugger stays.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process::{self, ProcStatus};
use farfork_sys::ptrace;

use crate::call_timer;
use crate::capture::error::Refusal;

/// How long a tracer that is detaching may hold a thread. A killed tracer first waits for a CPU.
const LET_GO_LIMIT: Duration = Duration::from_millis(600);

/// Time between two checks of the tracer.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// Seizes a thread as soon as its tracer has detached.
///
/// # Errors
/// As `PTRACE_SEIZE` of ptrace(2): EPERM if the tracer stays.
pub(super) fn seize(tid: i32) -> io::Result<()> {
    let started_at = Instant::now();
    loop {
        let seized = ptrace::seize(tid, ptrace::OPTION_TRACE_SYSCALL_GOOD);
        let is_traced = seized.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        if !is_traced || started_at.elapsed() >= LET_GO_LIMIT || ProcStatus::read(tid).is_err() {
            return seized;
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Returns the tracer of a thread if it does not detach within the limit. Ignores the calling thread and the call timer.
pub(in crate::capture) fn staying(tid: i32, seen: &ProcStatus) -> Option<i32> {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let started_at = Instant::now();
    let mut tracer = seen.tracer;
    while tracer != 0 && tracer != own && !is_call_timer(tracer) {
        if started_at.elapsed() >= LET_GO_LIMIT {
            return Some(tracer);
        }
        thread::sleep(LOOK_INTERVAL);
        tracer = ProcStatus::read(tid).map_or(0, |status| status.tracer);
    }
    None
}

/// Whether a tracer is the call timer, or has ended since it was read: a thread of the timer ends after it has detached.
fn is_call_timer(tracer: i32) -> bool {
    process::thread_name(tracer, tracer).map_or(true, |name| name == call_timer::THREAD_NAME.as_bytes())
}

/// Returns the refusal of a thread that another process traces.
pub(super) fn refusal(tid: i32, tracer: i32) -> Refusal {
    Refusal::new(format!("thread {tid}"), format!("pid {tracer} traces it already; detach that tracer first"))
}

/// Returns the refusal of a surveyed process, if its tracer stays.
pub(in crate::capture) fn refusal_of_staying(pid: i32, seen: &ProcStatus) -> Option<Refusal> {
    staying(pid, seen).map(|tracer| refusal(pid, tracer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::sync::mpsc;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    /// Traces a process from another thread for `time`. Returns when the tracing has begun.
    fn trace_for(tid: i32, time: Duration) -> thread::JoinHandle<()> {
        trace_while(tid, move || thread::sleep(time))
    }

    /// Traces a process from another thread until `wait` returns. Returns when the tracing has begun.
    fn trace_while(tid: i32, wait: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
        let (report, traced) = mpsc::channel();
        let tracer = thread::spawn(move || {
            ptrace::seize(tid, ptrace::OPTION_TRACE_SYSCALL_GOOD).unwrap();
            report.send(()).unwrap();
            wait();
        });
        traced.recv().unwrap();
        tracer
    }

    #[test]
    fn a_tracer_that_detaches_is_waited_for() {
        let mut sleeper = sleeper();
        let tid = sleeper.id().cast_signed();
        // On a busy machine a tracer may detach late.
        const ATTEMPTS: usize = 50;
        let is_waited_for = |look: &dyn Fn() -> bool| {
            let tracer = trace_for(tid, LET_GO_LIMIT / 6);
            let has_gone = look();
            tracer.join().unwrap();
            has_gone
        };
        let has_let_go = || staying(tid, &ProcStatus::read(tid).unwrap()).is_none();
        assert!((0..ATTEMPTS).any(|_| is_waited_for(&has_let_go)));
        assert!((0..ATTEMPTS).any(|_| is_waited_for(&|| seize(tid).is_ok())));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn a_tracer_that_does_not_detach_is_named() {
        let mut sleeper = sleeper();
        let tid = sleeper.id().cast_signed();
        let (release, released) = mpsc::channel::<()>();
        let tracer = trace_while(tid, move || assert!(released.recv().is_err()));
        let seen = ProcStatus::read(tid).unwrap();
        assert_eq!(staying(tid, &seen), Some(seen.tracer));
        assert_eq!(seize(tid).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        drop(release);
        tracer.join().unwrap();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
