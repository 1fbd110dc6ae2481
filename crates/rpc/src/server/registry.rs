//! Where each session is: with a connection, or parked until its client comes back.
//!
//! ```text
//!            open, new                    the connection ends
//!   (none) ────────────▶ Attached(where) ─────────────────────▶ Parked(session) ── too long ──▶ (none)
//!                            ▲   │  close ──▶ (none)                  │
//!                            │   └─ resumed by a later connection:    │ resumed
//!                            │      the old connection must end first │
//!                            └────────────────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::time::{Duration, Instant};

use farfork_wire::rpc::{OpenOutcome, SessionId};

use super::session::Session;

/// How long a session waits for its client. A client that was away for longer learns that the outcome of what it had
/// asked is lost.
pub const SESSION_IDLE_MAX: Duration = Duration::from_secs(60);

/// Most sessions of a server.
const SESSIONS_MAX: usize = 1 << 16;

/// Most bytes that parked sessions hold; the one that is parked for longest goes first.
const PARKED_BYTES_MAX: usize = 256 << 20;

/// A connection of a server: the thread, and the connection's number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) worker: usize,
    pub(crate) peer: u64,
}

/// An OPEN of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) slot: u16,
    pub(crate) session: SessionId,
    pub(crate) epoch: u32,
    pub(crate) resumed: bool,
}

/// What became of a claim.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// It is the claimant's.
    Granted(Box<Session>),
    /// It cannot be had.
    Refused(OpenOutcome),
    /// An older connection has it, and must end before the claim is made again.
    Held(Location),
}

/// Where a session is.
#[derive(Debug)]
pub(crate) enum Whereabouts<'a> {
    /// With a connection.
    Attached(Location),
    /// Here.
    Parked(&'a mut Session),
}

/// All sessions of a server.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    sessions: HashMap<SessionId, Entry>,
    parked_bytes: usize,
}

#[derive(Debug)]
enum Entry {
    Attached { location: Location, epoch: u32 },
    Parked { session: Box<Session>, since: Instant, bytes: usize },
}

impl Registry {
    /// Gives a session to a connection.
    pub(crate) fn claim(&mut self, claim: &Claim, location: Location) -> Claimed {
        let known_epoch = match self.sessions.get(&claim.session) {
            None if claim.resumed => return Claimed::Refused(OpenOutcome::Expired),
            None if self.sessions.len() >= SESSIONS_MAX => return Claimed::Refused(OpenOutcome::Full),
            None => {
                self.attach(claim, location);
                let mut session = Box::new(Session::new(claim.session, claim.slot));
                session.epoch = claim.epoch;
                return Claimed::Granted(session);
            }
            Some(_) if !claim.resumed => return Claimed::Refused(OpenOutcome::Taken),
            Some(Entry::Attached { epoch, .. }) => *epoch,
            Some(Entry::Parked { session, .. }) if session.slot != claim.slot => {
                return Claimed::Refused(OpenOutcome::Taken);
            }
            Some(Entry::Parked { session, .. }) => session.epoch,
        };
        if claim.epoch <= known_epoch {
            return Claimed::Refused(OpenOutcome::Superseded);
        }
        if let Some(Entry::Attached { location, .. }) = self.sessions.get(&claim.session) {
            return Claimed::Held(*location);
        }
        let Some(Entry::Parked { mut session, bytes, .. }) = self.attach(claim, location) else {
            unreachable!("it is known and not attached");
        };
        self.parked_bytes -= bytes;
        session.epoch = claim.epoch;
        Claimed::Granted(session)
    }

    fn attach(&mut self, claim: &Claim, location: Location) -> Option<Entry> {
        self.sessions.insert(claim.session, Entry::Attached { location, epoch: claim.epoch })
    }

    /// Takes a session back from a connection that ended.
    pub(crate) fn park(&mut self, session: Box<Session>, now: Instant) {
        let bytes = session.held_bytes();
        self.parked_bytes += bytes;
        self.sessions.insert(session.id, Entry::Parked { session, since: now, bytes });
        while self.parked_bytes > PARKED_BYTES_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let parked = self.sessions.iter().filter_map(|(id, entry)| match entry {
            Entry::Parked { since, bytes, .. } if *bytes > 0 => Some((*since, *id)),
            _ => None,
        });
        match parked.min() {
            Some((_, id)) => self.remove(&id),
            None => self.parked_bytes = 0,
        }
    }

    /// Ends a session.
    pub(crate) fn remove(&mut self, id: &SessionId) {
        if let Some(Entry::Parked { bytes, .. }) = self.sessions.remove(id) {
            self.parked_bytes -= bytes;
        }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Finds a session.
    pub(crate) fn find(&mut self, id: &SessionId) -> Option<Whereabouts<'_>> {
        Some(match self.sessions.get_mut(id)? {
            Entry::Attached { location, .. } => Whereabouts::Attached(*location),
            Entry::Parked { session, .. } => Whereabouts::Parked(session),
        })
    }

    /// Ends the sessions that were parked for too long, unless a handler still runs for them.
    pub(crate) fn expire(&mut self, now: Instant) {
        let parked_bytes = &mut self.parked_bytes;
        self.sessions.retain(|_, entry| match entry {
            Entry::Parked { session, since, bytes } => {
                let stays = now.saturating_duration_since(*since) < SESSION_IDLE_MAX || session.is_running();
                *parked_bytes -= if stays { 0 } else { *bytes };
                stays
            }
            Entry::Attached { .. } => true,
        });
    }
}
