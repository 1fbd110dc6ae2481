//! A client's side of the protocol, pure: bytes and time are arguments, requests and their ends are what it is for.
//!
//! ```text
//!            connected()            hello received
//!     Down ─────────────▶ Greeting ───────────────▶ Up
//!      ▲                      │                     │   a session: Closed ─ OPEN ─▶ Opening ─ OPENED ─▶ Open
//!      └──── disconnected() ──┴─────────────────────┘            ▲                                      │
//!                                                                └──────────── disconnected() ──────────┘
//! ```
//!
//! Requests are taken in every state; they are sent when their session is open, and again when it is resumed.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::time::Instant;

use farfork_wire::rpc::{Answer, Ask, SessionId, Versions};

use super::call::{Body, CallError, Completion, Outgoing, SubmitError};
use super::requests::{Waiting, remaining_us};
use super::session::{Session, Stage};
use super::silence::Silence;
use crate::inbound::Inbound;
use crate::spool::{Queue, SLICES_MAX, Spool};

/// Most bytes of unanswered requests.
const HELD_BYTES_MAX: usize = 64 << 20;

/// The owner of all frames: a client has one spool.
pub(super) const OWNER: u16 = 0;

/// A control frame's size, in bytes, about.
const CONTROL_BYTES: usize = 32;

/// A session of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionKey(pub(super) u16);

/// A client's side of one connection at a time.
pub(crate) struct Core {
    pub(super) inbound: Inbound<Answer>,
    pub(super) spool: Spool,
    pub(super) queue: Queue,
    /// By slot.
    pub(super) sessions: Vec<Option<Session>>,
    pub(super) state: State,
    pub(super) new_id: Box<dyn FnMut() -> SessionId + Send>,
    /// Requests that ended without a frame.
    pub(super) ended: VecDeque<(u64, CallError)>,
    pub(super) unanswered: usize,
    /// No deadline is earlier; there may be none at it any more.
    pub(super) deadline_hint: Option<Instant>,
    pub(super) silence: Silence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Down,
    Greeting,
    Up,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("state", &self.state).field("unanswered", &self.unanswered).finish_non_exhaustive()
    }
}

impl Core {
    /// `new_id` gives what nobody guesses, and nobody has given before.
    pub(crate) fn new(now: Instant, new_id: Box<dyn FnMut() -> SessionId + Send>) -> Self {
        Self {
            inbound: Inbound::default(),
            spool: Spool::default(),
            queue: Queue::default(),
            sessions: Vec::new(),
            state: State::Down,
            new_id,
            ended: VecDeque::new(),
            unanswered: 0,
            deadline_hint: None,
            silence: Silence::new(now),
        }
    }

    /// Takes a request; it is sent with the next bytes.
    pub(crate) fn submit(
        &mut self,
        now: Instant,
        key: SessionKey,
        call: &Outgoing,
        body: Body<'_>,
    ) -> Result<(), SubmitError> {
        body.check()?;
        if self.spool.held_bytes() >= HELD_BYTES_MAX {
            return Err(SubmitError::Full);
        }
        let session = self.sessions.get_mut(usize::from(key.0)).and_then(Option::as_mut);
        let session = session.ok_or(SubmitError::NoSession)?;
        let id = session.requests.next().ok_or(SubmitError::Full)?;
        let behind = (id - session.requests.floor()) as u32;
        let remaining_us = remaining_us(call.deadline, now);
        let place = body.write(&mut self.spool, &call.head(key.0, id, behind, remaining_us));
        let sent = session.stage == Stage::Open;
        if sent {
            self.queue.push(OWNER, &mut self.spool, &place);
            session.unacknowledged_bytes = 0;
        }
        let Outgoing { handler, tag, deadline, checked } = *call;
        session.requests.push(Waiting { tag, handler, checked, sent, deadline, place });
        if let Some(deadline) = deadline {
            self.deadline_hint = Some(self.deadline_hint.map_or(deadline, |hint| hint.min(deadline)));
        }
        if self.unanswered == 0 {
            self.silence.begins(now);
        }
        self.unanswered += 1;
        if session.stage == Stage::Closed && self.state == State::Up {
            self.send_open(usize::from(key.0));
        }
        Ok(())
    }

