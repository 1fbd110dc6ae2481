//! Waiting for tracees, with a limit.
//!
//! A tracee on another CPU answers within microseconds, and sleeping for it would cost a wake-up of 20–30 µs on an idle
//! machine; one that has to share our CPU cannot answer before we sleep. So a wait looks for a moment, then sleeps.

use std::hint;
use std::time::{Duration, Instant};

use farfork_sys::alarm::Alarm;
use farfork_sys::ptrace::{self, Patience, Report};

/// How long a wait looks before it sleeps: what a system call of a tracee on another CPU takes, twice.
const LOOK: Duration = Duration::from_micros(20);

/// When an attempt must be over. Ends the waits of the thread that made it.
#[derive(Debug)]
pub(super) struct Deadline {
    started: Instant,
    limit: Duration,
    /// Without one (no timer left) a wait never sleeps.
    alarm: Option<Alarm>,
}

/// Why nothing was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// The deadline is over.
    TimedOut,
    /// There is no tracee.
    NoTracee,
}

impl Deadline {
    /// `limit` from now, for the calling thread.
    pub(super) fn after(limit: Duration) -> Self {
        Self { started: Instant::now(), limit, alarm: Alarm::after(limit).ok() }
    }

    /// The limit that was set.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        self.started.elapsed() >= self.limit
    }

    /// The next report of any tracee of this thread.
    pub(super) fn next_report(&self) -> Result<(i32, Report), Silence> {
        let looked = Instant::now();
        loop {
            let sleeps = self.alarm.is_some() && looked.elapsed() >= LOOK;
            let patience = if sleeps { Patience::Sleep } else { Patience::None };
            match ptrace::wait_any(patience) {
                Ok(Some(report)) => return Ok(report),
                Ok(None) if self.is_over() => return Err(Silence::TimedOut),
                Ok(None) => hint::spin_loop(),
                Err(_) => return Err(Silence::NoTracee),
            }
        }
    }
}
