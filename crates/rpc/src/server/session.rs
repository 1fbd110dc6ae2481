//! What a server remembers of a session: which requests have begun, and the replies that its client may not have.
//!
//! ```text
//!      acknowledged   │◀────────────────── window ──────────────────▶│
//!   ──────────────────┼──────┬─────────┬──────┬─────────┬────────────┼──▶ request ids
//!      forgotten      │ done │ running │ done │ running │ not seen   │   beyond: a violation
//!   ──────────────────┴──────┴─────────┴──────┴─────────┴────────────┘
//!                     floor
//! ```
//!
//! A request is executed only when its id was not seen, so at most once; one that is done is answered with its kept
//! reply. A session that keeps too much drops its oldest replies, not the knowledge that their requests were executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_wire::rpc::{FrameError, ReplyHead, SessionId, Status, WINDOW_MAX};

use super::reply::{APART_BYTES_MIN, Ticket};
use crate::spool::{Place, Queue, Spool};

/// Most bytes of sent replies that a session keeps: two of the longest.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// Requests that a session remembers at first.
const WINDOW_MIN: usize = 64;

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) id: SessionId,
    /// The same on all connections, for kept replies bear it.
    pub(super) slot: u16,
    pub(super) epoch: u32,
    /// All requests before it are acknowledged.
    floor: u64,
    /// By request id, modulo their number, which is a power of two.
    entries: Vec<Entry>,
    pub(super) spool: Spool,
}

#[derive(Debug, Default)]
enum Entry {
    #[default]
    Unseen,
    /// A handler answers later; it sees by this whether its client has taken the request back.
    Running(Arc<AtomicBool>),
    Done(Place),
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Execute it.
    New,
    /// Nothing: its reply was acknowledged, or will come.
    Known,
    /// Send its reply once more.
    Replay(Place),
    /// Say that its reply was not kept.
    NotKept,
}

impl Session {
    pub(super) fn new(id: SessionId, slot: u16) -> Self {
        let entries = (0..WINDOW_MIN).map(|_| Entry::default()).collect();
        Self { id, slot, epoch: 0, floor: 0, entries, spool: Spool::default() }
    }

    /// Bytes that it holds: replies, and what it remembers of requests.
    pub(crate) fn held_bytes(&self) -> usize {
        self.spool.held_bytes() + self.entries.len() * size_of::<Entry>()
    }