    /// Takes a request back. What came of it at the server, nobody knows.
    pub(crate) fn cancel(&mut self, key: SessionKey, tag: u64) -> bool {
        let session = self.sessions.get(usize::from(key.0)).and_then(Option::as_ref);
        let Some(id) = session.and_then(|session| session.requests.find(|request| request.tag == tag)) else {
            return false;
        };
        self.end(usize::from(key.0), id, CallError::Cancelled);
        true
    }

    /// Ends a request without an answer.
    pub(super) fn end(&mut self, slot: usize, id: u64, error: CallError) {
        let Some(session) = self.sessions[slot].as_mut() else { return };
        let is_open = session.stage == Stage::Open;
        let Some(request) = session.requests.take(id) else { return };
        self.spool.release(&request.place);
        self.unanswered -= 1;
        self.ended.push_back((request.tag, error));
        if is_open && request.sent {
            self.append(&Ask::Cancel { slot: slot as u16, id });
        }
    }

    /// Number of requests that have not ended.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Whether it has anything to do with a connection.
    pub(crate) fn wants_connection(&self) -> bool {
        self.unanswered > 0
    }

    /// A connection is there.
    pub(crate) fn connected(&mut self, now: Instant) {
        debug_assert_eq!(self.state, State::Down);
        self.state = State::Greeting;
        self.silence.begins(now);
        self.inbound = Inbound::default();
        self.append_with(|out| out.extend_from_slice(&Versions::OURS.encode()));
    }

    /// The connection is gone. What was sent will be sent again.
    pub(crate) fn disconnected(&mut self) {
        self.state = State::Down;
        self.queue.clear();
        self.spool.forget_runs();
        for place in &mut self.sessions {
            match place {
                Some(session) if session.stage != Stage::Closing => session.stage = Stage::Closed,
                _ => *place = None,
            }
        }
    }

    pub(super) fn append(&mut self, ask: &Ask) {
        self.append_with(|out| ask.append(out));
    }

    fn append_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.spool.open(CONTROL_BYTES);
        let start = out.len();
        write(out);
        let place = self.spool.close(start);
        self.queue.push(OWNER, &mut self.spool, &place);
        self.spool.release(&place);
    }

    /// Bytes that are still to be sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// The bytes to send next, as slices.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        self.queue.slices(slices, |_| &self.spool)
    }

    /// Takes note that `count` bytes were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        let Self { queue, spool, .. } = self;
        queue.sent(count, |_, ended| ended.tell(spool));
    }

    /// Ends what is overdue; gives whether the server must be asked for a sign of life, or is gone.
    ///
    /// # Errors
    /// The server was silent for too long; the connection must end.
    pub(crate) fn advance(&mut self, now: Instant) -> Result<(), super::ConnectionError> {
        if self.deadline_hint.is_some_and(|hint| hint <= now) {
            self.expire(now);
        }
        let owed = self.unanswered > 0 || self.state == State::Greeting;
        if self.state != State::Down && owed && self.silence.must_ask(now)? && self.state == State::Up {
            self.append(&Ask::Ping);
        }
        Ok(())
    }

    fn expire(&mut self, now: Instant) {
        self.deadline_hint = None;
        for slot in 0..self.sessions.len() {
            let is_overdue = |request: &Waiting| request.deadline.is_some_and(|deadline| deadline <= now);
            while let Some(id) = self.sessions[slot].as_ref().and_then(|session| session.requests.find(is_overdue)) {
                self.end(slot, id, CallError::Overdue);
            }
            let next = self.sessions[slot].as_ref().and_then(|session| session.requests.next_deadline());
            self.deadline_hint = [self.deadline_hint, next].into_iter().flatten().min();
        }
    }

    /// Ends everything that waits.
    pub(crate) fn fail_all(&mut self, error: &CallError) {
        for slot in 0..self.sessions.len() {
            let ids: Vec<u64> = self.sessions[slot].iter().flat_map(|session| session.requests.ids()).collect();
            ids.into_iter().for_each(|id| self.end(slot, id, error.clone()));
        }
    }

    /// Tells what ended without a frame.
    pub(crate) fn drain_ended(&mut self, on_end: &mut impl FnMut(Completion<'_>)) {
        while let Some((tag, error)) = self.ended.pop_front() {
            on_end(Completion { tag, result: Err(error) });
        }
    }

    /// When [`Core::advance`] has something to do.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let owed = self.state != State::Down && (self.unanswered > 0 || self.state == State::Greeting);
        let silence = owed.then(|| self.silence.next_timeout());
        [self.deadline_hint, silence].into_iter().flatten().min()
    }
}
