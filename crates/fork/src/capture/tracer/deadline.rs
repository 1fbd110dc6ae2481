//! Waiting for tracees, with a limit.
//!
//! A wait sleeps at once: a tracee is mostly woken on the CPU of the tracer, which must leave it first. (Looking for 20 µs
//! before sleeping made a step of a tracee twice as long; yielding gave whole time slices to others on a busy machine.)

use std::cell::Cell;
use std::time::{Duration, Instant};

use farfork_sys::alarm::Alarm;
use farfork_sys::ptrace::{self, Patience, Report};

thread_local! {
    /// A timer of this thread that no deadline uses now: to make one, and to delete it, takes longer than to look at a
    /// process's files.
    static SPARE: Cell<Option<Alarm>> = const { Cell::new(None) };
}

/// When an attempt must be over. Ends the waits of the thread that made it.
#[derive(Debug)]
pub(crate) struct Deadline {
    started: Instant,
    limit: Duration,
    /// Without one (no timer left) a wait never sleeps.
    alarm: Option<Alarm>,
}

/// Why nothing was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The deadline is over.
    TimedOut,
    /// There is no tracee.
    NoTracee,
}

impl Deadline {
    /// `limit` from now, for the calling thread.
    pub(crate) fn after(limit: Duration) -> Self {
        let spare = SPARE.take().filter(|spare| spare.arm(limit).is_ok());
        let alarm = spare.or_else(|| Alarm::after(limit).ok());
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
    pub(crate) fn next_report(&self) -> Result<(i32, Report), Silence> {
        // Of one tracee, a look before would find what sleeping finds, too.
        let patience = if self.alarm.is_some() { Patience::Sleep } else { Patience::None };
        loop {
            match ptrace::wait_any(patience) {
                Ok(Some(report)) => return Ok(report),
                Ok(None) if self.is_over() => return Err(Silence::TimedOut),
                Ok(None) if self.alarm.is_some() => {}
                Ok(None) => std::thread::yield_now(),
                Err(_) => return Err(Silence::NoTracee),
            }
        }
    }

    /// The same where several are at work, of whom some have reported already.
    pub(in crate::capture) fn next_of_several(&self) -> Result<(i32, Report), Silence> {
        ptrace::stop_at_hand().map_or_else(|| self.next_report(), Ok)
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
