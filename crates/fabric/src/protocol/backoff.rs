//! The timeouts of a requester: for a reply before it reconnects, and between attempts to connect.

use std::time::Duration;

/// Smallest response timeout. An owner replies in well under a millisecond; a busy machine may delay the reply.
const RESPONSE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Largest response timeout.
const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_secs(16);

/// Delay after the first failed attempt to connect.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(5);

/// Longest delay between attempts to connect. After a link is repaired, a child may wait for this time.
const RETRY_DELAY_MAX: Duration = Duration::from_millis(500);

/// Longest time for an attempt to connect: a network round trip with one lost packet.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest time for a handshake: some round trips, and the peer's computation while it handles many handshakes.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(4);

// A link that drops packets looks like a slow owner. TCP retransmits into such a link at ever longer intervals and
// recovers late; a new connection recovers within a round trip. If the owner itself is slow, new connections add to its
// load. So each expiry of the response timeout doubles the timeout, and a reply resets it.

/// The current timeouts of a connection.
#[derive(Debug)]
pub(crate) struct Backoff {
    response_timeout: Duration,
    retry_delay: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { response_timeout: RESPONSE_TIMEOUT_MIN, retry_delay: RETRY_DELAY_MIN }
    }
}

impl Backoff {
    /// Longest time in which nothing may arrive while a reply is due.
    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// Longest time for an attempt to connect.
    pub(crate) fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT
    }

    /// Longest time for a handshake.
    pub(crate) fn handshake_timeout(&self) -> Duration {
        HANDSHAKE_TIMEOUT
    }

    /// Resets the timeouts after a reply of the owner.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Doubles the response timeout after the owner was silent for too long.
    pub(crate) fn double_response_timeout(&mut self) {
        self.response_timeout = (self.response_timeout * 2).min(RESPONSE_TIMEOUT_MAX);
    }

    /// Returns the delay before the next attempt to connect, and doubles it for the attempt after that.
    pub(crate) fn next_retry_delay(&mut self) -> Duration {
        let wait = self.retry_delay;
        self.retry_delay = (self.retry_delay * 2).min(RETRY_DELAY_MAX);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_limit_and_is_reset_by_an_answer() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next_retry_delay(), RETRY_DELAY_MIN);
        for _ in 0..20 {
            backoff.next_retry_delay();
            backoff.double_response_timeout();
        }
        assert_eq!((backoff.next_retry_delay(), backoff.response_timeout()), (RETRY_DELAY_MAX, RESPONSE_TIMEOUT_MAX));
        backoff.reset();
        assert_eq!((backoff.next_retry_delay(), backoff.response_timeout()), (RETRY_DELAY_MIN, RESPONSE_TIMEOUT_MIN));
    }
}
