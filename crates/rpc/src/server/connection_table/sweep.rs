//! The periodic check of connections that make no progress or lost their trust, and of sessions that no client has
//! resumed.

use std::time::{Duration, Instant};

use super::ConnectionTable;

/// Interval between two sweeps.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl ConnectionTable {
    /// Does all periodic work that is due. It retries claims to sessions, and expires parked sessions. It closes connections
    /// that make no progress, and connections of clients that are no longer trusted.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.retry_claims(now);
        if now < self.sweep_due {
            return;
        }
        self.sweep_due = now + SWEEP_INTERVAL;
        self.log.begin_interval();
        self.sweep_connections(now);
        if self.worker == 0 {
            self.shared.registry().expire_parked(now);
        }
    }

    fn sweep_connections(&mut self, now: Instant) {
        let (mut stalled, mut gone) = (Vec::new(), Vec::new());
        for (token, connection) in &self.connections {
            if connection.protocol.is_stalled(now) {
                stalled.push(*token);
            } else if let Err(cause) = connection.check_client_trusted() {
                gone.push((*token, cause));
            } else if connection.protocol.is_payload_blocked() {
                self.requeued.push(*token);
            }
        }
        for token in stalled {
            self.disconnect_logged(token, now, "it reads no replies, sends only part of a frame, or has sent no hello");
        }
        for (token, cause) in gone {
            self.disconnect_logged(token, now, cause);
        }
    }
}
