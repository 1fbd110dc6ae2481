//! The server's side of one connection: decodes frames, calls handlers, encodes replies. Pure: bytes and time are arguments.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use farfork_wire::rpc::{ClientFrame, OpenOutcome, RequestHead, RpcFrameError, ServerFrame, SessionId, VersionRange};

use super::reply::{ReplyWriter, RequestKey};
use super::session::ServerSession;
use super::session_registry::SessionClaim;
use super::session_table::SessionTable;
use crate::frame_decoder::{FrameDecoder, ReceivedPayload, StagingBuffer};
use crate::retransmit::SLICES_MAX;

/// Maximum number of queued bytes for a client. At this limit, further requests of the client wait. One reply may
/// exceed the limit.
const SEND_QUEUE_BYTES_MAX: usize = 4 << 20;

/// Maximum number of bytes that are held for a connection: unacknowledged replies and request windows of all its
/// sessions, and the received part of a payload. At this limit, requests are refused. It equals the reply caches of
/// four sessions.
pub(crate) const HELD_BYTES_MAX: usize = 128 << 20;

/// Longest time without progress (see `progress_at`) of a connection that has not sent its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time without progress (see `progress_at`) while replies are queued, or while a frame is incomplete.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Executes requests.
pub(crate) trait RequestExecutor {
    /// Executes a request. If the reply is deferred, `reply` records that, and `ticket` identifies the request later.
    fn execute(&mut self, handler: u32, ticket: RequestKey, payload: ReceivedPayload<'_>, reply: &mut ReplyWriter<'_>);
}

/// A request of a connection to the session registry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionRequest {
    /// To claim a session.
    Claim(SessionClaim),
    /// To close a session.
    Close(SessionId),
}

/// One client's connection.
#[derive(Debug)]
pub(crate) struct ServerProtocol {
    decoder: FrameDecoder<ClientFrame>,
    sessions: SessionTable,
    has_greeted: bool,
    /// Whether received bytes may contain frames that are not decoded yet.
    has_unparsed: bool,
    /// Maximum number of bytes that may be held for the connection at present.
    held_bytes_max: usize,
    received_at: Instant,
    /// Time of the last progress: when it connected, received bytes, or sent bytes.
    progress_at: Instant,
    session_requests: Vec<SessionRequest>,
}

impl ServerProtocol {
    /// Creates the state of a new connection, and queues the hello.
    pub(crate) fn new(now: Instant) -> Self {
        let mut session_table = SessionTable::default();
        session_table.append_control_frame(|out| out.extend_from_slice(&VersionRange::SUPPORTED.encode()));
        Self {
            decoder: FrameDecoder::default(),
            sessions: session_table,
            has_greeted: false,
            has_unparsed: false,
            held_bytes_max: HELD_BYTES_MAX,
            received_at: now,
            progress_at: now,
            session_requests: Vec::new(),
        }
    }

    /// Whether the client has sent its hello.
    pub(crate) fn has_greeted(&self) -> bool {
        self.has_greeted
    }

    /// Bytes that are held for the connection.
    pub(crate) fn held_bytes(&self) -> usize {
        self.sessions.held_bytes() + self.decoder.held_bytes()
    }

    /// Sets the limit of the bytes that are held for the connection.
    pub(crate) fn set_held_bytes_max(&mut self, bytes: usize) {
        self.held_bytes_max = bytes;
    }

    /// Whether the connection may receive. It may not while too many replies are queued, while received requests wait,
    /// or while there is no space for the rest of a payload.
    pub(crate) fn can_receive(&self) -> bool {
        !self.has_unparsed && !self.is_send_queue_full() && !self.is_payload_blocked()
    }

    /// Whether there is no space for a payload that is being received. If all connections together exceed their limit,
    /// space becomes free when others acknowledge replies or are closed as stalled. If this connection alone holds
    /// [`HELD_BYTES_MAX`], its acknowledgements would arrive after the payload, so it is closed as stalled.
    pub(crate) fn is_payload_blocked(&self) -> bool {
        self.decoder.has_partial_payload() && self.held_bytes() >= self.held_bytes_max
    }

    /// Whether received frames wait, and can be handled now.
    pub(crate) fn has_backlog(&self) -> bool {
        self.has_unparsed && !self.is_send_queue_full()
    }

    fn is_send_queue_full(&self) -> bool {
        self.sessions.unsent_bytes() >= SEND_QUEUE_BYTES_MAX
    }

    /// Restores saved bytes to the staging buffer. Call it before [`ServerProtocol::receive_buffers`].
    pub(crate) fn restore_partial(&mut self, staging: &mut StagingBuffer) {
        self.decoder.restore_partial(staging);
    }

