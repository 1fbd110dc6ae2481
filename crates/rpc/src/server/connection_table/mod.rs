//! The connections of one server thread, and their turns. Never waits: `worker` polls the sockets, `crate::sim`
//! simulates them. Time is an argument. `session_claims` assigns sessions to connections; `sweep` closes stalled
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

/// Maximum number of connections of a thread. With a low RLIMIT_NOFILE, the process reaches that limit first.
const CONNECTIONS_MAX: usize = 1 << 14;

/// Maximum number of connections of a thread that have not sent a hello. A client sends its hello within a round trip.
/// If there are more, the oldest of them is closed.
const UNGREETED_MAX: usize = 2048;

/// Bytes that may be held for each connection even if all connections together exceed their limit. So requests are
/// refused only on connections that hold more. A client that acknowledges replies needs less.
const FAIR_HELD_BYTES: usize = 1 << 20;

/// A clock, for deadlines within a turn.
pub(crate) type Clock = Box<dyn Fn() -> Instant + Send>;

/// The connections of one thread.
pub(crate) struct ConnectionTable {
    worker: usize,
    shared: Arc<SharedState>,
    handlers: HandlerTable,
    clock: Clock,
    /// Sorted, so that iteration is deterministic.
    connections: BTreeMap<u64, ServerConnection>,
    /// Connections that have not sent a hello, the oldest first.
    ungreeted: BTreeSet<u64>,
    log: RateLimitedLog,
    next_token: u64,
    staging: StagingBuffer,
    /// Connections that get another turn before the thread waits: their streams may have more data than their sockets show.
    requeued: Vec<u64>,
    /// Connections whose interest differs from the registered one.
    interest_changed: Vec<u64>,
    round: u64,
    /// Whether bytes were received in this round.
    did_work: bool,
    /// Claims to sessions that connections of other threads must release first.
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
    /// Creates the table of the thread with this number.
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

    /// Starts a round, in which each connection has at most one turn. Returns the connections that get a turn even
    /// without an event.
    pub(crate) fn begin_round(&mut self) -> Vec<u64> {
        self.round += 1;
        std::mem::take(&mut self.requeued)
    }

    /// Whether bytes were received since the last call.
    pub(crate) fn take_did_work(&mut self) -> bool {
        std::mem::take(&mut self.did_work)
    }

    /// Returns the connections whose interest must be registered, for the first time or again.
    pub(crate) fn take_interest_changed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.interest_changed)
    }

    pub(super) fn connection_mut(&mut self, token: u64) -> Option<&mut ServerConnection> {
        self.connections.get_mut(&token)
    }

    /// Returns the connections for which a turn would find something to do, in order. For streams without sockets.
    pub(crate) fn ready_connections(&self) -> BTreeSet<u64> {
        self.connections.iter().filter(|(_, connection)| connection.is_ready()).map(|(token, _)| *token).collect()
    }

    /// Whether a turn would find something to do for any connection. For streams without sockets.
    pub(crate) fn has_ready_connection(&self) -> bool {
        self.connections.values().any(ServerConnection::is_ready)
    }

    /// Whether some connections get another turn at once.
    pub(crate) fn has_requeued(&self) -> bool {
        !self.requeued.is_empty()
    }

    /// Whether no round will become due: there are no connections and no sessions.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.pending_claims.is_empty() && self.shared.registry().is_empty()
    }

    /// Returns the time at which the next round is due even without an event.
    pub(crate) fn next_timeout(&self) -> Instant {
        if self.pending_claims.is_empty() { self.sweep_due } else { self.sweep_due.min(self.claims_due) }
    }

    /// Handles the messages from other threads.
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
                        // The session has moved to another connection since the message was sent.
                        Err(payload) => self.shared.deliver(ticket, status, payload),
                    }
                }
            }
        }
    }

    /// Adds a new connection.
    fn add_connection(&mut self, stream: Box<dyn Stream>, from: String, now: Instant) {
        if self.connections.len() >= CONNECTIONS_MAX {
            let cause = format_args!("this thread already serves {CONNECTIONS_MAX} connections");
            return self.log.log_disconnect(&from, &cause);
        }
        let token = self.next_token;
        self.next_token += 1;
        self.connections.insert(token, ServerConnection::new(stream, from, now));
        self.ungreeted.insert(token);
        if self.ungreeted.len() > UNGREETED_MAX
            && let Some(silent) = self.ungreeted.pop_first()
        {
            self.disconnect_logged(silent, now, "it has sent no hello, and too many connections are silent");
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

    /// Sends a connection's queued bytes, and notes its new interest.
    fn flush(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if let Err(cause) = connection.send_queued(now) {
            return self.handle_failure(token, now, &cause);
        }
        self.shared.update_held_bytes(&mut connection.accounted_bytes, connection.protocol.held_bytes());
        if connection.protocol.has_backlog() {
            // Received requests that waited for space for their replies can be handled now.
            self.requeued.push(token);
        }
        if connection.registered_interest != Some(connection.interest()) {
            self.interest_changed.push(token);
        }
    }

    /// Closes a connection that failed.
    fn handle_failure(&mut self, token: u64, now: Instant, cause: &DisconnectCause) {
        if cause.is_peer_fault() {
            return self.disconnect_logged(token, now, cause);
        }
        if let Some(connection) = self.connections.get(&token) {
            tracing::debug!(peer = %connection.peer_name, %cause, "an RPC connection ends");
        }
        self.remove_connection(token, now);
    }

    /// Closes a connection because of its client, and logs the cause.
    fn disconnect_logged(&mut self, token: u64, now: Instant, cause: impl fmt::Display) {
        if let Some(connection) = self.connections.get(&token) {
            self.log.log_disconnect(&connection.peer_name, &cause);
        }
        self.remove_connection(token, now);
    }

    /// Closes a connection, and parks its sessions until the client reconnects.
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
