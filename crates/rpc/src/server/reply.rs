//! The writer for a handler's reply. It writes directly to the buffer in which the reply is cached and from which it is
//! sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_wire::rpc::{PAYLOAD_BYTES_MAX, SessionId, Status};

/// Shortest owned payload that is sent without a copy, in bytes.
pub(super) const DETACHED_PAYLOAD_BYTES_MIN: usize = 16 << 10;

/// Receives deferred replies, from any thread.
pub(crate) trait ReplySink: Send + Sync {
    /// Completes a request.
    fn deliver(&self, ticket: RequestKey, status: Status, payload: Vec<u8>);
}

/// Identifies a request in the server, independent of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestKey {
    pub(crate) session: SessionId,
    pub(crate) id: u64,
    /// Whether the payload of the reply has a checksum of its own.
    pub(crate) checked: bool,
}

/// Writes the reply to a request. If a handler returns without writing, the reply is empty.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Offset of the payload in `out`.
    start: usize,
    outcome: HandlerOutcome,
}

/// The outcome of a handler.
#[derive(Debug)]
pub(super) enum HandlerOutcome {
    Answered(Status, Option<Vec<u8>>),
    Deferred(Arc<AtomicBool>),
}

impl<'a> ReplyWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { start: out.len(), out, outcome: HandlerOutcome::Answered(Status::Answered, None) }
    }

    /// Appends to the reply.
    pub fn write(&mut self, bytes: &[u8]) {
        self.inline_payload();
        self.out.extend_from_slice(bytes);
    }

    /// Appends `count` zeroes to the reply, and returns them for overwriting.
    pub fn append_zeroed(&mut self, count: usize) -> &mut [u8] {
        self.inline_payload();
        let at = self.out.len();
        self.out.resize(at + count, 0);
        &mut self.out[at..]
    }

    /// Lets `write` append to the reply.
    pub fn append_with<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.inline_payload();
        write(self.out)
    }

    /// Replaces the whole reply by `payload`. A long payload is not copied.
    pub fn set_payload(&mut self, payload: Vec<u8>) {
        self.out.truncate(self.start);
        if payload.len() < DETACHED_PAYLOAD_BYTES_MIN {
            self.out.extend_from_slice(&payload);
            self.outcome = HandlerOutcome::Answered(Status::Answered, None);
        } else {
            self.outcome = HandlerOutcome::Answered(Status::Answered, Some(payload));
        }
    }

    /// Refuses the request. The caller gets the reason.
    pub fn refuse(&mut self, reason: &str) {
        self.set_status(Status::Failed, reason);
    }

    pub(crate) fn set_status(&mut self, status: Status, reason: &str) {
        self.out.truncate(self.start);
        self.out.extend_from_slice(reason.as_bytes());
        self.outcome = HandlerOutcome::Answered(status, None);
    }

    /// Defers the reply. `cancelled` becomes true when the client no longer waits for the reply.
    pub(crate) fn defer(&mut self, cancelled: Arc<AtomicBool>) {
        self.outcome = HandlerOutcome::Deferred(cancelled);
    }

    /// If the payload is stored separately, copies it into the buffer, so that further bytes can follow it.
    fn inline_payload(&mut self) {
        if let HandlerOutcome::Answered(_, apart @ Some(_)) = &mut self.outcome {
            self.out.extend_from_slice(&apart.take().expect("it was matched"));
        }
    }

    pub(super) fn into_outcome(mut self) -> HandlerOutcome {
        let bytes = match &self.outcome {
            HandlerOutcome::Answered(_, Some(apart)) => apart.len(),
            _ => self.out.len() - self.start,
        };
        if bytes > PAYLOAD_BYTES_MAX {
            self.set_status(Status::Failed, &format!("the answer has {bytes} bytes; the limit is {PAYLOAD_BYTES_MAX}"));
        }
        self.outcome
    }
}

/// A reply that is sent later, from any thread. If it is dropped unanswered, the caller gets `Status::Abandoned`.
pub struct DeferredReply {
    ticket: RequestKey,
    sink: Arc<dyn ReplySink>,
    cancelled: Arc<AtomicBool>,
    is_unanswered: bool,
}

impl std::fmt::Debug for DeferredReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredReply").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl DeferredReply {
    pub(super) fn new(ticket: RequestKey, returns: Arc<dyn ReplySink>, cancelled: Arc<AtomicBool>) -> Self {
        Self { ticket, sink: returns, cancelled, is_unanswered: true }
    }

    /// Whether the client no longer waits for the reply.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Sends the reply.
    pub fn answer(mut self, payload: Vec<u8>) {
        if payload.len() > PAYLOAD_BYTES_MAX {
            let reason = format!("the answer has {} bytes; the limit is {PAYLOAD_BYTES_MAX}", payload.len());
            return self.deliver_once(Status::Failed, reason.into_bytes());
        }
        self.deliver_once(Status::Answered, payload);
    }

    /// Refuses the request.
    pub fn refuse(mut self, reason: &str) {
        self.deliver_once(Status::Failed, reason.as_bytes().to_vec());
    }

    fn deliver_once(&mut self, status: Status, payload: Vec<u8>) {
        if std::mem::take(&mut self.is_unanswered) {
            self.sink.deliver(self.ticket, status, payload);
        }
    }
}

impl Drop for DeferredReply {
    fn drop(&mut self) {
        self.deliver_once(Status::Abandoned, Vec::new());
    }
}