    /// Returns the buffers to receive into.
    pub(crate) fn receive_buffers<'a>(&'a mut self, staging: &'a mut StagingBuffer) -> [IoSliceMut<'a>; 2] {
        self.decoder.receive_buffers(staging)
    }

    /// Records that bytes were received.
    pub(crate) fn mark_received(&mut self, staging: &mut StagingBuffer, count: usize, now: Instant) {
        self.decoder.mark_received(staging, count);
        self.received_at = now;
        self.progress_at = now;
        self.has_unparsed = true;
    }

    /// Saves the bytes in the staging buffer, and empties it. Called if nothing was received.
    pub(crate) fn save_partial(&mut self, staging: &mut StagingBuffer) {
        self.decoder.save_partial(staging);
    }

    /// Handles frames while there is space for replies, and leaves the staging buffer empty.
    ///
    /// # Errors
    /// The client violated the protocol. The caller must close the connection after sending the queued bytes.
    pub(crate) fn handle_received(
        &mut self,
        staging: &mut StagingBuffer,
        clock: &dyn Fn() -> Instant,
        service: &mut impl RequestExecutor,
    ) -> Result<(), RpcFrameError> {
        let handled = self.handle_frames(staging, clock, service);
        self.decoder.save_partial(staging);
        handled
    }

    fn handle_frames(
        &mut self,
        staging: &mut StagingBuffer,
        clock: &dyn Fn() -> Instant,
        service: &mut impl RequestExecutor,
    ) -> Result<(), RpcFrameError> {
        if !self.has_greeted {
            let Some(theirs) = self.decoder.decode_hello(staging)? else {
                self.has_unparsed = false;
                return Ok(());
            };
            VersionRange::SUPPORTED.negotiate(theirs)?;
            self.has_greeted = true;
        }
        while !self.is_send_queue_full() {
            let Some((frame, payload)) = self.decoder.next_frame(staging)? else {
                self.has_unparsed = false;
                break;
            };
            match frame {
                ClientFrame::Request(head) => {
                    let is_overdue = || is_overdue(&head, self.received_at, clock);
                    self.sessions.handle_request(&head, payload, self.held_bytes_max, is_overdue, service)?;
                }
                ClientFrame::Open { slot, session, epoch, resumed } => {
                    self.sessions.claim_slot(slot)?;
                    self.session_requests.push(SessionRequest::Claim(SessionClaim {
                        slot,
                        session,
                        epoch,
                        is_resumed: resumed,
                    }));
                }
                ClientFrame::Cancel { slot, id } => self.sessions.cancel_request(slot, id)?,
                ClientFrame::Acknowledge { slot, below } => self.sessions.acknowledge(slot, below)?,
                ClientFrame::Close { slot } => {
                    self.session_requests.push(SessionRequest::Close(self.sessions.close_session(slot)?))
                }
                ClientFrame::Ping => self.sessions.append_control_frame(|out| ServerFrame::Pong.append(out)),
            }
        }
        Ok(())
    }

    /// Returns the requests to the registry since the last call.
    pub(crate) fn take_session_requests(&mut self) -> Vec<SessionRequest> {
        std::mem::take(&mut self.session_requests)
    }

    /// Gives the connection a session that it claimed.
    pub(crate) fn attach_session(&mut self, slot: u16, session: Box<ServerSession>) {
        self.sessions.attach_session(slot, session);
    }

    /// Refuses a session that the connection claimed.
    pub(crate) fn refuse_session(&mut self, claim: &SessionClaim, outcome: OpenOutcome) {
        self.sessions.refuse_session(claim.slot, claim.epoch, outcome);
    }

    /// Completes a deferred request. Returns the payload as an error if the session is not on this connection.
    pub(crate) fn complete_deferred(
        &mut self,
        ticket: RequestKey,
        status: farfork_wire::rpc::Status,
        payload: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        self.sessions.complete_deferred(ticket, status, payload)
    }

    /// Number of queued bytes.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.sessions.unsent_bytes()
    }

    /// Fills `slices` with the bytes to send next. Returns the number of slices.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        self.sessions.slices(slices)
    }

    /// Records that `count` bytes were sent.
    pub(crate) fn mark_sent(&mut self, count: usize, now: Instant) {
        self.sessions.mark_sent(count);
        self.progress_at = now;
    }

    /// Whether the connection has made no progress for too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.progress_at);
        let owes = self.sessions.unsent_bytes() > 0 || self.decoder.has_partial_frame();
        (!self.has_greeted && since >= HELLO_TIMEOUT) || (owes && since >= STALL_TIMEOUT)
    }

    /// Returns the sessions of the connection, which has ended, for the registry.
    pub(crate) fn into_sessions(self) -> impl Iterator<Item = Box<ServerSession>> {
        self.sessions.into_sessions()
    }
}

fn is_overdue(head: &RequestHead, received_at: Instant, clock: &dyn Fn() -> Instant) -> bool {
    let remaining = Duration::from_micros(u64::from(head.remaining_us));
    head.remaining_us > 0 && clock().saturating_duration_since(received_at) >= remaining
}
