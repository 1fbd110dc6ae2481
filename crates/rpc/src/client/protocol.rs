//! The client's side of the protocol. Pure: bytes and time are arguments. [`Client`](super::Client) moves the bytes.
//!
//! Requests are accepted in every state. They are sent when their session is open, and again when the session is
//! resumed on a new connection.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::time::Instant;

use farfork_wire::rpc::{ClientFrame, ServerFrame, SessionId, VersionRange};

use super::keepalive::KeepaliveTimer;
use super::request::{CallError, Completion, OutgoingRequest, RequestPayload, SubmitError};
use super::request_window::{PendingRequest, remaining_us};
use super::session::{ClientSession, SessionStage};
use crate::frame_decoder::FrameDecoder;
use crate::retransmit::{RetransmitBuffer, SLICES_MAX, SendQueue};

/// Capacity of the retransmit buffer, in bytes, at which further requests are refused.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Identifies the retransmit buffer to the send queue. A client has one.
pub(super) const BUFFER_OWNER: u16 = 0;

/// Approximate size of a control frame, in bytes.
const CONTROL_FRAME_BYTES: usize = 32;

/// Refers to a session of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionHandle(pub(super) u16);

/// The client's side of its connection.
pub(crate) struct ClientProtocol {
    pub(super) decoder: FrameDecoder<ServerFrame>,
    pub(super) retransmit: RetransmitBuffer,
    pub(super) send_queue: SendQueue,
    /// Sessions by slot.
    pub(super) sessions: Vec<Option<ClientSession>>,
    pub(super) state: ConnectionState,
    pub(super) new_session_id: Box<dyn FnMut() -> SessionId + Send>,
    /// Requests that ended without a reply.
    pub(super) ended_requests: VecDeque<(u64, CallError)>,
    pub(super) unanswered: usize,
    /// A lower bound of all deadlines. The request with this deadline may already have ended.
    pub(super) deadline_hint: Option<Instant>,
    pub(super) keepalive: KeepaliveTimer,
}

//            connected               hello received
//     Down ------------> Greeting ---------------> Up
//      ^                     |                     |   a session: Closed - OPEN -> Opening - OPENED -> Open
//      +--- disconnected ----+---------------------+           ^                                     |
//                                                              +---------- disconnected -------------+

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Down,
    Greeting,
    Up,
}

impl fmt::Debug for ClientProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientProtocol")
            .field("state", &self.state)
            .field("unanswered", &self.unanswered)
            .finish_non_exhaustive()
    }
}

impl ClientProtocol {
    /// Creates the state without a connection. `new_id` must return ids that are unique and cannot be guessed.
    pub(crate) fn new(now: Instant, new_id: Box<dyn FnMut() -> SessionId + Send>) -> Self {
        Self {
            decoder: FrameDecoder::default(),
            retransmit: RetransmitBuffer::default(),
            send_queue: SendQueue::default(),
            sessions: Vec::new(),
            state: ConnectionState::Down,
            new_session_id: new_id,
            ended_requests: VecDeque::new(),
            unanswered: 0,
            deadline_hint: None,
            keepalive: KeepaliveTimer::new(now),
        }
    }

    /// Queues a request, or stores it until its session is open.
    pub(crate) fn submit(
        &mut self,
        now: Instant,
        key: SessionHandle,
        call: &OutgoingRequest,
        body: RequestPayload<'_>,
    ) -> Result<(), SubmitError> {
        body.check_length()?;
        if self.retransmit.held_bytes() >= HELD_BYTES_MAX {
            return Err(SubmitError::Full);
        }
        let session = self.sessions.get_mut(usize::from(key.0)).and_then(Option::as_mut);
        let session = session.ok_or(SubmitError::SessionClosed)?;
        let id = session.requests.next_id().ok_or(SubmitError::Full)?;
        let oldest_pending_distance = (id - session.requests.oldest_pending()) as u32;
        let remaining_us = remaining_us(call.deadline, now);
        let location =
            body.write_frame(&mut self.retransmit, &call.to_head(key.0, id, oldest_pending_distance, remaining_us));
        let sent = session.stage == SessionStage::Open;
        if sent {
            self.send_queue.push(BUFFER_OWNER, &mut self.retransmit, &location);
            session.unacknowledged_bytes = 0;
        }
        let OutgoingRequest { handler, tag, deadline, checked } = *call;
        session.requests.push(PendingRequest { tag, handler, checked, sent, deadline, location });
        if let Some(deadline) = deadline {
            self.deadline_hint = Some(self.deadline_hint.map_or(deadline, |hint| hint.min(deadline)));
        }
        if self.unanswered == 0 {
            self.keepalive.start(now);
        }
        self.unanswered += 1;
        if session.stage == SessionStage::Closed && self.state == ConnectionState::Up {
            self.send_open(usize::from(key.0));
        }
        Ok(())
    }

    /// Cancels a request. Returns false if the request has ended. The server may have executed a cancelled request.
    pub(crate) fn cancel(&mut self, key: SessionHandle, tag: u64) -> bool {
        let session = self.sessions.get(usize::from(key.0)).and_then(Option::as_ref);
        let Some(id) = session.and_then(|session| session.requests.find(|request| request.tag == tag)) else {
            return false;
        };
        self.end_request(usize::from(key.0), id, CallError::Cancelled);
        true
    }

