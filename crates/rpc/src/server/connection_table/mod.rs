//! The connections of one server thread, and their turns. Does not wait: `worker` polls the sockets, `crate::sim`
//! simulates them. Time is an argument. `session_claims` gives sessions to connections; `sweep` ends stalled
//! connections.

mod rate_limited_log;
mod session_claims;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use farfork_fabric::transport::Stream;

use super::connection::{DisconnectCause, ServerConnection, TurnOutcome};
use super::handlers::{HandlerService, HandlerTable};
use super::protocol::HELD_BYTES_MAX;
use super::reply::ReplySink;
use super::session_registry::SessionClaim;
use super::shared_state::{SharedState, WorkerMessage};
use crate::frame_decoder::StagingBuffer;
use rate_limited_log::RateLimitedLog;

/// Most connections of a thread. With few file descriptors the process's limit is reached before.
const CONNECTIONS_MAX: usize = 1 << 14;

/// Most connections of a thread that have not greeted. A client greets within a round trip; where more connect and say
/// nothing, the one that has said nothing for longest goes.
const UNGREETED_MAX: usize = 2048;

/// What each connection may hold, in bytes, even where all of them together hold too much: what a client in no haste
/// needs, so that those that hold much wait, and not those beside them.
const FAIR_HELD_BYTES: usize = 1 << 20;

/// A clock, for deadlines within a turn.
pub(crate) type Clock = Box<dyn Fn() -> Instant + Send>;

/// The connections of one thread.
pub(crate) struct ConnectionTable {
    worker: usize,
    shared: Arc<SharedState>,
    handlers: HandlerTable,
    clock: Clock,
    /// In order, so that the same happens where the same comes.
    connections: BTreeMap<u64, ServerConnection>,
    /// Those that have not greeted; the one that came first is first.
    ungreeted: BTreeSet<u64>,
    log: RateLimitedLog,
    next_token: u64,
    staging: StagingBuffer,
    /// Connections to turn to again before waiting: their streams may have more than their sockets show.
    requeued: Vec<u64>,
    /// Connections that wait for something else than whoever waits for their sockets was told.
    interest_changed: Vec<u64>,
    round: u64,
    /// Whether anything came in this round.
    did_work: bool,
    /// Sessions that connections of other threads must give up first, and when they are asked for again.
    pending_claims: Vec<(u64, SessionClaim)>,
    claims_due: Instant,
    sweep_due: Instant,
}

impl fmt::Debug for ConnectionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionTable({}, {} connections)", self.worker, self.connections.len())
    }
}

impl ConnectionTable {
    /// Of the thread of this number.
    pub(crate) fn new(number: usize, shared_state: Arc<SharedState>, handlers: HandlerTable, clock: Clock) -> Self {
        let now = clock();
        Self {
            worker: number,
            shared: shared_state,
            handlers,
            clock,
            connections: BTreeMap::new(),
            ungreeted: BTreeSet::new(),
            log: RateLimitedLog::default(),
            next_token: 0,
            staging: StagingBuffer::default(),
            requeued: Vec::new(),
            interest_changed: Vec::new(),
            round: 0,
            did_work: false,
            pending_claims: Vec::new(),
            claims_due: now,
            sweep_due: now + sweep::SWEEP_INTERVAL,
        }
    }

    /// Begins a round, in which each connection has one turn; gives those that are to have one whatever is waited for.
    pub(crate) fn begin_round(&mut self) -> Vec<u64> {
        self.round += 1;
        std::mem::take(&mut self.requeued)
    }

    /// Whether anything came since this was last asked.
    pub(crate) fn take_did_work(&mut self) -> bool {
        std::mem::take(&mut self.did_work)
    }