    /// Whether any handler is to answer later.
    pub(crate) fn is_running(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry, Entry::Running(_)))
    }

    fn index(&self, id: u64) -> usize {
        id as usize & (self.entries.len() - 1)
    }

    fn in_window(&self, id: u64) -> bool {
        id.checked_sub(self.floor).is_some_and(|ahead| ahead < self.entries.len() as u64)
    }

    /// Takes note of a request, whose client has the replies to all before `floor`.
    pub(super) fn admit(&mut self, id: u64, floor: u64) -> Result<Admission, FrameError> {
        self.acknowledge(floor);
        let Some(ahead) = id.checked_sub(self.floor) else { return Ok(Admission::Known) };
        if ahead >= WINDOW_MAX {
            return Err(FrameError::Sense("a request is beyond its session's window"));
        }
        while ahead >= self.entries.len() as u64 {
            self.grow();
        }
        Ok(match &self.entries[self.index(id)] {
            Entry::Unseen => Admission::New,
            Entry::Running(_) => Admission::Known,
            Entry::Done(place) if self.spool.has(place) => Admission::Replay(*place),
            Entry::Done(_) => Admission::NotKept,
        })
    }

    fn grow(&mut self) {
        let longer = (0..self.entries.len() * 2).map(|_| Entry::default()).collect();
        let shorter = std::mem::replace(&mut self.entries, longer);
        let mask = shorter.len() - 1;
        for (at, entry) in shorter.into_iter().enumerate() {
            // The only id of the old window at this place.
            let id = self.floor + ((at.wrapping_sub(self.floor as usize)) & mask) as u64;
            let index = self.index(id);
            self.entries[index] = entry;
        }
    }

    /// Forgets the requests before `floor`. What still runs of them ends without a reply.
    pub(super) fn acknowledge(&mut self, floor: u64) {
        let count = floor.saturating_sub(self.floor).min(self.entries.len() as u64);
        for id in self.floor..self.floor + count {
            let index = self.index(id);
            match std::mem::take(&mut self.entries[index]) {
                Entry::Done(place) => self.spool.release(&place),
                Entry::Running(cancelled) => cancelled.store(true, Ordering::Relaxed),
                Entry::Unseen => {}
            }
        }
        self.floor = self.floor.max(floor);
    }

    /// A handler is to answer later.
    pub(super) fn runs(&mut self, id: u64, cancelled: Arc<AtomicBool>) {
        let index = self.index(id);
        self.entries[index] = Entry::Running(cancelled);
    }

    fn awaits(&self, id: u64) -> bool {
        self.in_window(id) && matches!(self.entries[self.index(id)], Entry::Running(_))
    }

    /// Tells the handler that its client has taken the request back; gives whether it was running.
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        match self.in_window(id).then(|| &self.entries[self.index(id)]) {
            Some(Entry::Running(cancelled)) => {
                cancelled.store(true, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Answers a request that was to be answered later, if anybody still waits for that.
    pub(crate) fn complete(&mut self, ticket: Ticket, status: Status, payload: Vec<u8>, queue: Option<&mut Queue>) {
        if !self.awaits(ticket.id) {
            return;
        }
        let head = ReplyHead { slot: self.slot, id: ticket.id, status, checked: ticket.checked };
        let out = self.spool.open(head.bytes() + payload.len());
        let start = out.len();
        out.resize(start + head.bytes(), 0);
        let is_long = payload.len() >= APART_BYTES_MIN;
        if !is_long {
            out.extend_from_slice(&payload);
        }
        self.finish(&head, start, is_long.then_some(payload), queue);
    }

    /// Seals a reply whose payload is written, or lies apart; keeps it, and has it sent.
    pub(super) fn finish(&mut self, head: &ReplyHead, start: usize, apart: Option<Vec<u8>>, queue: Option<&mut Queue>) {
        head.seal(&mut self.spool.opened()[start..], apart.as_deref());
        let place = match apart {
            Some(payload) => self.spool.close_apart(start, payload),
            None => self.spool.close(start),
        };
        if let Some(queue) = queue {
            queue.push(head.slot, &mut self.spool, &place);
        }
        self.keep(head.id, place);
    }

    fn keep(&mut self, id: u64, place: Place) {
        debug_assert!(self.in_window(id));
        let index = self.index(id);
        self.entries[index] = Entry::Done(place);
        while self.spool.held_bytes() > KEPT_BYTES_MAX && self.spool.evict() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session::new(SessionId::from_bytes([7; 16]), 0)
    }

    fn reply(session: &mut Session, bytes: usize) -> Place {
        let out = session.spool.open(bytes);
        let start = out.len();
        out.resize(start + bytes, 1);
        session.spool.close(start)
    }

    #[test]
    fn a_request_is_new_once() {
        let mut session = session();
        assert_eq!(session.admit(5, 5), Ok(Admission::New));
        let place = reply(&mut session, 10);
        session.keep(5, place);
        assert_eq!(session.admit(5, 5), Ok(Admission::Replay(place)));
        assert_eq!(session.admit(6, 6), Ok(Admission::New));
        assert_eq!(session.admit(5, 5), Ok(Admission::Known), "its reply was acknowledged");
    }

    #[test]
    fn the_window_grows_to_its_limit() {
        let mut session = session();
        for id in 100..100 + WINDOW_MAX {
            assert_eq!(session.admit(id, 100), Ok(Admission::New));
            let place = reply(&mut session, 24);
            session.keep(id, place);
        }
        assert!(session.admit(100 + WINDOW_MAX, 100).is_err());
        for id in 100..100 + WINDOW_MAX {
            assert!(matches!(session.admit(id, 100), Ok(Admission::Replay(_))));
        }
        assert_eq!(session.admit(u64::MAX, u64::MAX - 3), Ok(Admission::New), "all is acknowledged at once");
    }

    #[test]
    fn what_was_not_kept_is_not_executed_again() {
        let mut session = session();
        for id in 0..40 {
            assert_eq!(session.admit(id, 0), Ok(Admission::New));
            let place = reply(&mut session, 1 << 20);
            session.keep(id, place);
        }
        assert!(session.held_bytes() <= KEPT_BYTES_MAX + (2 << 20));
        assert_eq!(session.admit(0, 0), Ok(Admission::NotKept));
        assert!(matches!(session.admit(39, 0), Ok(Admission::Replay(_))));
        session.acknowledge(40);
        assert!(session.held_bytes() < 4 << 20);
    }

    #[test]
    fn a_cancelled_request_still_ends_once() {
        let mut session = session();
        let cancelled = Arc::new(AtomicBool::new(false));
        assert_eq!(session.admit(0, 0), Ok(Admission::New));
        session.runs(0, Arc::clone(&cancelled));
        assert_eq!(session.admit(0, 0), Ok(Admission::Known));
        assert!(session.awaits(0) && session.cancel(0) && cancelled.load(Ordering::Relaxed));
        let place = reply(&mut session, 5);
        session.keep(0, place);
        assert!(!session.awaits(0) && !session.cancel(0));
    }
}