    /// Ends a request without a reply.
    pub(super) fn end_request(&mut self, slot: usize, id: u64, error: CallError) {
        let Some(session) = self.sessions[slot].as_mut() else { return };
        let is_open = session.stage == SessionStage::Open;
        let Some(request) = session.requests.take(id) else { return };
        self.retransmit.release_frame(&request.location);
        self.unanswered -= 1;
        self.ended_requests.push_back((request.tag, error));
        if is_open && request.sent {
            self.append_frame(&ClientFrame::Cancel { slot: slot as u16, id });
        }
    }

    /// Number of requests that have not ended.
    pub(crate) fn unanswered_count(&self) -> usize {
        self.unanswered
    }

    /// Whether there are requests for which a connection is needed.
    pub(crate) fn needs_connection(&self) -> bool {
        self.unanswered > 0
    }

    /// Handles the start of a connection: queues the hello.
    pub(crate) fn handle_connected(&mut self, now: Instant) {
        debug_assert_eq!(self.state, ConnectionState::Down);
        self.state = ConnectionState::Greeting;
        self.keepalive.start(now);
        self.decoder = FrameDecoder::default();
        self.append_with(|out| out.extend_from_slice(&VersionRange::SUPPORTED.encode()));
    }

    /// Handles the end of the connection. All unanswered requests will be sent again.
    pub(crate) fn handle_disconnected(&mut self) {
        self.state = ConnectionState::Down;
        self.send_queue.clear();
        self.retransmit.clear_run_refs();
        for slot in &mut self.sessions {
            match slot {
                Some(session) if session.stage != SessionStage::Closing => session.stage = SessionStage::Closed,
                _ => *slot = None,
            }
        }
    }

    pub(super) fn append_frame(&mut self, frame: &ClientFrame) {
        self.append_with(|out| frame.append(out));
    }

    fn append_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.retransmit.begin_frame(CONTROL_FRAME_BYTES);
        let start = out.len();
        write(out);
        let location = self.retransmit.end_frame(start);
        self.send_queue.push(BUFFER_OWNER, &mut self.retransmit, &location);
        self.retransmit.release_frame(&location);
    }

    /// Number of queued bytes.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.send_queue.queued_bytes()
    }

    /// Fills `slices` with the bytes to send next. Returns the number of slices.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        self.send_queue.slices(slices, |_| &self.retransmit)
    }

    /// Records that `count` bytes were sent.
    pub(crate) fn mark_sent(&mut self, count: usize) {
        let Self { send_queue: queue, retransmit: spool, .. } = self;
        queue.mark_sent(count, |_, ended| ended.release(spool));
    }

    /// Ends overdue requests, and pings the server if it has been silent for a while.
    ///
    /// # Errors
    /// The server was silent for too long. The caller must close the connection.
    pub(crate) fn advance(&mut self, now: Instant) -> Result<(), super::ConnectionError> {
        if self.deadline_hint.is_some_and(|hint| hint <= now) {
            self.expire_requests(now);
        }
        let owed = self.unanswered > 0 || self.state == ConnectionState::Greeting;
        if self.state != ConnectionState::Down
            && owed
            && self.keepalive.should_ping(now)?
            && self.state == ConnectionState::Up
        {
            self.append_frame(&ClientFrame::Ping);
        }
        Ok(())
    }

    fn expire_requests(&mut self, now: Instant) {
        self.deadline_hint = None;
        for slot in 0..self.sessions.len() {
            let is_overdue = |request: &PendingRequest| request.deadline.is_some_and(|deadline| deadline <= now);
            while let Some(id) = self.sessions[slot].as_ref().and_then(|session| session.requests.find(is_overdue)) {
                self.end_request(slot, id, CallError::DeadlineExceeded);
            }
            let next = self.sessions[slot].as_ref().and_then(|session| session.requests.next_deadline());
            self.deadline_hint = [self.deadline_hint, next].into_iter().flatten().min();
        }
    }

    /// Ends all requests.
    pub(crate) fn fail_all(&mut self, error: &CallError) {
        for slot in 0..self.sessions.len() {
            let ids: Vec<u64> = self.sessions[slot].iter().flat_map(|session| session.requests.ids()).collect();
            ids.into_iter().for_each(|id| self.end_request(slot, id, error.clone()));
        }
    }

    /// Reports the requests that ended without a reply.
    pub(crate) fn drain_ended(&mut self, on_end: &mut impl FnMut(Completion<'_>)) {
        while let Some((tag, error)) = self.ended_requests.pop_front() {
            on_end(Completion { tag, result: Err(error) });
        }
    }

    /// Returns the time at which [`ClientProtocol::advance`] has something to do.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let owed =
            self.state != ConnectionState::Down && (self.unanswered > 0 || self.state == ConnectionState::Greeting);
        let silence = owed.then(|| self.keepalive.next_timeout());
        [self.deadline_hint, silence].into_iter().flatten().min()
    }
}
