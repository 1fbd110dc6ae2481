//! Log lines about misbehaving peers. Each line names the peer, and the rate is limited so that a person can read them.

use std::fmt;
use std::time::{Duration, Instant};

/// Maximum number of lines in one interval, so that many misbehaving peers do not fill the disk.
const LINES_MAX: u32 = 10;

/// Length of an interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// The number of lines in the current interval.
#[derive(Debug)]
pub(crate) struct RateLimitedLog {
    interval_began: Instant,
    lines: u32,
    /// Number of events that were not logged in this interval.
    suppressed: u32,
}

impl RateLimitedLog {
    pub(crate) fn new(now: Instant) -> Self {
        Self { interval_began: now, lines: 0, suppressed: 0 }
    }

    /// Logs that a peer's connection is closed.
    pub(crate) fn log_disconnect(&mut self, now: Instant, peer: &str, cause: &dyn fmt::Display) {
        if self.allow_line(now) {
            tracing::warn!(peer, %cause, "the fabric's server ends a connection");
        }
    }

    /// Logs that a peer's request is refused.
    pub(crate) fn log_refusal(&mut self, now: Instant, peer: &str, what: &dyn fmt::Display) {
        if self.allow_line(now) {
            tracing::warn!(peer, %what, "the fabric's server refuses a request");
        }
    }

    fn allow_line(&mut self, now: Instant) -> bool {
        if let Some(unnamed) = self.begin_interval(now) {
            tracing::warn!(unnamed, "the fabric's server ended further connections, or refused further requests");
        }
        self.take_line()
    }

    /// Starts another interval if the current one is over. Returns the number of events that were not logged in it, if
    /// any.
    fn begin_interval(&mut self, now: Instant) -> Option<u32> {
        if now.saturating_duration_since(self.interval_began) < INTERVAL {
            return None;
        }
        let unnamed = self.suppressed;
        *self = Self::new(now);
        (unnamed > 0).then_some(unnamed)
    }

    fn take_line(&mut self) -> bool {
        let may = self.lines < LINES_MAX;
        if may {
            self.lines += 1
        } else {
            self.suppressed += 1
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_peers_are_counted_instead_of_named() {
        let start = Instant::now();
        let mut rate_limited_log = RateLimitedLog::new(start);
        assert_eq!((0..10_000).filter(|_| rate_limited_log.take_line()).count(), LINES_MAX as usize);
        assert_eq!(rate_limited_log.begin_interval(start + INTERVAL / 2), None);
        assert_eq!(rate_limited_log.begin_interval(start + INTERVAL), Some(10_000 - LINES_MAX));
        assert!(rate_limited_log.take_line());
        assert_eq!(rate_limited_log.begin_interval(start + 2 * INTERVAL), None);
    }
}