    /// Connections whose sockets are to be waited for in another way, or for the first time.
    pub(crate) fn take_interest_changed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.interest_changed)
    }

    pub(super) fn connection_mut(&mut self, token: u64) -> Option<&mut ServerConnection> {
        self.connections.get_mut(&token)
    }

    /// Where there are no sockets to wait for: the connections that a turn would help on, in order.
    pub(crate) fn ready_connections(&self) -> BTreeSet<u64> {
        self.connections.iter().filter(|(_, connection)| connection.is_ready()).map(|(token, _)| *token).collect()
    }

    /// Where there are no sockets to wait for: whether a turn would help any connection on.
    pub(crate) fn has_ready_connection(&self) -> bool {
        self.connections.values().any(ServerConnection::is_ready)
    }

    /// Whether some connections are to have a turn at once.
    pub(crate) fn has_requeued(&self) -> bool {
        !self.requeued.is_empty()
    }

    /// Whether nothing is due, however much time passes: nobody is connected, and no session waits for its client.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.pending_claims.is_empty() && self.shared.registry().is_empty()
    }

    /// When it wants a round whatever comes.
    pub(crate) fn next_timeout(&self) -> Instant {
        if self.pending_claims.is_empty() { self.sweep_due } else { self.sweep_due.min(self.claims_due) }
    }

    /// Reads what other threads have for this one.
    pub(crate) fn handle_messages(&mut self, now: Instant) {
        for worker_message in self.shared.take_messages(self.worker) {
            match worker_message {
                WorkerMessage::NewConnection(stream, from) => self.add_connection(stream, from, now),
                WorkerMessage::CloseConnection(token) => self.remove_connection(token, now),
                WorkerMessage::DeferredReply { peer, ticket, status, payload } => {
                    let connection = self.connections.get_mut(&peer);
                    let completed = match connection {
                        Some(connection) => connection.protocol.complete_deferred(ticket, status, payload),
                        None => Err(payload),
                    };
                    match completed {
                        Ok(()) => self.flush(peer, now),
                        // The session has moved on meanwhile.
                        Err(payload) => self.shared.deliver(ticket, status, payload),
                    }
                }
            }
        }
    }

    /// Takes a new connection.
    fn add_connection(&mut self, stream: Box<dyn Stream>, from: String, now: Instant) {
        if self.connections.len() >= CONNECTIONS_MAX {
            let cause = format_args!("{CONNECTIONS_MAX} connections are served by this thread already");
            return self.log.log_disconnect(&from, &cause);
        }
        let token = self.next_token;
        self.next_token += 1;
        self.connections.insert(token, ServerConnection::new(stream, from, now));
        self.ungreeted.insert(token);
        if self.ungreeted.len() > UNGREETED_MAX
            && let Some(silent) = self.ungreeted.pop_first()
        {
            self.disconnect_logged(silent, now, "it has not said anything, and others wait");
        }
        self.run_turn(token, now);
    }

    /// Gives a connection its turn, unless it had one in this round.
    pub(crate) fn run_turn(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if std::mem::replace(&mut connection.last_round, self.round) == self.round {
            return;
        }
        let held_bytes_max = if self.shared.is_over_memory_limit() { FAIR_HELD_BYTES } else { HELD_BYTES_MAX };
        connection.protocol.set_held_bytes_max(held_bytes_max);
        let mut serving = HandlerService { handlers: &mut self.handlers, reply_sink: &self.shared };
        match connection.run_turn(now, &*self.clock, &mut self.staging, &mut serving) {
            Ok(turn_outcome) => {
                if turn_outcome != TurnOutcome::Idle {
                    self.requeued.push(token);
                    self.did_work = true;
                    if connection.protocol.has_greeted() {
                        self.ungreeted.remove(&token);
                    }
                }
                self.handle_session_requests(token, now);
            }
            Err(cause) => return self.handle_failure(token, now, &cause),
        }
        self.flush(token, now);
    }

    /// Sends what waits of a connection, and takes note of what it waits for then.
    fn flush(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if let Err(cause) = connection.send_queued(now) {
            return self.handle_failure(token, now, &cause);
        }
        self.shared.update_held_bytes(&mut connection.accounted_bytes, connection.protocol.held_bytes());
        if connection.protocol.has_backlog() {
            // Requests that waited for room.
            self.requeued.push(token);
        }
        if connection.registered_interest != Some(connection.interest()) {
            self.interest_changed.push(token);
        }
    }

    /// Ends a connection that failed.
    fn handle_failure(&mut self, token: u64, now: Instant, cause: &DisconnectCause) {
        if cause.is_peer_fault() {
            return self.disconnect_logged(token, now, cause);
        }
        if let Some(connection) = self.connections.get(&token) {
            tracing::debug!(peer = %connection.peer_name, %cause, "an RPC connection ends");
        }
        self.remove_connection(token, now);
    }

    /// Ends a connection that did what it must not, or did nothing.
    fn disconnect_logged(&mut self, token: u64, now: Instant, cause: impl fmt::Display) {
        if let Some(connection) = self.connections.get(&token) {
            self.log.log_disconnect(&connection.peer_name, &cause);
        }
        self.remove_connection(token, now);
    }

    /// Ends a connection; its sessions wait for their client.
    pub(super) fn remove_connection(&mut self, token: u64, now: Instant) {
        let Some(mut connection) = self.connections.remove(&token) else { return };
        self.ungreeted.remove(&token);
        self.shared.update_held_bytes(&mut connection.accounted_bytes, 0);
        let mut registry = self.shared.registry();
        connection.into_sessions().for_each(|session| registry.park(session, now));
    }
}

impl Drop for ConnectionTable {
    fn drop(&mut self) {
        for connection in self.connections.values_mut() {
            self.shared.update_held_bytes(&mut connection.accounted_bytes, 0);
        }
    }
}
