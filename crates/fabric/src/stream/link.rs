//! The requester's end of a connection. A link has one stream at a time. If the stream fails while requests are
//! unanswered, the link connects a new one. A link never blocks: its event source waits.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::ConnectionId;
use farfork_wire::frame::reply::{Grant, Refusal};
use farfork_wire::frame::{FabricFrameError, Header};

use super::event_source::EventSource;
use super::link_failure::LinkFailure;
use super::link_setup::LinkState;
use crate::buffer::{Buffer, BufferPool};
use crate::protocol::{Backoff, PendingRequest, RequestOutcome, Requester};
use crate::transport::{Dialer, Security};
use crate::{Address, Completion, FabricError, LinkError, Reply, SeedKey};

/// Limit on the bytes that one poll receives, so that a fast owner does not delay the caller's other work. Receiving
/// and decrypting this many bytes takes about 20 µs. Between two polls, a pager handles its children's faults.
const RECEIVED_BYTES_MAX: usize = 64 << 10;

/// The outcome of a request for grants. `grants` is `None` if the request failed: refused, unanswered or incompatible.
#[derive(Debug)]
pub(crate) struct GrantAnswer {
    pub(crate) key: Arc<SeedKey>,
    pub(crate) grants: Option<Vec<Grant>>,
    pub(crate) template: Option<OwnedFd>,
}

/// Parameters of a link.
#[derive(Debug)]
pub(crate) struct LinkConfig {
    /// The owner's address.
    pub(crate) address: Address,
    /// Connects to the owner.
    pub(crate) dialer: Box<dyn Dialer>,
    /// Wraps the stream; `None` for a stream without security.
    pub(crate) security: Option<Arc<dyn Security>>,
    /// Waits for events of the stream, and has the clock.
    pub(crate) event_source: Box<dyn EventSource>,
    /// The id by which the owner knows the connection.
    pub(crate) connection_id: ConnectionId,
}

//        ┌────────────────────────── failed: wait, longer each time ──────────────────────────┐
//        ▼                                                                                    │
//      Down ── request, delay over ─▶ Connecting ── connected ─▶ Handshaking ── open ─▶ Up ── failed, silent,
//        ▲                                 │                          │                 │     damaged
//        └────── refused, no answer ───────┴──────────────────────────┘      hello, requests ▶  ◀ replies

/// A connection to one owner over streams.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) config: LinkConfig,
    pub(super) state: LinkState,
    pub(super) requester: Requester,
    pub(super) pool: BufferPool,
    pub(super) backoff: Backoff,
    failure: LinkFailure,
    grant_answers: Vec<GrantAnswer>,
    pub(super) is_closing: bool,
    /// Time of the last poll, if it may have left bytes in the stream's buffer. The next poll is then due at once: the
    /// socket does not become readable for bytes that are already in the buffer.
    unread_since: Option<Instant>,
    /// Time of the last check that the owner of this stream is trusted.
    pub(super) checked_at: Option<Instant>,
}

impl Link {
    /// Creates a link that is not connected yet.
    pub(crate) fn new(parts: LinkConfig) -> Self {
        let requester = Requester::new(parts.connection_id);
        Self {
            config: parts,
            state: LinkState::Down { retry_at: None },
            requester,
            pool: BufferPool::default(),
            backoff: Backoff::default(),
            failure: LinkFailure::default(),
            grant_answers: Vec::new(),
            is_closing: false,
            unread_since: None,
            checked_at: None,
        }
    }

    pub(crate) fn pool(&mut self) -> &mut BufferPool {
        &mut self.pool
    }

    pub(crate) fn forget_all(&mut self) {
        self.requester.take_all().for_each(drop);
        self.grant_answers.clear();
    }

    /// Adds a request. The caller has checked the spans and the limits.
    pub(crate) fn enqueue(&mut self, pending: PendingRequest) {
        self.requester.enqueue(pending);
    }

