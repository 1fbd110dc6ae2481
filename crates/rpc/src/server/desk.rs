//! The sessions of one connection, and what is to be sent to it.

use std::io::IoSlice;

use farfork_wire::rpc::{Answer, FrameError, OpenOutcome, ReplyHead, RequestHead, SESSIONS_MAX, SessionId, Status};

use super::peer::Service;
use super::reply::{End, Reply, Ticket};
use super::session::{Admission, Session};
use crate::inbound::Payload;
use crate::spool::{Queue, SLICES_MAX, Spool};

/// The owner of frames that belong to no session.
const CONTROL: u16 = u16::MAX;

/// Most requests of a connection whose handlers answer later.
const RUNNING_MAX: usize = 1 << 14;

/// A small reply's size, in bytes: where so much fits, a segment is not begun.
const REPLY_BYTES_USUAL: usize = 64;

const NOT_OPEN: FrameError = FrameError::Sense("its session is not open");

/// The sessions of one connection.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// By slot.
    seats: Vec<Seat>,
    control: Spool,
    queue: Queue,
    running: usize,
    /// Of all its sessions.
    held_bytes: usize,
}

#[derive(Debug, Default)]
enum Seat {
    #[default]
    Empty,
    /// A claim has no answer yet.
    Claimed,
    Taken(Box<Session>),
}

impl Desk {
    pub(super) fn unsent_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Bytes that its sessions hold.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Does something with a session, and counts the bytes that it holds anew.
    fn change<T>(&mut self, slot: u16, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.held_by(slot);
        let outcome = change(self);
        self.held_bytes = self.held_bytes + self.held_by(slot) - before;
        outcome
    }

    fn held_by(&self, slot: u16) -> usize {
        match self.seats.get(usize::from(slot)) {
            Some(Seat::Taken(session)) => session.held_bytes(),
            _ => 0,
        }
    }

