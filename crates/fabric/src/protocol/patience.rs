//! How long a requester waits for an owner before it makes a new connection, and between attempts.
//!
//! A link that swallows packets looks like an owner that thinks. TCP would go on sending into it at ever longer
//! intervals, and come back late; a new connection finds out within a round trip. But if it is the owner that is
//! slow, new connections add to its load; so patience grows with each one that did not help, and returns to the
//! start with an answer.

use std::time::Duration;

/// How long nothing may come while something is expected. An owner answers in well under a millisecond; a busy
/// machine may stall it for longer.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// The longest such wait.
const SILENCE_MAX: Duration = Duration::from_secs(16);

/// The wait after the first failed attempt to connect.
const RETRY_MIN: Duration = Duration::from_millis(5);

/// The longest wait between attempts: what a link's return may cost a child that waits.
const RETRY_MAX: Duration = Duration::from_millis(500);

/// How long an attempt to connect may take: the network's round trip, with one lost packet.
pub(crate) const CONNECT_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a handshake may take: some round trips, and the peer's arithmetic while it has many others to do.
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(4);

/// The waits of a connection, as its fortunes go.
#[derive(Debug)]
pub(crate) struct Patience {
    silence: Duration,
    retry: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { silence: SILENCE_MIN, retry: RETRY_MIN }
    }
}

impl Patience {
    /// How long nothing may come while something is expected.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// How long an attempt to connect may take.
    pub(crate) fn connect(&self) -> Duration {
        CONNECT_WAIT_MAX
    }

    /// How long a handshake may take.
    pub(crate) fn handshake(&self) -> Duration {
        HANDSHAKE_WAIT_MAX
    }

    /// The owner answered.
    pub(crate) fn answered(&mut self) {
        *self = Self::default();
    }

    /// The owner was silent for too long.
    pub(crate) fn was_silent(&mut self) {
        self.silence = (self.silence * 2).min(SILENCE_MAX);
    }

    /// The connection failed; gives how long to wait before the next attempt.
    pub(crate) fn failed(&mut self) -> Duration {
        let wait = self.retry;
        self.retry = (self.retry * 2).min(RETRY_MAX);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limits_and_begin_anew_with_an_answer() {
        let mut patience = Patience::default();
        assert_eq!(patience.failed(), RETRY_MIN);
        for _ in 0..20 {
            patience.failed();
            patience.was_silent();
        }
        assert_eq!((patience.failed(), patience.silence()), (RETRY_MAX, SILENCE_MAX));
        patience.answered();
        assert_eq!((patience.failed(), patience.silence()), (RETRY_MIN, SILENCE_MIN));
    }
}
