//! How long a server may say nothing while something is owed. Pure: time is an argument.

use std::time::{Duration, Instant};

use super::ConnectionError;

/// Silence after which the server is asked for a sign of life.
const ASK_AFTER: Duration = Duration::from_secs(1);

/// Silence after which the connection is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Silence {
    since: Instant,
    asked: bool,
}

impl Silence {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, asked: false }
    }

    /// From now on something is owed.
    pub(super) fn begins(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Something came.
    pub(super) fn heard(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Whether to ask for a sign of life, once.
    pub(super) fn must_ask(&mut self, now: Instant) -> Result<bool, ConnectionError> {
        let silent = now.saturating_duration_since(self.since);
        if silent >= GIVE_UP_AFTER {
            return Err(ConnectionError::Silent);
        }
        let is_due = silent >= ASK_AFTER && !self.asked;
        self.asked |= is_due;
        Ok(is_due)
    }

    pub(super) fn next_timeout(&self) -> Instant {
        self.since + if self.asked { GIVE_UP_AFTER } else { ASK_AFTER }
    }
}