    /// Adds a frame that belongs to no session.
    pub(super) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.control.open(REPLY_BYTES_USUAL);
        let start = out.len();
        write(out);
        let place = self.control.close(start);
        self.queue.push(CONTROL, &mut self.control, &place);
        self.control.release(&place);
    }

    /// Takes note that a slot is claimed.
    pub(super) fn expect(&mut self, slot: u16) -> Result<(), FrameError> {
        assert!(usize::from(slot) < SESSIONS_MAX, "frames were checked");
        if self.seats.len() <= usize::from(slot) {
            self.seats.resize_with(usize::from(slot) + 1, Seat::default);
        }
        let seat = &mut self.seats[usize::from(slot)];
        if !matches!(seat, Seat::Empty) {
            return Err(FrameError::Sense("its slot has a session already"));
        }
        *seat = Seat::Claimed;
        Ok(())
    }

    pub(super) fn grant(&mut self, slot: u16, session: Box<Session>) {
        let epoch = session.epoch;
        self.change(slot, |desk| desk.seats[usize::from(slot)] = Seat::Taken(session));
        self.append(|out| Answer::Opened { slot, epoch, outcome: OpenOutcome::Open }.append(out));
    }

    pub(super) fn refuse(&mut self, slot: u16, epoch: u32, outcome: OpenOutcome) {
        self.seats[usize::from(slot)] = Seat::Empty;
        self.append(|out| Answer::Opened { slot, epoch, outcome }.append(out));
    }

    fn session(&mut self, slot: u16) -> Result<&mut Session, FrameError> {
        match self.seats.get_mut(usize::from(slot)) {
            Some(Seat::Taken(session)) => Ok(session),
            _ => Err(NOT_OPEN),
        }
    }

    /// Executes a request, unless it was before, or there is no room for its answer.
    pub(super) fn request(
        &mut self,
        head: &RequestHead,
        payload: Payload<'_>,
        held_bytes_max: usize,
        is_overdue: impl FnOnce() -> bool,
        service: &mut impl Service,
    ) -> Result<(), FrameError> {
        if self.held_bytes >= held_bytes_max {
            // What it acknowledges gives room.
            self.acknowledge(head.slot, head.id - u64::from(head.behind))?;
        }
        let has_room = self.held_bytes < held_bytes_max;
        self.change(head.slot, |desk| desk.take(head, payload, has_room, is_overdue, service))
    }

    fn take(
        &mut self,
        head: &RequestHead,
        payload: Payload<'_>,
        has_room: bool,
        is_overdue: impl FnOnce() -> bool,
        service: &mut impl Service,
    ) -> Result<(), FrameError> {
        let Some(Seat::Taken(session)) = self.seats.get_mut(usize::from(head.slot)) else { return Err(NOT_OPEN) };
        match session.admit(head.id, head.id - u64::from(head.behind))? {
            // It stays unseen: asked again, it may be executed.
            Admission::New if !has_room => {
                let head = ReplyHead { slot: head.slot, id: head.id, status: Status::Overloaded, checked: false };
                self.append(|out| seal_empty(&head, out));
                return Ok(());
            }
            Admission::New => {}
            Admission::Known => return Ok(()),
            Admission::Replay(place) => {
                self.queue.push(head.slot, &mut session.spool, &place);
                return Ok(());
            }
            Admission::NotKept => {
                let head = ReplyHead { slot: head.slot, id: head.id, status: Status::NotKept, checked: false };
                self.append(|out| seal_empty(&head, out));
                return Ok(());
            }
        }
        let out = session.spool.open(REPLY_BYTES_USUAL);
        let start = out.len();
        out.resize(start + ReplyHead::bytes_of(head.checked), 0);
        let mut reply = Reply::new(out);
        if is_overdue() {
            reply.end(Status::Overdue, "");
        } else if self.running >= RUNNING_MAX {
            reply.end(Status::Overloaded, "");
        } else {
            let ticket = Ticket { session: session.id, id: head.id, checked: head.checked };
            service.call(head.handler, ticket, payload, &mut reply);
        }
        match reply.into_end() {
            End::Now(status, apart) => {
                let head = ReplyHead { slot: head.slot, id: head.id, status, checked: head.checked };
                session.finish(&head, start, apart, Some(&mut self.queue));
            }
            End::Later(cancelled) => {
                session.spool.opened().truncate(start);
                session.runs(head.id, cancelled);
                self.running += 1;
            }
        }
        Ok(())
    }

    /// Ends a request that was to be answered later; gives the answer back where its session is not here.
    pub(super) fn complete(&mut self, ticket: Ticket, status: Status, payload: Vec<u8>) -> Result<(), Vec<u8>> {
        let is_its = |seat: &Seat| matches!(seat, Seat::Taken(session) if session.id == ticket.session);
        let Some(slot) = self.seats.iter().position(is_its) else { return Err(payload) };
        self.running = self.running.saturating_sub(1);
        self.end_later(slot as u16, ticket, status, payload);
        Ok(())
    }

    fn end_later(&mut self, slot: u16, ticket: Ticket, status: Status, payload: Vec<u8>) {
        self.change(slot, |desk| {
            if let Some(Seat::Taken(session)) = desk.seats.get_mut(usize::from(slot)) {
                session.complete(ticket, status, payload, Some(&mut desk.queue));
            }
        });
    }

    pub(super) fn cancel(&mut self, slot: u16, id: u64) -> Result<(), FrameError> {
        let session = self.session(slot)?;
        if session.cancel(id) {
            let ticket = Ticket { session: session.id, id, checked: false };
            self.end_later(slot, ticket, Status::Cancelled, Vec::new());
        }
        Ok(())
    }

    pub(super) fn acknowledge(&mut self, slot: u16, below: u64) -> Result<(), FrameError> {
        self.change(slot, |desk| desk.session(slot).map(|session| session.acknowledge(below)))
    }

    /// Ends a session. What waits to be sent of it is sent.
    pub(super) fn close(&mut self, slot: u16) -> Result<SessionId, FrameError> {
        let seat = self.change(slot, |desk| desk.seats.get_mut(usize::from(slot)).map(std::mem::take));
        let Some(Seat::Taken(mut session)) = seat else { return Err(NOT_OPEN) };
        session.acknowledge(u64::MAX);
        self.queue.reassign(slot, &mut session.spool, CONTROL, &mut self.control);
        Ok(session.id)
    }

    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        self.queue.slices(slices, |owner| match self.seats.get(usize::from(owner)) {
            Some(Seat::Taken(session)) => &session.spool,
            _ => &self.control,
        })
    }

    pub(super) fn sent(&mut self, count: usize) {
        let Self { seats, control, queue, held_bytes, .. } = self;
        queue.sent(count, |owner, ended| match seats.get_mut(usize::from(owner)) {
            Some(Seat::Taken(session)) => {
                let before = session.held_bytes();
                ended.tell(&mut session.spool);
                *held_bytes = *held_bytes + session.held_bytes() - before;
            }
            _ => ended.tell(control),
        });
    }

    pub(super) fn into_sessions(self) -> impl Iterator<Item = Box<Session>> {
        self.seats.into_iter().filter_map(|seat| match seat {
            Seat::Taken(mut session) => {
                session.spool.forget_runs();
                Some(session)
            }
            _ => None,
        })
    }
}

fn seal_empty(head: &ReplyHead, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + head.bytes(), 0);
    head.seal(&mut out[start..], None);
}
