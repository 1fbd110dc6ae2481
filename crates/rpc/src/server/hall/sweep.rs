//! A look, now and then, at connections that do not get on, and at sessions that nobody came back to.

use std::time::{Duration, Instant};

use super::Hall;

/// Between two looks.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

impl Hall {
    /// Does what is due: asks again for sessions that others had, and looks for connections that do not get on.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.claim_again(now);
        if now < self.sweep_due {
            return;
        }
        self.sweep_due = now + INTERVAL;
        self.complaints.begin();
        self.sweep_connections(now);
        if self.number == 0 {
            self.hub.registry().expire(now);
        }
    }

    fn sweep_connections(&mut self, now: Instant) {
        let (mut stalled, mut gone) = (Vec::new(), Vec::new());
        for (token, connection) in &self.connections {
            if connection.peer.is_stalled(now) {
                stalled.push(*token);
            } else if let Err(cause) = connection.check() {
                gone.push((*token, cause));
            } else if connection.peer.waits_for_room() {
                self.again.push(*token);
            }
        }
        for token in stalled {
            self.refuse(token, now, "it takes no replies, keeps the rest of a frame, or has not greeted");
        }
        for (token, cause) in gone {
            self.refuse(token, now, cause);
        }
    }
}
