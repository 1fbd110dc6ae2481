//! The sessions of one connection, and the frames to send on it.

use std::io::IoSlice;

use farfork_wire::rpc::{
    OpenOutcome, ReplyHead, RequestHead, RpcFrameError, SESSIONS_MAX, ServerFrame, SessionId, Status,
};

use super::protocol::RequestExecutor;
use super::reply::{HandlerOutcome, ReplyWriter, RequestKey};
use super::session::{Admission, ServerSession};
use crate::frame_decoder::ReceivedPayload;
use crate::retransmit::{RetransmitBuffer, SLICES_MAX, SendQueue};

/// The owner number of frames that belong to no session.
const CONTROL_OWNER: u16 = u16::MAX;

/// Maximum number of deferred requests of a connection.
const DEFERRED_MAX: usize = 1 << 14;

/// Size of a small reply, in bytes. A segment with this much space left is used for the next reply.
const SMALL_REPLY_BYTES: usize = 64;

const SESSION_NOT_OPEN: RpcFrameError = RpcFrameError::Invalid("its session is not open");

/// The sessions of one connection.
#[derive(Debug, Default)]
pub(super) struct SessionTable {
    /// Sessions by slot.
    slots: Vec<SessionSlot>,
    control_frames: RetransmitBuffer,
    send_queue: SendQueue,
    deferred_count: usize,
    /// Bytes that all sessions hold.
    held_bytes: usize,
}

#[derive(Debug, Default)]
enum SessionSlot {
    #[default]
    Empty,
    /// The registry has not decided the claim yet.
    Claimed,
    Open(Box<ServerSession>),
}

impl SessionTable {
    pub(super) fn unsent_bytes(&self) -> usize {
        self.send_queue.queued_bytes()
    }

    /// Returns the bytes that all sessions hold.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Changes a session, and updates the number of held bytes.
    fn with_accounting<T>(&mut self, slot: u16, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.session_held_bytes(slot);
        let outcome = change(self);
        self.held_bytes = self.held_bytes + self.session_held_bytes(slot) - before;
        outcome
    }

    fn session_held_bytes(&self, slot: u16) -> usize {
        match self.slots.get(usize::from(slot)) {
            Some(SessionSlot::Open(session)) => session.held_bytes(),
            _ => 0,
        }
    }

