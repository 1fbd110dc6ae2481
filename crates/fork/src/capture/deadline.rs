//! Waiting with a limit, for things that the kernel cannot be asked to wake us for in time.

use std::thread;
use std::time::{Duration, Instant};

/// How long a wait polls before it sleeps: what a fork of a small process takes. A sleeping CPU answers 20–30 µs later.
const SPIN: Duration = Duration::from_micros(500);

/// Longest sleep between two looks.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A wait sleeps this fraction of the time it has waited: it never adds more than that.
const SLEEP_DIVISOR: u32 = 16;

/// When an attempt must be over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    started: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now.
    pub(super) fn after(limit: Duration) -> Self {
        Self { started: Instant::now(), limit }
    }

    /// The limit that was set.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        self.started.elapsed() >= self.limit
    }
}

/// The pace of one wait: yields at first, then sleeps in proportion to the time waited.
#[derive(Debug)]
pub(super) struct Pace {
    started: Instant,
}

impl Pace {
    pub(super) fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// Lets others run until the next look is due.
    pub(super) fn rest(&self) {
        let waited = self.started.elapsed();
        if waited < SPIN {
            thread::yield_now();
        } else {
            thread::sleep((waited / SLEEP_DIVISOR).min(SLEEP_MAX));
        }
    }
}
