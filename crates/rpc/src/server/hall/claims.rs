//! What connections want of the registry: sessions, which may be with another connection, of this thread or another.

use std::time::{Duration, Instant};

use super::Hall;
use crate::server::hub::Letter;
use crate::server::peer::Wish;
use crate::server::registry::{Claim, Claimed, Location};

/// Between two attempts to get a session from a connection of another thread.
const PAUSE: Duration = Duration::from_millis(1);

impl Hall {
    pub(super) fn grant_wishes(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        for wish in connection.peer.take_wishes() {
            match wish {
                Wish::Claim(claim) => self.claim(token, &claim, now),
                Wish::Close(session) => self.hub.registry().remove(&session),
            }
        }
    }

    /// Gives a session to a connection, or makes the one end that has it.
    fn claim(&mut self, token: u64, claim: &Claim, now: Instant) {
        // Who is gone meanwhile gets nothing: a session that nobody takes would be nowhere.
        if !self.connections.contains_key(&token) {
            return;
        }
        let here = Location { worker: self.number, peer: token };
        let mut claimed = self.hub.registry().claim(claim, here);
        if let Claimed::Held(holder) = &claimed
            && holder.worker == self.number
        {
            let holder = *holder;
            self.end(holder.peer, now);
            if holder == here {
                return tracing::warn!("a client opened a session twice on one connection");
            }
            claimed = self.hub.registry().claim(claim, here);
        }
        let Some(connection) = self.connections.get_mut(&token) else { return };
        match claimed {
            Claimed::Granted(session) => connection.peer.grant(claim.slot, session),
            Claimed::Refused(outcome) => connection.peer.refuse(claim, outcome),
            Claimed::Held(holder) => {
                self.hub.post(holder.worker, Letter::Close(holder.peer));
                self.claims.push((token, *claim));
                self.claims_due = now + PAUSE;
            }
        }
    }

    /// Asks again for sessions that connections of other threads had.
    pub(super) fn claim_again(&mut self, now: Instant) {
        if self.claims_due > now {
            return;
        }
        for (token, claim) in std::mem::take(&mut self.claims) {
            self.claim(token, &claim, now);
            self.flush(token, now);
        }
    }
}
