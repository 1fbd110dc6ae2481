//! Waits for tracees, with a time limit.
//!
//! A wait sleeps at once: a tracee is mostly woken on the tracer's CPU, which the tracer must leave first. Polling for 20 µs
//! before each sleep made a step of a tracee twice as long. Yielding gave other threads whole time slices on a busy machine.

use std::cell::Cell;
use std::time::{Duration, Instant};

use farfork_sys::ptrace::{self, TraceeEvent, WaitMode};
use farfork_sys::syscall_alarm::SyscallAlarm;

thread_local! {
    /// A timer of this thread that no deadline uses now. Creating and deleting a timer takes longer than surveying a
    /// process's files.
    static SPARE: Cell<Option<SyscallAlarm>> = const { Cell::new(None) };
}

/// The time limit of an attempt. Its end interrupts the waits of the thread that created the deadline.
#[derive(Debug)]
pub(crate) struct Deadline {
    started: Instant,
    limit: Duration,
    /// `None` if the kernel had no timer left. Waits then poll instead of sleeping.
    alarm: Option<SyscallAlarm>,
}

/// Why a wait returned no report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitError {
    /// The deadline has passed.
    TimedOut,
    /// There is no tracee.
    NoTracee,
}

impl Deadline {
    /// A deadline `limit` from now, for the calling thread.
    pub(crate) fn after(limit: Duration) -> Self {
        let spare = SPARE.take().filter(|spare| spare.arm(limit).is_ok());
        let alarm = spare.or_else(|| SyscallAlarm::armed(limit).ok());
        Self { started: Instant::now(), limit, alarm }
    }

    /// The limit that was set.
    pub(in crate::capture) fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether the deadline has passed.
    pub(in crate::capture) fn is_over(&self) -> bool {
        self.started.elapsed() >= self.limit
    }

    /// Waits for the next report of any tracee of this thread.
    pub(crate) fn wait_report(&self) -> Result<(i32, TraceeEvent), WaitError> {
        // Do not poll first: with one tracee, polling finds nothing that the wait would not find.
        let wait_mode = if self.alarm.is_some() { WaitMode::Block } else { WaitMode::NoWait };
        loop {
            match ptrace::wait_any(wait_mode) {
                Ok(Some(report)) => return Ok(report),
                Ok(None) if self.is_over() => return Err(WaitError::TimedOut),
                Ok(None) if self.alarm.is_some() => {}
                Ok(None) => std::thread::yield_now(),
                Err(_) => return Err(WaitError::NoTracee),
            }
        }
    }

    /// Waits for the end of a tracee of this thread, and reaps it. Ignores all other reports. Returns whether it has ended.
    pub(in crate::capture) fn wait_end(&self, pid: i32) -> bool {
        while !self.is_over() {
            match self.wait_report() {
                Ok((tid, TraceeEvent::Ended)) => {
                    // Also another tracee: until it is reaped, the kernel repeats the report of its end, and no wait sleeps.
                    let _ = ptrace::reap(tid);
                    if tid == pid {
                        return true;
                    }
                }
                Ok((_, TraceeEvent::Stopped { .. })) => {}
                Err(WaitError::TimedOut) => return false,
                Err(WaitError::NoTracee) => return true,
            }
        }
        false
    }

    /// As `wait_report`, but polls first. For several tracees at work, of which some may have reported already.
    pub(in crate::capture) fn poll_or_wait_report(&self) -> Result<(i32, TraceeEvent), WaitError> {
        ptrace::poll_stop().map_or_else(|| self.wait_report(), Ok)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.take()
            && alarm.disarm().is_ok()
        {
            // A thread that is ending may have lost its thread-local storage.
            let _ = SPARE.try_with(|spare| spare.set(Some(alarm)));
        }
    }
}
