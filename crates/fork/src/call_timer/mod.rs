//! The call timer: a process that ends interrupted system calls of other processes at their time limits.
//!
//! `capture` calls `watch_call`, the node calls `watch_child_calls`, and `farfork call-timer` calls `run`. The timer
//! has its own session. It outlives the daemon that started it while it has calls to end. If the timer is killed, the
//! only effect is that interrupted calls last for their whole limits again.

mod attempts;
mod backoff;
mod budget;
mod child_calls;
mod deadline;
mod event_loop;
mod expiry;
mod schedule;

#[cfg(test)]
mod tests;

use std::io::{self, PipeWriter, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use farfork_sys::companion;
use farfork_sys::process::ProcStat;

pub use child_calls::watch_child_calls;
pub(crate) use deadline::{CallDeadline, CallSite};
pub use event_loop::run;

/// The name of each thread of the timer. By this name, captures recognise a tracer that stops a thread only briefly.
pub const THREAD_NAME: &str = "call-timer";

/// The connection of this process to its timer.
static CLIENT: Mutex<CallTimerClient> = Mutex::new(CallTimerClient { argument: None, pipe: None });

struct CallTimerClient {
    /// The command-line argument that makes this program the timer. Without it, the timer is a thread.
    argument: Option<&'static str>,
    pipe: Option<PipeWriter>,
}

/// Starts the timer process: this program with `argument`, which must call [`run`]. Without a call of `start`, the
/// timer is a thread.
pub fn start(argument: &'static str) {
    let mut timer = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
    timer.argument = Some(argument);
    if let Err(error) = timer.connect() {
        tracing::warn!(%error, "the call timer cannot be started: waits that a capture interrupts may take longer");
    }
}

/// When a call must end, and the result that it then returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallExpiry {
    /// When the call must end, by CLOCK_MONOTONIC.
    pub(crate) deadline_ns: u64,
    pub(crate) result: i64,
}

// A stop interrupts a call, which then starts again with its whole time limit. Only a mark in the call number
// (`CallMark`) shows that a call is the restarted one: the other registers, and the memory to which they point, are the
// program's own. At the call's deadline, the timer stops the thread for a moment. If the thread is still in the marked
// call, the timer sets the result of an expired call and detaches.
//
//  capture, node ── CallDeadline ──▶ pipe ──▶ timer: due? asleep in the call? ─ stop ─ marked? ─ result ─ detach
//
// The timer has real-time priority within a budget of CPU time (`budget`).
/// Makes the timer end a thread's call.
pub(crate) fn watch_call(tid: i32, site: CallSite, end: CallExpiry) {
    let Ok(stat) = ProcStat::read(tid) else { return };
    let call_deadline =
        CallDeadline { tid, start_ticks: stat.start_ticks, site, deadline_ns: end.deadline_ns, result: end.result };
    if let Err(error) = CLIENT.lock().unwrap_or_else(PoisonError::into_inner).send(&call_deadline) {
        tracing::warn!(tid, %error, "a wait that was interrupted may take longer than its limit: there is no call timer");
    }
}

impl CallTimerClient {
    fn send(&mut self, call_deadline: &CallDeadline) -> io::Result<()> {
        let bytes = call_deadline.to_bytes();
        if self.pipe.as_mut().is_some_and(|input| input.write_all(&bytes).is_ok()) {
            return Ok(());
        }
        // The timer was killed: its end of the pipe is closed.
        self.pipe = None;
        self.connect()?.write_all(&bytes)
    }

    fn connect(&mut self) -> io::Result<&mut PipeWriter> {
        let (output, input) = io::pipe()?;
        match self.argument {
            Some(argument) => start_process(argument, output.into())?,
            None => {
                let run = move || run(&output.into());
                companion::spawn_in_owner(thread::Builder::new().name(THREAD_NAME.to_owned()), run)?;
            }
        }
        Ok(self.pipe.insert(input))
    }
}

/// Starts the timer from a thread of the tracer's owner, so that this thread reaps the timer. A tracer reaps no process
/// while it holds a seed.
fn start_process(argument: &'static str, input: OwnedFd) -> io::Result<()> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let run_timer = move || {
        // Do not use the path of the binary: an upgrade may have replaced the file.
        let mut command = Command::new("/proc/self/exe");
        command.arg(argument).current_dir("/").stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn().map(|mut child| {
            // `start_process` waits for this message.
            let _ = sender.send(Ok(()));
            child.wait()
        });
        if let Err(error) = started {
            let _ = sender.send(Err(error));
        }
    };
    companion::spawn_in_owner(thread::Builder::new().name("timer-reaper".to_owned()), run_timer)?;
    receiver.recv().map_err(io::Error::other)?
}
