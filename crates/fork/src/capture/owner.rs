//! The thread that captures, and then owns the template until the seed is dropped: ptrace ties a tracee to a thread.
//!
//! ```text
//!  prepare ── spawn ──▶ attempt ── answer ──▶ parked ◀── Template dropped ── end, reap ──▶ thread ends
//!                          └─ error: thread ends, and with it the kernel lets go of whatever did not stop
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::attempt::{self, Outcome};
use super::error::CaptureError;
use super::{CaptureOptions, Captured};

/// How much longer than its limit an attempt may take until it is given up: its thread then hangs in a system call of
/// the kernel's own making (a file of /proc whose lock is held).
const GRACE: Duration = Duration::from_secs(2);

/// How long the end of a template may take: its kill and its reaping have limits that add up to less.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Stack of a tracer thread, in bytes; one is parked for each seed.
const STACK_BYTES: usize = 256 << 10;

/// The process that holds a seed's memory. Dropping it ends a template; a frozen parent runs on.
#[derive(Debug)]
pub struct Template {
    pid: i32,
    /// Its end lets the owner thread go on.
    keep: Option<Sender<()>>,
    /// Ends with the owner thread.
    ended: Mutex<Receiver<()>>,
}

impl Template {
    /// Process whose memory the seed's extents name.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        drop(self.keep.take());
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(END_LIMIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(template = self.pid, "a template did not end within {END_LIMIT:?}");
        }
    }
}

/// Captures `pid` in a thread of its own.
pub(super) fn prepare(pid: i32, options: CaptureOptions) -> Result<Captured, CaptureError> {
    let limit = options.timeout + GRACE;
    let timeout = options.timeout;
    let (answer, answered) = mpsc::sync_channel(1);
    // The phases of an attempt are parts of what this thread is in.
    let phase = tracing::Span::current();
    thread::Builder::new()
        .name(format!("tracer-{pid}"))
        .stack_size(STACK_BYTES)
        .spawn(move || own(pid, options, phase, &answer))
        .map_err(CaptureError::Thread)?;
    match answered.recv_timeout(limit) {
        Ok(captured) => captured,
        Err(RecvTimeoutError::Timeout) => {
            Err(CaptureError::TimedOut { pid, limit: timeout, phase: "reading its state from the kernel" })
        }
        Err(RecvTimeoutError::Disconnected) => Err(CaptureError::TracerLost { pid }),
    }
}

/// The life of an owner thread.
fn own(
    pid: i32,
    mut options: CaptureOptions,
    phase: tracing::Span,
    answer: &SyncSender<Result<Captured, CaptureError>>,
) {
    let attempt = || phase.in_scope(|| attempt::capture(pid, &mut options));
    let captured = catch_unwind(AssertUnwindSafe(attempt));
    drop(phase);
    let Outcome { mut held, descriptor, shared_copies, times } = match captured {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => return drop(answer.send(Err(error))),
        Err(_panic) => return drop(answer.send(Err(CaptureError::TracerLost { pid }))),
    };
    let (keep, kept) = mpsc::channel::<()>();
    let (ends_with_us, ended) = mpsc::channel();
    let template = Template { pid: held.pid(), keep: Some(keep), ended: Mutex::new(ended) };
    let captured = Captured { descriptor, template, shared_copies, times };
    match answer.send(Ok(captured)) {
        // Nothing is ever sent: this is the end of `keep`.
        Ok(()) => drop(kept.recv()),
        // Nobody waits any more. The template comes back in the error, and its drop must not wait for this very thread.
        Err(unclaimed) => {
            drop(ends_with_us);
            drop(unclaimed);
            return held.end(None);
        }
    }
    held.end(None);
    drop(held);
    drop(ends_with_us);
}
