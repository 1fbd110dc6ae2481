//! The server's side of one connection: decodes frames, calls handlers, encodes replies. Pure: bytes and time are
//! arguments.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use farfork_wire::rpc::{ClientFrame, OpenOutcome, RequestHead, RpcFrameError, ServerFrame, SessionId, VersionRange};

use super::reply::{ReplyWriter, RequestKey};
use super::session::ServerSession;
use super::session_registry::SessionClaim;
use super::session_table::SessionTable;
use crate::frame_decoder::{FrameDecoder, ReceivedPayload, StagingBuffer};
use crate::retransmit::SLICES_MAX;

/// Bytes that may wait for a client before its further requests do. One more reply may exceed it.
const SEND_QUEUE_BYTES_MAX: usize = 4 << 20;

/// Most bytes that are held for a connection: replies of all its sessions that were not acknowledged, what its sessions
/// remember, and what has come of a payload. Beyond, its requests are refused; four sessions may keep as much as one may.
pub(crate) const HELD_BYTES_MAX: usize = 128 << 20;

/// How long a connection may go without a greeting.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long replies may wait without any being taken, or a long payload without any of it coming.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What executes requests.
pub(crate) trait RequestExecutor {
    /// Executes a request. When the reply is to come later, `reply` says so, and the ticket names the request then.
    fn execute(&mut self, handler: u32, ticket: RequestKey, payload: ReceivedPayload<'_>, reply: &mut ReplyWriter<'_>);
}

/// What a connection wants of the registry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionRequest {
    /// A session.
    Claim(SessionClaim),
    /// The end of one.
    Close(SessionId),
}

/// One client's connection.
#[derive(Debug)]
pub(crate) struct ServerProtocol {
    decoder: FrameDecoder<ClientFrame>,
    sessions: SessionTable,
    has_greeted: bool,
    /// Whether there may be frames that were received but not understood.
    has_unparsed: bool,
    /// Most bytes that may be held for it now.
    held_bytes_max: usize,
    received_at: Instant,
    /// When it last got on: when it came, when something was received or taken.
    progress_at: Instant,
    session_requests: Vec<SessionRequest>,
}

impl ServerProtocol {
    /// A connection that has just come; the greeting is the first to be sent.
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

    /// Whether it has greeted.
    pub(crate) fn has_greeted(&self) -> bool {
        self.has_greeted
    }

    /// Bytes that are held for it.
    pub(crate) fn held_bytes(&self) -> usize {
        self.sessions.held_bytes() + self.decoder.held_bytes()
    }

    /// Says how many bytes may be held for it from now on.
    pub(crate) fn set_held_bytes_max(&mut self, bytes: usize) {
        self.held_bytes_max = bytes;
    }

    /// Whether it may receive: not while too many replies wait, or requests that were received before, or while the rest
    /// of a payload has no room.
    pub(crate) fn can_receive(&self) -> bool {
        !self.has_unparsed && !self.is_send_queue_full() && !self.is_payload_blocked()
    }

    /// Whether a payload is coming that there is no room for now. What gives room is never behind it in the stream: other
    /// connections' acknowledgements, or the end of some that do not get on.
    pub(crate) fn is_payload_blocked(&self) -> bool {
        self.decoder.has_partial_payload() && self.held_bytes() >= self.held_bytes_max
    }

    /// Whether frames that were received before can be handled now.
    pub(crate) fn has_backlog(&self) -> bool {
        self.has_unparsed && !self.is_send_queue_full()
    }

    fn is_send_queue_full(&self) -> bool {
        self.sessions.unsent_bytes() >= SEND_QUEUE_BYTES_MAX
    }

    /// Prepares the staging area for what was kept; then come [`ServerProtocol::receive_buffers`].
    pub(crate) fn restore_partial(&mut self, staging: &mut StagingBuffer) {
        self.decoder.restore_partial(staging);
    }

    /// Where to receive into.
    pub(crate) fn receive_buffers<'a>(&'a mut self, staging: &'a mut StagingBuffer) -> [IoSliceMut<'a>; 2] {
        self.decoder.receive_buffers(staging)
    }

    /// Takes note of what was received.
    pub(crate) fn mark_received(&mut self, staging: &mut StagingBuffer, count: usize, now: Instant) {
        self.decoder.mark_received(staging, count);
        self.received_at = now;
        self.progress_at = now;
        self.has_unparsed = true;
    }

    /// Empties the staging area where nothing was received.
    pub(crate) fn save_partial(&mut self, staging: &mut StagingBuffer) {
        self.decoder.save_partial(staging);
    }

    /// Handles frames while there is room for replies; leaves the staging area empty.
    ///
    /// # Errors
    /// The client violates the protocol: the connection must end, once what waits was sent.
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

    /// What it wants of the registry, since the last time.
    pub(crate) fn take_session_requests(&mut self) -> Vec<SessionRequest> {
        std::mem::take(&mut self.session_requests)
    }

    /// Gives it a session that it claimed.
    pub(crate) fn attach_session(&mut self, slot: u16, session: Box<ServerSession>) {
        self.sessions.attach_session(slot, session);
    }

    /// Tells it that it cannot have a session that it claimed.
    pub(crate) fn refuse_session(&mut self, claim: &SessionClaim, outcome: OpenOutcome) {
        self.sessions.refuse_session(claim.slot, claim.epoch, outcome);
    }

    /// Ends a request that was to be answered later; gives the answer back where the session is not here.
    pub(crate) fn complete_deferred(
        &mut self,
        ticket: RequestKey,
        status: farfork_wire::rpc::Status,
        payload: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        self.sessions.complete_deferred(ticket, status, payload)
    }

    /// Bytes that are still to be sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.sessions.unsent_bytes()
    }

    /// The bytes to send next, as slices.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        self.sessions.slices(slices)
    }

    /// Takes note that `count` bytes were sent.
    pub(crate) fn mark_sent(&mut self, count: usize, now: Instant) {
        self.sessions.mark_sent(count);
        self.progress_at = now;
    }

    /// Whether it did not get on for too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.progress_at);
        let owes = self.sessions.unsent_bytes() > 0 || self.decoder.has_partial_frame();
        (!self.has_greeted && since >= HELLO_TIMEOUT) || (owes && since >= STALL_TIMEOUT)
    }

    /// Its sessions, for the registry, once the connection has ended.
    pub(crate) fn into_sessions(self) -> impl Iterator<Item = Box<ServerSession>> {
        self.sessions.into_sessions()
    }
}

fn is_overdue(head: &RequestHead, received_at: Instant, clock: &dyn Fn() -> Instant) -> bool {
    let remaining = Duration::from_micros(u64::from(head.remaining_us));
    head.remaining_us > 0 && clock().saturating_duration_since(received_at) >= remaining
}
