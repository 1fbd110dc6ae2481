//! A client and its connection. A stream that fails is replaced by a new one. Requests are kept until they end, and
//! sent again.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use farfork_fabric::AdaptiveSpin;
use farfork_fabric::transport::Stream;
use farfork_wire::rpc::{RpcFrameError, SessionId};

use super::connector::Connector;
use super::protocol::{ClientProtocol, SessionHandle};
use super::request::{CallError, Completion, OutgoingRequest, RequestPayload, SubmitError};
use crate::frame_decoder::StagingBuffer;
use crate::retransmit::SLICES_MAX;

/// First delay before a reconnection. Each failure doubles it.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(5);

/// Longest delay before a reconnection.
const RETRY_DELAY_MAX: Duration = Duration::from_millis(500);

/// Interval between checks on an open connection whether the server is still trusted. Servers check clients at the same
/// interval.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The connection could not be established, or broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server violates the protocol.
    #[error(transparent)]
    Frame(#[from] RpcFrameError),
    /// The server sent nothing for too long.
    #[error("the server sent nothing in time")]
    NoResponse,
}

/// A client of one server. Only [`Client::wait_ready`] and the functions that use it block.
///
/// A caller submits requests, polls, and waits when a poll found nothing. The client connects when there is a request
/// to send, and reconnects when the connection breaks. It then sends unanswered requests again; the server executes
/// each at most once.
pub struct Client {
    protocol: ClientProtocol,
    connector: Box<dyn Connector>,
    stream: Option<Box<dyn Stream>>,
    /// Whether the handshake of the stream is complete.
    is_handshake_done: bool,
    connection_count: u64,
    staging: StagingBuffer,
    retry_at: Option<Instant>,
    pub(super) retry_delay: Duration,
    checked_at: Instant,
    /// Whether the last poll may have left received bytes in the stream.
    pub(super) has_more: bool,
    /// State of adaptive spinning; `None` if the client may not spin before it sleeps.
    pub(super) spin: Option<AdaptiveSpin>,
    last_error: Option<ConnectionError>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("core", &self.protocol)
            .field("connector", &self.connector)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client, which connects with the first request. With `spins`, it spins for a while before it sleeps, as
    /// long as spinning finds events.
    pub fn new(connector: Box<dyn Connector>, spins: bool) -> Self {
        let new_id = || {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes).expect("Linux has randomness");
            SessionId::from_bytes(bytes)
        };
        Self::with_session_ids(connector, spins, Instant::now(), Box::new(new_id))
    }

    /// As [`Client::new`], with clock and session ids as arguments, for simulations.
    pub fn with_session_ids(
        connector: Box<dyn Connector>,
        spins: bool,
        now: Instant,
        new_id: Box<dyn FnMut() -> SessionId + Send>,
    ) -> Self {
        Self {
            protocol: ClientProtocol::new(now, new_id),
            connector,
            stream: None,
            is_handshake_done: false,
            connection_count: 0,
            staging: StagingBuffer::default(),
            retry_at: None,
            retry_delay: RETRY_DELAY_MIN,
            checked_at: now,
            has_more: true,
            spin: spins.then(|| AdaptiveSpin::new(now)),
            last_error: None,
        }
    }

    /// Opens a session with room for `window` unanswered requests, at most [`farfork_wire::rpc::WINDOW_MAX`]. Returns
    /// `None` if there are too many sessions.
    pub fn open_session(&mut self, window: u64) -> Option<SessionHandle> {
        self.protocol.open_session(window.clamp(1, farfork_wire::rpc::WINDOW_MAX))
    }

    /// Closes a session. Its unanswered requests end as cancelled.
    pub fn close_session(&mut self, session: SessionHandle) {
        self.protocol.close_session(session);
    }

    /// Queues a request. The next [`Client::poll`] sends all queued requests together.
    ///
    /// # Errors
    /// [`SubmitError`]: nothing was sent, and there will be no completion.
    pub fn submit(
        &mut self,
        now: Instant,
        session: SessionHandle,
        call: &OutgoingRequest,
        body: RequestPayload<'_>,
    ) -> Result<(), SubmitError> {
        self.protocol.submit(now, session, call, body)
    }

    /// Cancels a request by its tag. Returns false if the request has ended. The server may have executed a cancelled
    /// request.
    pub fn cancel(&mut self, session: SessionHandle, tag: u64) -> bool {
        self.protocol.cancel(session, tag)
    }

    /// Number of requests that have not ended.
    pub fn unanswered_count(&self) -> usize {
        self.protocol.unanswered_count()
    }

    /// Returns the reason why the last connection ended; `None` if none has ended.
    pub fn last_error(&self) -> Option<&ConnectionError> {
        self.last_error.as_ref()
    }

    /// Sends what can be sent, receives once, and reports the requests that ended. Returns whether bytes were received.
    pub fn poll(&mut self, now: Instant, mut on_end: impl FnMut(Completion<'_>)) -> bool {
        let received = match self.advance(now, &mut on_end) {
            Ok(received) => received,
            Err(cause) => {
                self.handle_failure(cause, now);
                false
            }
        };
        self.protocol.drain_ended(&mut on_end);
        self.has_more = received;
        if let Some(spin) = self.spin.as_mut().filter(|_| received) {
            spin.record_event(now);
        }
        received
    }

    fn advance(&mut self, now: Instant, on_end: &mut impl FnMut(Completion<'_>)) -> Result<bool, ConnectionError> {
        self.protocol.advance(now)?;
        if self.stream.is_none() {
            if !self.protocol.needs_connection() || self.retry_at.is_some_and(|at| at > now) {
                return Ok(false);
            }
            self.stream = Some(self.connector.connect()?);
            self.is_handshake_done = false;
            self.connection_count += 1;
            self.protocol.handle_connected(now);
        }
        if !self.is_handshake_done {
            self.is_handshake_done = self.stream.as_mut().map_or(Ok(false), |stream| stream.continue_handshake())?;
            if !self.is_handshake_done {
                return Ok(false);
            }
        }
        self.check_server_trusted(now)?;
        // Receive even if sending failed: bytes that arrived before the stream broke are valid, such as the server's
        // reason for a refusal.
        let sent = self.send_queued();
        let received = self.receive_frames(now, on_end)?;
        sent?;
        Ok(received)
    }

    /// Checks periodically whether the server was revoked since the connection was established.
    fn check_server_trusted(&mut self, now: Instant) -> Result<(), ConnectionError> {
        let is_due = now.saturating_duration_since(self.checked_at) >= CHECK_INTERVAL;
        if let Some(stream) = self.stream.as_ref().filter(|_| is_due) {
            self.checked_at = now;
            stream.check_peer_trusted()?;
        }
        Ok(())
    }

    fn send_queued(&mut self) -> Result<(), ConnectionError> {
        let Some(stream) = self.stream.as_mut().filter(|_| self.is_handshake_done) else { return Ok(()) };
        while self.protocol.unsent_bytes() > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.protocol.slices(&mut slices);
            let Some(sent) = stream.send(&slices[..count])? else { return Ok(()) };
            self.protocol.mark_sent(sent);
        }
        if stream.has_unsent() {
            stream.send(&[])?;
        }
        Ok(())
    }

    fn receive_frames(
        &mut self,
        now: Instant,
        on_end: &mut impl FnMut(Completion<'_>),
    ) -> Result<bool, ConnectionError> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        self.protocol.restore_partial(&mut self.staging);
        match stream.receive(&mut self.protocol.receive_buffers(&mut self.staging)) {
            Ok(Some(count)) if count > 0 => {
                self.retry_delay = RETRY_DELAY_MIN;
                self.protocol.handle_received(&mut self.staging, count, now, on_end)?;
                Ok(true)
            }
            other => {
                self.protocol.save_partial(&mut self.staging);
                if other?.is_some() { Err(ConnectionError::Closed) } else { Ok(false) }
            }
        }
    }

    /// Closes the connection. If the server is incompatible, fails all requests, because a new connection would find
    /// the same version.
    fn handle_failure(&mut self, cause: ConnectionError, now: Instant) {
        tracing::debug!(connector = ?self.connector, %cause, "an RPC connection failed");
        if self.stream.take().is_some() {
            self.protocol.handle_disconnected();
        }
        self.retry_at = Some(now + self.retry_delay);
        self.retry_delay = (self.retry_delay * 2).min(RETRY_DELAY_MAX);
        if let ConnectionError::Frame(version @ (RpcFrameError::Version { .. } | RpcFrameError::BadMagic)) = &cause {
            self.protocol.fail_all(&CallError::Incompatible(version.clone()));
        }
        self.last_error = Some(cause);
    }

    /// Sends queued bytes without receiving. For callers that submit many requests, or serve other connections, between
    /// two polls.
    pub fn flush(&mut self, now: Instant) {
        if let Err(cause) = self.send_queued() {
            self.handle_failure(cause, now);
        }
    }

    /// Returns the current socket, for callers that wait for several clients at once. The socket changes with each
    /// connection ([`Client::connection_count`]).
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().and_then(|stream| stream.socket())
    }

    /// Whether a poll would find something to do, for callers without a socket to wait for.
    pub fn is_ready(&self) -> bool {
        match &self.stream {
            Some(stream) => self.has_more || stream.is_ready(true, self.has_unsent()),
            None => self.has_more || (self.retry_at.is_none() && self.protocol.needs_connection()),
        }
    }

    /// Number of connections so far.
    pub fn connection_count(&self) -> u64 {
        self.connection_count
    }

    /// Whether the stream or the queue has bytes to send. During a handshake, the queue does not count.
    pub fn has_unsent(&self) -> bool {
        let inside = self.stream.as_ref().is_some_and(|stream| stream.has_unsent());
        inside || (self.protocol.unsent_bytes() > 0 && (self.is_handshake_done || self.stream.is_none()))
    }

    /// Returns the time at which the caller must poll even if nothing was received.
    pub fn next_timeout(&self) -> Option<Instant> {
        let retry = self.retry_at.filter(|_| self.stream.is_none() && self.protocol.needs_connection());
        [self.protocol.next_timeout(), retry].into_iter().flatten().min()
    }
}