    /// Returns the current socket, if the link is up.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            LinkState::Up(session) => session.stream().socket(),
            _ => None,
        }
    }

    /// Removes and returns the outcomes of requests for grants.
    pub(crate) fn take_grant_answers(&mut self) -> Vec<GrantAnswer> {
        std::mem::take(&mut self.grant_answers)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let own = match &self.state {
            LinkState::Down { retry_at } if self.requester.has_unanswered() => *retry_at,
            LinkState::Down { .. } => None,
            LinkState::Connecting { give_up_at, .. } | LinkState::Handshaking { give_up_at, .. } => Some(*give_up_at),
            LinkState::Up(_) => self.response_deadline(),
        };
        own.into_iter().chain(self.unread_since).chain(self.requester.next_deadline()).min()
    }

    /// Whether a poll would find something to do, for event sources without a descriptor.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.state {
            LinkState::Down { .. } => false,
            LinkState::Connecting { attempt, .. } => attempt.is_ready(),
            LinkState::Handshaking { stream, .. } => stream.is_ready(true, stream.has_unsent()),
            LinkState::Up(session) => session.stream().is_ready(true, session.interest().send),
        }
    }

    /// Whether the link was closed and no request is unanswered.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closing && matches!(self.state, LinkState::Down { .. }) && !self.requester.has_unanswered()
    }

    /// Connects, sends and receives, as far as possible without waiting. Then ends overdue requests.
    pub(crate) fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        if let Err(cause) = self.advance(now, completions) {
            self.handle_failure(cause, now, completions);
        }
        while let Some((pending, first_sent)) = self.requester.take_expired(now) {
            let change_sent = first_sent.filter(|_| pending.is_change());
            let silent_since = self.requester.silent_since();
            let error = self.failure.to_error(&self.config.address, change_sent, silent_since, now);
            self.complete_request(pending, Err(error), completions);
        }
        let idle = match &self.state {
            LinkState::Up(session) => !session.has_unsent(),
            _ => true,
        };
        if self.is_closing && idle && !self.requester.has_unanswered() {
            self.requester.handle_disconnect();
            self.state = LinkState::Down { retry_at: None };
        }
    }

    fn advance(&mut self, now: Instant, completions: &mut Vec<Completion>) -> Result<(), LinkError> {
        let due = |at: &Option<Instant>| at.is_none_or(|at| at <= now);
        if matches!(&self.state, LinkState::Down { retry_at } if due(retry_at)) && self.requester.has_unanswered() {
            self.failure.record_waiter(now);
            self.begin_connect(now)?;
        }
        if matches!(self.state, LinkState::Connecting { .. }) {
            self.finish_connect(now)?;
        }
        if matches!(self.state, LinkState::Handshaking { .. }) {
            self.continue_handshake(now)?;
        }
        if matches!(self.state, LinkState::Up(_)) {
            self.recheck_trust(now)?;
            let was_quiet = self.is_idle();
            let sent = self.send_pending(now);
            // If the link was idle, the reply to the first request cannot have arrived yet. A check would cost as much
            // as the send.
            if !was_quiet || self.requester.silent_since().is_none() || sent.is_err() {
                // Bytes that arrived before the stream failed are valid, such as the owner's reason for a refusal.
                self.receive(now, completions)?;
            }
            sent?;
            if self.response_deadline().is_some_and(|at| at <= now) {
                self.backoff.double_response_timeout();
                return Err(LinkError::NoResponse);
            }
        }
        Ok(())
    }

    /// Whether no reply is due, and the stream has no buffered bytes.
    fn is_idle(&self) -> bool {
        let keeps = matches!(&self.state, LinkState::Up(session) if session.stream().may_have_buffered());
        self.requester.silent_since().is_none() && self.unread_since.is_none() && !keeps
    }

    fn send_pending(&mut self, now: Instant) -> Result<(), LinkError> {
        let LinkState::Up(session) = &mut self.state else { return Ok(()) };
        session.send_queued(&mut self.pool, |out| self.requester.encode_next(now, out))?;
        self.config.event_source.set_interest(session.stream().socket(), session.interest()).map_err(LinkError::Broken)
    }

    /// Receives the bytes that have arrived, at most about [`RECEIVED_BYTES_MAX`].
    fn receive(&mut self, now: Instant, completions: &mut Vec<Completion>) -> Result<(), LinkError> {
        let mut received_bytes = 0;
        self.unread_since = None;
        while received_bytes < RECEIVED_BYTES_MAX {
            let LinkState::Up(session) = &mut self.state else { return Ok(()) };
            let Some(received) = session.receive()? else { return Ok(()) };
            self.requester.mark_received(now);
            self.handle_frames(completions)?;
            if received.is_drained {
                return Ok(());
            }
            received_bytes += received.bytes;
        }
        if let LinkState::Up(session) = &self.state {
            self.unread_since = session.stream().may_have_buffered().then_some(now);
        }
        Ok(())
    }

    fn handle_frames(&mut self, completions: &mut Vec<Completion>) -> Result<(), LinkError> {
        while let LinkState::Up(session) = &mut self.state {
            let Some((header, mut body, descriptor)) = session.next_frame(&mut self.pool)? else { break };
            self.handle_frame(&header, &mut body, descriptor, completions)?;
            self.pool.put(body);
        }
        Ok(())
    }

    fn handle_frame(
        &mut self,
        header: &Header,
        body: &mut Buffer,
        template: Option<OwnedFd>,
        completions: &mut Vec<Completion>,
    ) -> Result<(), LinkError> {
        let answer = self.requester.handle_frame(header, body)?;
        self.backoff.reset();
        self.failure.clear();
        match answer {
            Some((PendingRequest::Grants { key, .. }, RequestOutcome::Granted(grants))) => {
                self.grant_answers.push(GrantAnswer { key, grants: Some(grants), template });
            }
            Some((pending, RequestOutcome::Refused(refusal))) => {
                let error = self.refusal_error(&pending, refusal);
                self.complete_request(pending, Err(error), completions);
            }
            Some((pending, RequestOutcome::Completed(reply))) => self.complete_request(pending, Ok(reply), completions),
            Some(_) => unreachable!("a requester pairs each request with a matching outcome"),
            None => {}
        }
        Ok(())
    }

    /// Closes the stream. If the owner is incompatible, fails all requests, because the next stream would find the same
    /// version.
    pub(super) fn handle_failure(&mut self, cause: LinkError, now: Instant, completions: &mut Vec<Completion>) {
        tracing::debug!(address = %self.config.address, %cause, "connection failed");
        let silent_since = self.requester.silent_since();
        self.requester.handle_disconnect();
        self.unread_since = None;
        self.checked_at = None;
        self.state = LinkState::Down { retry_at: Some(now + self.backoff.next_retry_delay()) };
        if let LinkError::Frame(version @ FabricFrameError::Version { .. }) = &cause {
            let error = FabricError::Incompatible { address: self.config.address.clone(), cause: version.clone() };
            for (pending, first_sent) in self.requester.take_all() {
                let error = match first_sent.filter(|_| pending.is_change()) {
                    Some(first_sent) => self.failure.to_error(&self.config.address, Some(first_sent), None, now),
                    None => error.clone(),
                };
                self.complete_request(pending, Err(error), completions);
            }
        }
        let waiting_since = self.requester.has_unanswered().then(|| silent_since.unwrap_or(now));
        self.failure.record(cause, waiting_since);
    }

    fn complete_request(
        &mut self,
        pending: PendingRequest,
        result: Result<Reply, FabricError>,
        completions: &mut Vec<Completion>,
    ) {
        match (pending.tag(), pending) {
            (Some(tag), _) => completions.push(Completion { tag, result }),
            (None, PendingRequest::Grants { key, .. }) => {
                self.grant_answers.push(GrantAnswer { key, grants: None, template: None });
            }
            (None, _) => unreachable!("only requests for grants have no tag"),
        }
    }

    fn response_deadline(&self) -> Option<Instant> {
        self.requester.silent_since().map(|since| since + self.backoff.response_timeout())
    }

    fn refusal_error(&self, pending: &PendingRequest, refusal: Refusal) -> FabricError {
        let address = self.config.address.clone();
        match pending.seed_key() {
            Some(key) => FabricError::Refused { address, seed: key.seed.clone(), refusal },
            None => FabricError::MessageRefused { address, refusal },
        }
    }
}
