//! A connection's claims to sessions in the registry. Another connection, of any thread, may have the session.

use std::time::{Duration, Instant};

use super::ConnectionTable;
use crate::server::protocol::SessionRequest;
use crate::server::session_registry::{ClaimOutcome, ConnectionLocation, SessionClaim};
use crate::server::shared_state::WorkerMessage;

/// Interval between repeated claims to a session that a connection of another thread has.
const CLAIM_RETRY_INTERVAL: Duration = Duration::from_millis(1);

impl ConnectionTable {
    pub(super) fn handle_session_requests(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        for session_request in connection.protocol.take_session_requests() {
            match session_request {
                SessionRequest::Claim(claim) => self.claim_session(token, &claim, now),
                SessionRequest::Close(session) => self.shared.registry().remove(&session),
            }
        }
    }

    /// Gives a session to a connection. If an older connection has the session, closes that connection first.
    fn claim_session(&mut self, token: u64, claim: &SessionClaim, now: Instant) {
        // A connection that was closed since the claim must not get the session: the session would be lost.
        if !self.connections.contains_key(&token) {
            return;
        }
        let location = ConnectionLocation { worker: self.worker, connection: token };
        let mut claimed = self.shared.registry().claim(claim, location);
        if let ClaimOutcome::HeldBy(holder) = &claimed
            && holder.worker == self.worker
        {
            let holder = *holder;
            self.remove_connection(holder.connection, now);
            if holder == location {
                return tracing::warn!("a client opened a session twice on one connection");
            }
            claimed = self.shared.registry().claim(claim, location);
        }
        let Some(connection) = self.connections.get_mut(&token) else { return };
        match claimed {
            ClaimOutcome::Granted(session) => connection.protocol.attach_session(claim.slot, session),
            ClaimOutcome::Refused(outcome) => connection.protocol.refuse_session(claim, outcome),
            ClaimOutcome::HeldBy(holder) => {
                self.shared.send_message(holder.worker, WorkerMessage::CloseConnection(holder.connection));
                self.pending_claims.push((token, *claim));
                self.claims_due = now + CLAIM_RETRY_INTERVAL;
            }
        }
    }

    /// Repeats the claims to sessions that connections of other threads had.
    pub(super) fn retry_claims(&mut self, now: Instant) {
        if self.claims_due > now {
            return;
        }
        for (token, claim) in std::mem::take(&mut self.pending_claims) {
            self.claim_session(token, &claim, now);
            self.flush(token, now);
        }
    }
}
