//! What a handler writes its answer to: the bytes go straight to where they are sent from, and kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_wire::rpc::{PAYLOAD_BYTES_MAX, SessionId, Status};

/// Shortest answer that is not copied when its handler gives it away, in bytes.
pub(super) const APART_BYTES_MIN: usize = 16 << 10;

/// Where answers go that handlers give later, from any thread.
pub(crate) trait Returns: Send + Sync {
    /// Takes the end of a request.
    fn take(&self, ticket: Ticket, status: Status, payload: Vec<u8>);
}

/// What names a request to the server, on whatever connection its session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) session: SessionId,
    pub(crate) id: u64,
    /// Whether its reply has a checksum.
    pub(crate) checked: bool,
}

/// The answer to a request. A handler that returns without writing anything has given an empty answer.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    /// Where the payload begins in `out`.
    start: usize,
    end: End,
}

/// What a handler has done.
#[derive(Debug)]
pub(super) enum End {
    Now(Status, Option<Vec<u8>>),
    Later(Arc<AtomicBool>),
}

impl<'a> Reply<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { start: out.len(), out, end: End::Now(Status::Answered, None) }
    }

    /// Appends to the answer.
    pub fn write(&mut self, bytes: &[u8]) {
        self.gather();
        self.out.extend_from_slice(bytes);
    }

    /// Appends `count` zeroes to the answer, to be written over.
    pub fn space(&mut self, count: usize) -> &mut [u8] {
        self.gather();
        let at = self.out.len();
        self.out.resize(at + count, 0);
        &mut self.out[at..]
    }

    /// Lets something write the answer behind what there is.
    pub fn extend_with<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.gather();
        write(self.out)
    }

    /// Gives the whole answer away; a long one is not copied. It replaces what was written.
    pub fn give(&mut self, payload: Vec<u8>) {
        self.out.truncate(self.start);
        if payload.len() < APART_BYTES_MIN {
            self.out.extend_from_slice(&payload);
            self.end = End::Now(Status::Answered, None);
        } else {
            self.end = End::Now(Status::Answered, Some(payload));
        }
    }

    /// Refuses, instead of an answer; the caller reads the reason.
    pub fn refuse(&mut self, reason: &str) {
        self.end(Status::Failed, reason);
    }

    pub(crate) fn end(&mut self, status: Status, reason: &str) {
        self.out.truncate(self.start);
        self.out.extend_from_slice(reason.as_bytes());
        self.end = End::Now(status, None);
    }

    /// The answer comes later; its handler sees by this whether it is still wanted.
    pub(crate) fn later(&mut self, cancelled: Arc<AtomicBool>) {
        self.end = End::Later(cancelled);
    }

    /// What was given away comes back, where more is to follow it.
    fn gather(&mut self) {
        if let End::Now(_, apart @ Some(_)) = &mut self.end {
            self.out.extend_from_slice(&apart.take().expect("it was matched"));
        }
    }

    pub(super) fn into_end(mut self) -> End {
        let bytes = match &self.end {
            End::Now(_, Some(apart)) => apart.len(),
            _ => self.out.len() - self.start,
        };
        if bytes > PAYLOAD_BYTES_MAX {
            self.end(Status::Failed, &format!("the answer has {bytes} bytes, {PAYLOAD_BYTES_MAX} at most"));
        }
        self.end
    }
}

/// A request that is answered later, from any thread. Dropping it answers that the handler gave it up.
pub struct Deferred {
    ticket: Ticket,
    returns: Arc<dyn Returns>,
    cancelled: Arc<AtomicBool>,
    is_open: bool,
}

impl std::fmt::Debug for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deferred").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Deferred {
    pub(super) fn new(ticket: Ticket, returns: Arc<dyn Returns>, cancelled: Arc<AtomicBool>) -> Self {
        Self { ticket, returns, cancelled, is_open: true }
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Answers.
    pub fn answer(mut self, payload: Vec<u8>) {
        if payload.len() > PAYLOAD_BYTES_MAX {
            let reason = format!("the answer has {} bytes, {PAYLOAD_BYTES_MAX} at most", payload.len());
            return self.end(Status::Failed, reason.into_bytes());
        }
        self.end(Status::Answered, payload);
    }

    /// Refuses, instead of an answer.
    pub fn refuse(mut self, reason: &str) {
        self.end(Status::Failed, reason.as_bytes().to_vec());
    }

    fn end(&mut self, status: Status, payload: Vec<u8>) {
        if std::mem::take(&mut self.is_open) {
            self.returns.take(self.ticket, status, payload);
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.end(Status::Abandoned, Vec::new());
    }
}