    /// Queues a frame that belongs to no session.
    pub(super) fn append_control_frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.control_frames.begin_frame(SMALL_REPLY_BYTES);
        let start = out.len();
        write(out);
        let location = self.control_frames.end_frame(start);
        self.send_queue.push(CONTROL_OWNER, &mut self.control_frames, &location);
        self.control_frames.release_frame(&location);
    }

    /// Records that a slot is claimed.
    pub(super) fn claim_slot(&mut self, slot: u16) -> Result<(), RpcFrameError> {
        assert!(usize::from(slot) < SESSIONS_MAX, "frames were checked");
        if self.slots.len() <= usize::from(slot) {
            self.slots.resize_with(usize::from(slot) + 1, SessionSlot::default);
        }
        let session_slot = &mut self.slots[usize::from(slot)];
        if !matches!(session_slot, SessionSlot::Empty) {
            return Err(RpcFrameError::Invalid("its slot has a session already"));
        }
        *session_slot = SessionSlot::Claimed;
        Ok(())
    }

    pub(super) fn attach_session(&mut self, slot: u16, session: Box<ServerSession>) {
        let epoch = session.epoch;
        self.with_accounting(slot, |session_table| session_table.slots[usize::from(slot)] = SessionSlot::Open(session));
        self.append_control_frame(|out| ServerFrame::Opened { slot, epoch, outcome: OpenOutcome::Opened }.append(out));
    }

    pub(super) fn refuse_session(&mut self, slot: u16, epoch: u32, outcome: OpenOutcome) {
        self.slots[usize::from(slot)] = SessionSlot::Empty;
        self.append_control_frame(|out| ServerFrame::Opened { slot, epoch, outcome }.append(out));
    }

    fn session_mut(&mut self, slot: u16) -> Result<&mut ServerSession, RpcFrameError> {
        match self.slots.get_mut(usize::from(slot)) {
            Some(SessionSlot::Open(session)) => Ok(session),
            _ => Err(SESSION_NOT_OPEN),
        }
    }

    /// Executes a request, unless it was executed before, or there is no space for its reply.
    pub(super) fn handle_request(
        &mut self,
        head: &RequestHead,
        payload: ReceivedPayload<'_>,
        held_bytes_max: usize,
        is_overdue: impl FnOnce() -> bool,
        service: &mut impl RequestExecutor,
    ) -> Result<(), RpcFrameError> {
        if self.held_bytes >= held_bytes_max {
            // Process the request's acknowledgement first: it may free space.
            self.acknowledge(head.slot, head.id - u64::from(head.oldest_pending_distance))?;
        }
        let has_room = self.held_bytes < held_bytes_max;
        self.with_accounting(head.slot, |session_table| {
            session_table.execute_request(head, payload, has_room, is_overdue, service)
        })
    }

    fn execute_request(
        &mut self,
        head: &RequestHead,
        payload: ReceivedPayload<'_>,
        has_room: bool,
        is_overdue: impl FnOnce() -> bool,
        service: &mut impl RequestExecutor,
    ) -> Result<(), RpcFrameError> {
        let Some(SessionSlot::Open(session)) = self.slots.get_mut(usize::from(head.slot)) else {
            return Err(SESSION_NOT_OPEN);
        };
        match session.admit(head.id, head.id - u64::from(head.oldest_pending_distance))? {
            // The request stays unseen: if the client sends it again, it may be executed.
            Admission::New if !has_room => {
                let head =
                    ReplyHead { slot: head.slot, id: head.id, status: Status::Overloaded, has_payload_crc: false };
                self.append_control_frame(|out| append_empty_reply(&head, out));
                return Ok(());
            }
            Admission::New => {}
            Admission::Duplicate => return Ok(()),
            Admission::Replay(location) => {
                self.send_queue.push(head.slot, &mut session.replies, &location);
                return Ok(());
            }
            Admission::ReplyEvicted => {
                let head =
                    ReplyHead { slot: head.slot, id: head.id, status: Status::ReplyEvicted, has_payload_crc: false };
                self.append_control_frame(|out| append_empty_reply(&head, out));
                return Ok(());
            }
        }
        let out = session.replies.begin_frame(SMALL_REPLY_BYTES);
        let start = out.len();
        out.resize(start + ReplyHead::head_bytes_with(head.has_payload_crc), 0);
        let mut reply = ReplyWriter::new(out);
        if is_overdue() {
            reply.set_status(Status::DeadlineExceeded, "");
        } else if self.deferred_count >= DEFERRED_MAX {
            reply.set_status(Status::Overloaded, "");
        } else {
            let ticket = RequestKey { session: session.id, id: head.id, checked: head.has_payload_crc };
            service.execute(head.handler, ticket, payload, &mut reply);
        }
        match reply.into_outcome() {
            HandlerOutcome::Answered(status, apart) => {
                let head = ReplyHead { slot: head.slot, id: head.id, status, has_payload_crc: head.has_payload_crc };
                session.store_reply(&head, start, apart, Some(&mut self.send_queue));
            }
            HandlerOutcome::Deferred(cancelled) => {
                session.replies.current_buffer().truncate(start);
                session.mark_deferred(head.id, cancelled);
                self.deferred_count += 1;
            }
        }
        Ok(())
    }

    /// Completes a deferred request. Returns the payload as an error if the session is not on this connection.
    pub(super) fn complete_deferred(
        &mut self,
        ticket: RequestKey,
        status: Status,
        payload: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        let is_its = |session_slot: &SessionSlot| matches!(session_slot, SessionSlot::Open(session) if session.id == ticket.session);
        let Some(slot) = self.slots.iter().position(is_its) else { return Err(payload) };
        self.deferred_count = self.deferred_count.saturating_sub(1);
        self.finish_deferred(slot as u16, ticket, status, payload);
        Ok(())
    }

    fn finish_deferred(&mut self, slot: u16, ticket: RequestKey, status: Status, payload: Vec<u8>) {
        self.with_accounting(slot, |session_table| {
            if let Some(SessionSlot::Open(session)) = session_table.slots.get_mut(usize::from(slot)) {
                session.complete_deferred(ticket, status, payload, Some(&mut session_table.send_queue));
            }
        });
    }

    pub(super) fn cancel_request(&mut self, slot: u16, id: u64) -> Result<(), RpcFrameError> {
        let session = self.session_mut(slot)?;
        if session.cancel_deferred(id) {
            let ticket = RequestKey { session: session.id, id, checked: false };
            self.finish_deferred(slot, ticket, Status::Cancelled, Vec::new());
        }
        Ok(())
    }

    pub(super) fn acknowledge(&mut self, slot: u16, below: u64) -> Result<(), RpcFrameError> {
        self.with_accounting(slot, |session_table| {
            session_table.session_mut(slot).map(|session| session.acknowledge(below))
        })
    }

    /// Closes a session. Its queued frames are still sent.
    pub(super) fn close_session(&mut self, slot: u16) -> Result<SessionId, RpcFrameError> {
        let session_slot = self
            .with_accounting(slot, |session_table| session_table.slots.get_mut(usize::from(slot)).map(std::mem::take));
        let Some(SessionSlot::Open(mut session)) = session_slot else { return Err(SESSION_NOT_OPEN) };
        session.acknowledge(u64::MAX);
        self.send_queue.reassign(slot, &mut session.replies, CONTROL_OWNER, &mut self.control_frames);
        Ok(session.id)
    }

    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        self.send_queue.slices(slices, |owner| match self.slots.get(usize::from(owner)) {
            Some(SessionSlot::Open(session)) => &session.replies,
            _ => &self.control_frames,
        })
    }

    pub(super) fn mark_sent(&mut self, count: usize) {
        let Self { slots: seats, control_frames: control, send_queue: queue, held_bytes, .. } = self;
        queue.mark_sent(count, |owner, ended| match seats.get_mut(usize::from(owner)) {
            Some(SessionSlot::Open(session)) => {
                let before = session.held_bytes();
                ended.release(&mut session.replies);
                *held_bytes = *held_bytes + session.held_bytes() - before;
            }
            _ => ended.release(control),
        });
    }

    pub(super) fn into_sessions(self) -> impl Iterator<Item = Box<ServerSession>> {
        self.slots.into_iter().filter_map(|session_slot| match session_slot {
            SessionSlot::Open(mut session) => {
                session.replies.clear_run_refs();
                Some(session)
            }
            _ => None,
        })
    }
}

fn append_empty_reply(head: &ReplyHead, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + head.head_bytes(), 0);
    head.seal(&mut out[start..], None);
}
