//! The registry of all sessions of a server: attached to a connection, or parked until the client reconnects.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use farfork_wire::rpc::{OpenOutcome, SessionId};

use super::session::ServerSession;

/// Time for which a session without a connection is kept. A client that reconnects later gets `OpenOutcome::Expired`.
pub const SESSION_IDLE_MAX: Duration = Duration::from_secs(60);

/// Maximum number of sessions of a server.
const SESSIONS_MAX: usize = 1 << 16;

/// Maximum number of bytes of parked sessions. Beyond it, the sessions that were parked first are dropped.
const PARKED_BYTES_MAX: usize = 256 << 20;

/// The location of a connection: the number of its thread, and its number in that thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLocation {
    pub(crate) worker: usize,
    pub(crate) connection: u64,
}

/// A claim to a session, from an OPEN frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionClaim {
    pub(crate) slot: u16,
    pub(crate) session: SessionId,
    pub(crate) epoch: u32,
    pub(crate) is_resumed: bool,
}

/// The outcome of a claim.
#[derive(Debug)]
pub(crate) enum ClaimOutcome {
    /// The connection gets the session.
    Granted(Box<ServerSession>),
    /// The claim is refused.
    Refused(OpenOutcome),
    /// An older connection has the session. It must end before the claim is repeated.
    HeldBy(ConnectionLocation),
}

/// The location of a session.
#[derive(Debug)]
pub(crate) enum SessionLocation<'a> {
    /// On a connection.
    Attached(ConnectionLocation),
    /// In the registry.
    Parked(&'a mut ServerSession),
}

//            open, new                       the connection ends
//   (none) ------------> Attached(location) --------------------> Parked(session) -- SESSION_IDLE_MAX --> (none)
//                            ^   |  close --> (none)                  |
//                            |   +- resumed by a later connection:    | resumed
//                            |      the old connection must end first |
//                            +----------------------------------------+

/// All sessions of a server.
#[derive(Debug, Default)]
pub(crate) struct SessionRegistry {
    sessions: HashMap<SessionId, SessionEntry>,
    parked_bytes: usize,
}

#[derive(Debug)]
enum SessionEntry {
    Attached { location: ConnectionLocation, epoch: u32 },
    Parked { session: Box<ServerSession>, since: Instant, bytes: usize },
}

impl SessionRegistry {
    /// Assigns a session to a connection, unless the claim must be refused or an older connection has the session.
    pub(crate) fn claim(&mut self, claim: &SessionClaim, location: ConnectionLocation) -> ClaimOutcome {
        let known_epoch = match self.sessions.get(&claim.session) {
            None if claim.is_resumed => return ClaimOutcome::Refused(OpenOutcome::Expired),
            None if self.sessions.len() >= SESSIONS_MAX => return ClaimOutcome::Refused(OpenOutcome::TooManySessions),
            None => {
                self.attach(claim, location);
                let mut session = Box::new(ServerSession::new(claim.session, claim.slot));
                session.epoch = claim.epoch;
                return ClaimOutcome::Granted(session);
            }
            Some(_) if !claim.is_resumed => return ClaimOutcome::Refused(OpenOutcome::IdInUse),
            Some(SessionEntry::Attached { epoch, .. }) => *epoch,
            Some(SessionEntry::Parked { session, .. }) if session.slot != claim.slot => {
                return ClaimOutcome::Refused(OpenOutcome::IdInUse);
            }
            Some(SessionEntry::Parked { session, .. }) => session.epoch,
        };
        if claim.epoch <= known_epoch {
            return ClaimOutcome::Refused(OpenOutcome::Superseded);
        }
        if let Some(SessionEntry::Attached { location, .. }) = self.sessions.get(&claim.session) {
            return ClaimOutcome::HeldBy(*location);
        }
        let Some(SessionEntry::Parked { mut session, bytes, .. }) = self.attach(claim, location) else {
            unreachable!("it is known and not attached");
        };
        self.parked_bytes -= bytes;
        session.epoch = claim.epoch;
        ClaimOutcome::Granted(session)
    }

    fn attach(&mut self, claim: &SessionClaim, location: ConnectionLocation) -> Option<SessionEntry> {
        self.sessions.insert(claim.session, SessionEntry::Attached { location, epoch: claim.epoch })
    }

    /// Parks a session of a connection that ended.
    pub(crate) fn park(&mut self, session: Box<ServerSession>, now: Instant) {
        let bytes = session.held_bytes();
        self.parked_bytes += bytes;
        self.sessions.insert(session.id, SessionEntry::Parked { session, since: now, bytes });
        while self.parked_bytes > PARKED_BYTES_MAX {
            self.evict_oldest_parked();
        }
    }

    fn evict_oldest_parked(&mut self) {
        let parked = self.sessions.iter().filter_map(|(id, entry)| match entry {
            SessionEntry::Parked { since, bytes, .. } if *bytes > 0 => Some((*since, *id)),
            _ => None,
        });
        match parked.min() {
            Some((_, id)) => self.remove(&id),
            None => self.parked_bytes = 0,
        }
    }

    /// Removes a session.
    pub(crate) fn remove(&mut self, id: &SessionId) {
        if let Some(SessionEntry::Parked { bytes, .. }) = self.sessions.remove(id) {
            self.parked_bytes -= bytes;
        }
    }

    /// Whether there are no sessions.
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Finds a session.
    pub(crate) fn find(&mut self, id: &SessionId) -> Option<SessionLocation<'_>> {
        Some(match self.sessions.get_mut(id)? {
            SessionEntry::Attached { location, .. } => SessionLocation::Attached(*location),
            SessionEntry::Parked { session, .. } => SessionLocation::Parked(session),
        })
    }

    /// Removes the sessions that were parked for too long, unless a deferred reply is not complete yet.
    pub(crate) fn expire_parked(&mut self, now: Instant) {
        let parked_bytes = &mut self.parked_bytes;
        self.sessions.retain(|_, entry| match entry {
            SessionEntry::Parked { session, since, bytes } => {
                let stays = now.saturating_duration_since(*since) < SESSION_IDLE_MAX || session.has_deferred();
                *parked_bytes -= if stays { 0 } else { *bytes };
                stays
            }
            SessionEntry::Attached { .. } => true,
        });
    }
}
