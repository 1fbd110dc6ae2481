//! Decides when a silent server is pinged and when it is given up, while replies are due. Pure: time is an argument.

use std::time::{Duration, Instant};

use super::ConnectionError;

/// Silence after which the server is asked for a sign of life.
const PING_AFTER: Duration = Duration::from_secs(1);

/// Silence after which the connection is given up.
const TIMEOUT_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct KeepaliveTimer {
    since: Instant,
    ping_sent: bool,
}

impl KeepaliveTimer {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, ping_sent: false }
    }

    /// From now on something is owed.
    pub(super) fn start(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Something came.
    pub(super) fn reset(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Whether to ask for a sign of life, once.
    pub(super) fn should_ping(&mut self, now: Instant) -> Result<bool, ConnectionError> {
        let silent = now.saturating_duration_since(self.since);
        if silent >= TIMEOUT_AFTER {
            return Err(ConnectionError::NoResponse);
        }
        let is_due = silent >= PING_AFTER && !self.ping_sent;
        self.ping_sent |= is_due;
        Ok(is_due)
    }

    pub(super) fn next_timeout(&self) -> Instant {
        self.since + if self.ping_sent { TIMEOUT_AFTER } else { PING_AFTER }
    }
}
