//! The connections of one thread of a server, and their turns: who waits for sockets, or that there are none, is somebody
//! else's business (`worker`, `crate::sim`). Time is an argument. Here are the turns; `claims` gives sessions to connections,
//! `sweep` looks after those that do not get on.

mod claims;
mod complaints;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use farfork_fabric::transport::Stream;

use super::connection::{Connection, Trouble, Turn};
use super::handlers::{Handlers, Serving};
use super::hub::{Hub, Letter};
use super::peer::HELD_BYTES_MAX;
use super::registry::Claim;
use super::reply::Returns;
use crate::inbound::Staging;
use complaints::Complaints;

/// Most connections of a thread. With few file descriptors the process's limit is reached before.
const PEERS_MAX: usize = 1 << 14;

/// Most connections of a thread that have not greeted. A client greets within a round trip; where more connect and say
/// nothing, the one that has said nothing for longest goes.
const STRANGERS_MAX: usize = 2048;

/// What each connection may hold, in bytes, even where all of them together hold too much: what a client in no haste
/// needs, so that those that hold much wait, and not those beside them.
const FAIR_BYTES: usize = 1 << 20;

/// A clock, for deadlines within a turn.
pub(crate) type Clock = Box<dyn Fn() -> Instant + Send>;

/// The connections of one thread.
pub(crate) struct Hall {
    number: usize,
    hub: Arc<Hub>,
    handlers: Handlers,
    clock: Clock,
    /// In order, so that the same happens where the same comes.
    connections: BTreeMap<u64, Connection>,
    /// Those that have not greeted; the one that came first is first.
    strangers: BTreeSet<u64>,
    complaints: Complaints,
    next_token: u64,
    staging: Staging,
    /// Connections to turn to again before waiting: their streams may have more than their sockets show.
    again: Vec<u64>,
    /// Connections that wait for something else than whoever waits for their sockets was told.
    changed: Vec<u64>,
    round: u64,
    /// Whether anything came in this round.
    worked: bool,
    /// Sessions that connections of other threads must give up first, and when they are asked for again.
    claims: Vec<(u64, Claim)>,
    claims_due: Instant,
    sweep_due: Instant,
}

impl fmt::Debug for Hall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hall({}, {} connections)", self.number, self.connections.len())
    }
}

impl Hall {
    /// Of the thread of this number.
    pub(crate) fn new(number: usize, hub: Arc<Hub>, handlers: Handlers, clock: Clock) -> Self {
        let now = clock();
        Self {
            number,
            hub,
            handlers,
            clock,
            connections: BTreeMap::new(),
            strangers: BTreeSet::new(),
            complaints: Complaints::default(),
            next_token: 0,
            staging: Staging::default(),
            again: Vec::new(),
            changed: Vec::new(),
            round: 0,
            worked: false,
            claims: Vec::new(),
            claims_due: now,
            sweep_due: now + sweep::INTERVAL,
        }
    }

    /// Begins a round, in which each connection has one turn; gives those that are to have one whatever is waited for.
    pub(crate) fn begin_round(&mut self) -> Vec<u64> {
        self.round += 1;
        std::mem::take(&mut self.again)
    }

    /// Whether anything came since this was last asked.
    pub(crate) fn take_worked(&mut self) -> bool {
        std::mem::take(&mut self.worked)
    }

    /// Connections whose sockets are to be waited for in another way, or for the first time.
    pub(crate) fn take_changed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn connection_mut(&mut self, token: u64) -> Option<&mut Connection> {
        self.connections.get_mut(&token)
    }

    /// Where there are no sockets to wait for: the connections that a turn would help on, in order.
    pub(crate) fn ready(&self) -> BTreeSet<u64> {
        self.connections.iter().filter(|(_, connection)| connection.is_ready()).map(|(token, _)| *token).collect()
    }

    /// Where there are no sockets to wait for: whether a turn would help any connection on.
    pub(crate) fn has_ready(&self) -> bool {
        self.connections.values().any(Connection::is_ready)
    }

    /// Whether some connections are to have a turn at once.
    pub(crate) fn has_more(&self) -> bool {
        !self.again.is_empty()
    }

