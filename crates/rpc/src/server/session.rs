//! The server's state of one session: the ids of executed requests, and the replies that the client may not have
//! received.
//!
//! A request is executed only if its id is new, so at most once. A duplicate gets the cached reply. A session over its
//! limit drops the oldest replies, but keeps the record that their requests were executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_wire::rpc::{ReplyHead, RpcFrameError, SessionId, Status, WINDOW_MAX};

use super::reply::{DETACHED_PAYLOAD_BYTES_MIN, RequestKey};
use crate::retransmit::{FrameLocation, RetransmitBuffer, SendQueue};

/// Maximum number of bytes of cached replies in a session: two replies of the largest size.
const REPLY_CACHE_BYTES_MAX: usize = 32 << 20;

/// Initial size of the window, in requests.
const WINDOW_MIN: usize = 64;

//      acknowledged   |<---------------- window ----------------->|
//   ------------------+------+----------+------+----------+--------+--> request ids
//      forgotten      | done | deferred | done | deferred | unseen |   beyond: a violation
//   ------------------+------+----------+------+----------+--------+
//            acknowledged_below

/// A session.
#[derive(Debug)]
pub(crate) struct ServerSession {
    pub(super) id: SessionId,
    /// The session's slot, the same on all its connections, because cached replies contain it.
    pub(super) slot: u16,
    pub(super) epoch: u32,
    /// All requests with smaller ids are acknowledged.
    acknowledged_below: u64,
    /// Entries by request id modulo the number of entries, which is a power of two.
    entries: Vec<RequestEntry>,
    pub(super) replies: RetransmitBuffer,
}

#[derive(Debug, Default)]
enum RequestEntry {
    #[default]
    Unseen,
    /// The handler replies later. The flag becomes true if the client cancels the request.
    Deferred(Arc<AtomicBool>),
    Replied(FrameLocation),
}

/// The way to handle a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Execute it.
    New,
    /// Ignore it: its reply was acknowledged, or is not complete yet.
    Duplicate,
    /// Send its reply again.
    Replay(FrameLocation),
    /// Reply that the cached reply was evicted.
    ReplyEvicted,
}

impl ServerSession {
    pub(super) fn new(id: SessionId, slot: u16) -> Self {
        let entries = (0..WINDOW_MIN).map(|_| RequestEntry::default()).collect();
        Self { id, slot, epoch: 0, acknowledged_below: 0, entries, replies: RetransmitBuffer::default() }
    }

    /// Bytes that the session holds: replies and the window.
    pub(crate) fn held_bytes(&self) -> usize {
        self.replies.held_bytes() + self.entries.len() * size_of::<RequestEntry>()
    }

