//! While replies are due, decides when to ping a silent server, and when to close the connection. Pure: time is an
//! argument.

use std::time::{Duration, Instant};

use super::ConnectionError;

/// Silence after which the client pings the server.
const PING_AFTER: Duration = Duration::from_secs(1);

/// Silence after which the client closes the connection.
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

    /// Starts the timer when the first reply becomes due.
    pub(super) fn start(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Restarts the timer because bytes were received.
    pub(super) fn reset(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Whether to send a ping now: true once for each period of silence. Fails if the server was silent for too long.
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