    /// Whether nothing is due, however much time passes: nobody is connected, and no session waits for its client.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.claims.is_empty() && self.hub.registry().is_empty()
    }

    /// When it wants a round whatever comes.
    pub(crate) fn next_timeout(&self) -> Instant {
        if self.claims.is_empty() { self.sweep_due } else { self.sweep_due.min(self.claims_due) }
    }

    /// Reads what other threads have for this one.
    pub(crate) fn read_letters(&mut self, now: Instant) {
        for letter in self.hub.take_letters(self.number) {
            match letter {
                Letter::Adopt(stream, from) => self.adopt(stream, from, now),
                Letter::Close(token) => self.end(token, now),
                Letter::Answer { peer, ticket, status, payload } => {
                    let here = self.connections.get_mut(&peer);
                    let completed = match here {
                        Some(connection) => connection.peer.complete(ticket, status, payload),
                        None => Err(payload),
                    };
                    match completed {
                        Ok(()) => self.flush(peer, now),
                        // The session has moved on meanwhile.
                        Err(payload) => self.hub.take(ticket, status, payload),
                    }
                }
            }
        }
    }

    /// Takes a new connection.
    fn adopt(&mut self, stream: Box<dyn Stream>, from: String, now: Instant) {
        if self.connections.len() >= PEERS_MAX {
            let cause = format_args!("{PEERS_MAX} connections are served by this thread already");
            return self.complaints.ended(&from, &cause);
        }
        let token = self.next_token;
        self.next_token += 1;
        self.connections.insert(token, Connection::new(stream, from, now));
        self.strangers.insert(token);
        if self.strangers.len() > STRANGERS_MAX
            && let Some(silent) = self.strangers.pop_first()
        {
            self.refuse(silent, now, "it has not said anything, and others wait");
        }
        self.turn(token, now);
    }

    /// Gives a connection its turn, unless it had one in this round.
    pub(crate) fn turn(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if std::mem::replace(&mut connection.turned_in, self.round) == self.round {
            return;
        }
        let held_bytes_max = if self.hub.is_crowded() { FAIR_BYTES } else { HELD_BYTES_MAX };
        connection.peer.set_held_bytes_max(held_bytes_max);
        let mut serving = Serving { handlers: &mut self.handlers, returns: &self.hub };
        match connection.turn(now, &*self.clock, &mut self.staging, &mut serving) {
            Ok(turn) => {
                if turn != Turn::Idle {
                    self.again.push(token);
                    self.worked = true;
                    if connection.peer.has_greeted() {
                        self.strangers.remove(&token);
                    }
                }
                self.grant_wishes(token, now);
            }
            Err(cause) => return self.fail(token, now, &cause),
        }
        self.flush(token, now);
    }

    /// Sends what waits of a connection, and takes note of what it waits for then.
    fn flush(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if let Err(cause) = connection.send(now) {
            return self.fail(token, now, &cause);
        }
        self.hub.recount(&mut connection.counted_bytes, connection.peer.held_bytes());
        if connection.peer.has_work() {
            // Requests that waited for room.
            self.again.push(token);
        }
        if connection.watched != Some(connection.interest()) {
            self.changed.push(token);
        }
    }

    /// Ends a connection that failed.
    fn fail(&mut self, token: u64, now: Instant, cause: &Trouble) {
        if cause.is_violation() {
            return self.refuse(token, now, cause);
        }
        if let Some(connection) = self.connections.get(&token) {
            tracing::debug!(peer = %connection.name, %cause, "an RPC connection ends");
        }
        self.end(token, now);
    }

    /// Ends a connection that did what it must not, or did nothing.
    fn refuse(&mut self, token: u64, now: Instant, cause: impl fmt::Display) {
        if let Some(connection) = self.connections.get(&token) {
            self.complaints.ended(&connection.name, &cause);
        }
        self.end(token, now);
    }

    /// Ends a connection; its sessions wait for their client.
    pub(super) fn end(&mut self, token: u64, now: Instant) {
        let Some(mut connection) = self.connections.remove(&token) else { return };
        self.strangers.remove(&token);
        self.hub.recount(&mut connection.counted_bytes, 0);
        let mut registry = self.hub.registry();
        connection.into_sessions().for_each(|session| registry.park(session, now));
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        for connection in self.connections.values_mut() {
            self.hub.recount(&mut connection.counted_bytes, 0);
        }
    }
}
