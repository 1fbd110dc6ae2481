//! Waits for tracees, with a time limit.
//!
//! A wait sleeps at once: a tracee is mostly woken on the tracer's CPU, which the tracer must leave first. Polling for
//! 20 µs before made a step of a tracee twice as long. Yielding gave others whole time slices on a busy machine.

use std::cell::Cell;
use std::time::{Duration, Instant};

use farfork_sys::ptrace::{self, TraceeEvent, WaitMode};
use farfork_sys::syscall_alarm::SyscallAlarm;

thread_local! {
    /// A timer of this thread that no deadline uses now: to make one, and to delete it, takes longer than to look at a
    /// process's files.
    static SPARE: Cell<Option<SyscallAlarm>> = const { Cell::new(None) };
}

/// When an attempt must be over. Ends the waits of the thread that made it.
#[derive(Debug)]
pub(crate) struct Deadline {
    started: Instant,
    limit: Duration,
    /// Without one (no timer left) a wait never sleeps.
    alarm: Option<SyscallAlarm>,
}

/// Why nothing was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitError {
    /// The deadline is over.
    TimedOut,
    /// There is no tracee.
    NoTracee,
}

impl Deadline {
    /// `limit` from now, for the calling thread.
    pub(crate) fn after(limit: Duration) -> Self {
        let spare = SPARE.take().filter(|spare| spare.arm(limit).is_ok());
        let alarm = spare.or_else(|| SyscallAlarm::armed(limit).ok());
        Self { started: Instant::now(), limit, alarm }
    }

    /// The limit that was set.
    pub(in crate::capture) fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether it is over.
    pub(in crate::capture) fn is_over(&self) -> bool {
        self.started.elapsed() >= self.limit
    }

    /// The next report of any tracee of this thread.
    pub(crate) fn wait_report(&self) -> Result<(i32, TraceeEvent), WaitError> {
        // Of one tracee, a look before would find what sleeping finds, too.
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

    /// The same where several are at work, of whom some have reported already.
    pub(in crate::capture) fn poll_or_wait_report(&self) -> Result<(i32, TraceeEvent), WaitError> {
        ptrace::poll_stop().map_or_else(|| self.wait_report(), Ok)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.take()
            && alarm.disarm().is_ok()
        {
            // A thread that ends has no place for it any more.
            let _ = SPARE.try_with(|spare| spare.set(Some(alarm)));
        }
    }
}