    /// Whether a deferred reply is not complete yet.
    pub(crate) fn has_deferred(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry, RequestEntry::Deferred(_)))
    }

    fn index(&self, id: u64) -> usize {
        id as usize & (self.entries.len() - 1)
    }

    fn in_window(&self, id: u64) -> bool {
        id.checked_sub(self.acknowledged_below).is_some_and(|ahead| ahead < self.entries.len() as u64)
    }

    /// Decides how to handle a request. The request acknowledges the replies to all requests before `floor`.
    pub(super) fn admit(&mut self, id: u64, floor: u64) -> Result<Admission, RpcFrameError> {
        self.acknowledge(floor);
        let Some(ahead) = id.checked_sub(self.acknowledged_below) else { return Ok(Admission::Duplicate) };
        if ahead >= WINDOW_MAX {
            return Err(RpcFrameError::Invalid("a request is beyond its session's window"));
        }
        while ahead >= self.entries.len() as u64 {
            self.grow_window();
        }
        Ok(match &self.entries[self.index(id)] {
            RequestEntry::Unseen => Admission::New,
            RequestEntry::Deferred(_) => Admission::Duplicate,
            RequestEntry::Replied(location) if self.replies.contains(location) => Admission::Replay(*location),
            RequestEntry::Replied(_) => Admission::ReplyEvicted,
        })
    }

    fn grow_window(&mut self) {
        let longer = (0..self.entries.len() * 2).map(|_| RequestEntry::default()).collect();
        let shorter = std::mem::replace(&mut self.entries, longer);
        let mask = shorter.len() - 1;
        for (at, entry) in shorter.into_iter().enumerate() {
            // The only id of the old window with this index.
            let id = self.acknowledged_below + ((at.wrapping_sub(self.acknowledged_below as usize)) & mask) as u64;
            let index = self.index(id);
            self.entries[index] = entry;
        }
    }

    /// Drops the records of the requests before `floor`. Deferred ones among them are cancelled.
    pub(super) fn acknowledge(&mut self, floor: u64) {
        let count = floor.saturating_sub(self.acknowledged_below).min(self.entries.len() as u64);
        for id in self.acknowledged_below..self.acknowledged_below + count {
            let index = self.index(id);
            match std::mem::take(&mut self.entries[index]) {
                RequestEntry::Replied(location) => self.replies.release_frame(&location),
                RequestEntry::Deferred(cancelled) => cancelled.store(true, Ordering::Relaxed),
                RequestEntry::Unseen => {}
            }
        }
        self.acknowledged_below = self.acknowledged_below.max(floor);
    }

    /// Records that the reply is deferred.
    pub(super) fn mark_deferred(&mut self, id: u64, cancelled: Arc<AtomicBool>) {
        let index = self.index(id);
        self.entries[index] = RequestEntry::Deferred(cancelled);
    }

    fn is_deferred(&self, id: u64) -> bool {
        self.in_window(id) && matches!(self.entries[self.index(id)], RequestEntry::Deferred(_))
    }

    /// Sets the flag that the client has cancelled the request. Returns whether the reply was deferred.
    pub(super) fn cancel_deferred(&mut self, id: u64) -> bool {
        match self.in_window(id).then(|| &self.entries[self.index(id)]) {
            Some(RequestEntry::Deferred(cancelled)) => {
                cancelled.store(true, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Stores the reply to a deferred request, unless the request was cancelled or acknowledged.
    pub(crate) fn complete_deferred(
        &mut self,
        ticket: RequestKey,
        status: Status,
        payload: Vec<u8>,
        queue: Option<&mut SendQueue>,
    ) {
        if !self.is_deferred(ticket.id) {
            return;
        }
        let head = ReplyHead { slot: self.slot, id: ticket.id, status, has_payload_crc: ticket.checked };
        let out = self.replies.begin_frame(head.head_bytes() + payload.len());
        let start = out.len();
        out.resize(start + head.head_bytes(), 0);
        let is_long = payload.len() >= DETACHED_PAYLOAD_BYTES_MIN;
        if !is_long {
            out.extend_from_slice(&payload);
        }
        self.store_reply(&head, start, is_long.then_some(payload), queue);
    }

    /// Seals a reply whose payload is already written, or is in `apart`. Then caches the reply, and queues it for
    /// sending.
    pub(super) fn store_reply(
        &mut self,
        head: &ReplyHead,
        start: usize,
        apart: Option<Vec<u8>>,
        queue: Option<&mut SendQueue>,
    ) {
        head.seal(&mut self.replies.current_buffer()[start..], apart.as_deref());
        let location = match apart {
            Some(payload) => self.replies.end_frame_detached(start, payload),
            None => self.replies.end_frame(start),
        };
        if let Some(queue) = queue {
            queue.push(head.slot, &mut self.replies, &location);
        }
        self.record_reply(head.id, location);
    }

    fn record_reply(&mut self, id: u64, location: FrameLocation) {
        debug_assert!(self.in_window(id));
        let index = self.index(id);
        self.entries[index] = RequestEntry::Replied(location);
        while self.replies.held_bytes() > REPLY_CACHE_BYTES_MAX && self.replies.evict_oldest() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> ServerSession {
        ServerSession::new(SessionId::from_bytes([7; 16]), 0)
    }

    fn reply(session: &mut ServerSession, bytes: usize) -> FrameLocation {
        let out = session.replies.begin_frame(bytes);
        let start = out.len();
        out.resize(start + bytes, 1);
        session.replies.end_frame(start)
    }

    #[test]
    fn a_repeated_request_is_not_new() {
        let mut session = session();
        assert_eq!(session.admit(5, 5), Ok(Admission::New));
        let location = reply(&mut session, 10);
        session.record_reply(5, location);
        assert_eq!(session.admit(5, 5), Ok(Admission::Replay(location)));
        assert_eq!(session.admit(6, 6), Ok(Admission::New));
        assert_eq!(session.admit(5, 5), Ok(Admission::Duplicate), "its reply was acknowledged");
    }

    #[test]
    fn the_window_grows_to_its_limit() {
        let mut session = session();
        for id in 100..100 + WINDOW_MAX {
            assert_eq!(session.admit(id, 100), Ok(Admission::New));
            let location = reply(&mut session, 24);
            session.record_reply(id, location);
        }
        assert!(session.admit(100 + WINDOW_MAX, 100).is_err());
        for id in 100..100 + WINDOW_MAX {
            assert!(matches!(session.admit(id, 100), Ok(Admission::Replay(_))));
        }
        assert_eq!(
            session.admit(u64::MAX, u64::MAX - 3),
            Ok(Admission::New),
            "one request acknowledges all earlier ones"
        );
    }

    #[test]
    fn a_request_with_an_evicted_reply_is_not_executed_again() {
        let mut session = session();
        for id in 0..40 {
            assert_eq!(session.admit(id, 0), Ok(Admission::New));
            let location = reply(&mut session, 1 << 20);
            session.record_reply(id, location);
        }
        assert!(session.held_bytes() <= REPLY_CACHE_BYTES_MAX + (2 << 20));
        assert_eq!(session.admit(0, 0), Ok(Admission::ReplyEvicted));
        assert!(matches!(session.admit(39, 0), Ok(Admission::Replay(_))));
        session.acknowledge(40);
        assert!(session.held_bytes() < 4 << 20);
    }

    #[test]
    fn a_cancelled_request_still_ends_once() {
        let mut session = session();
        let cancelled = Arc::new(AtomicBool::new(false));
        assert_eq!(session.admit(0, 0), Ok(Admission::New));
        session.mark_deferred(0, Arc::clone(&cancelled));
        assert_eq!(session.admit(0, 0), Ok(Admission::Duplicate));
        assert!(session.is_deferred(0) && session.cancel_deferred(0) && cancelled.load(Ordering::Relaxed));
        let location = reply(&mut session, 5);
        session.record_reply(0, location);
        assert!(!session.is_deferred(0) && !session.cancel_deferred(0));
    }
}
