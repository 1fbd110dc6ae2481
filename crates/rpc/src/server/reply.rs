//! The writer for a handler's reply: the bytes go straight to the buffer that they are sent from and cached in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_wire::rpc::{PAYLOAD_BYTES_MAX, SessionId, Status};

/// Shortest answer that is not copied when its handler gives it away, in bytes.
pub(super) const DETACHED_PAYLOAD_BYTES_MIN: usize = 16 << 10;

/// Where answers go that handlers give later, from any thread.
pub(crate) trait ReplySink: Send + Sync {
    /// Takes the end of a request.
    fn deliver(&self, ticket: RequestKey, status: Status, payload: Vec<u8>);
}

/// What names a request to the server, on whatever connection its session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestKey {
    pub(crate) session: SessionId,
    pub(crate) id: u64,
    /// Whether its reply has a checksum.
    pub(crate) checked: bool,
}

/// The answer to a request. A handler that returns without writing anything has given an empty answer.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Where the payload begins in `out`.
    start: usize,
    outcome: HandlerOutcome,
}

/// What a handler has done.
#[derive(Debug)]
pub(super) enum HandlerOutcome {
    Answered(Status, Option<Vec<u8>>),
    Deferred(Arc<AtomicBool>),
}

impl<'a> ReplyWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { start: out.len(), out, outcome: HandlerOutcome::Answered(Status::Answered, None) }
    }

    /// Appends to the answer.
    pub fn write(&mut self, bytes: &[u8]) {
        self.inline_payload();
        self.out.extend_from_slice(bytes);
    }

    /// Appends `count` zeroes to the answer, to be written over.
    pub fn append_zeroed(&mut self, count: usize) -> &mut [u8] {
        self.inline_payload();
        let at = self.out.len();
        self.out.resize(at + count, 0);
        &mut self.out[at..]
    }

    /// Lets something write the answer behind what there is.
    pub fn append_with<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.inline_payload();
        write(self.out)
    }

    /// Gives the whole answer away; a long one is not copied. It replaces what was written.
    pub fn set_payload(&mut self, payload: Vec<u8>) {
        self.out.truncate(self.start);
        if payload.len() < DETACHED_PAYLOAD_BYTES_MIN {
            self.out.extend_from_slice(&payload);
            self.outcome = HandlerOutcome::Answered(Status::Answered, None);
        } else {
            self.outcome = HandlerOutcome::Answered(Status::Answered, Some(payload));
        }
    }

    /// Refuses, instead of an answer; the caller reads the reason.
    pub fn refuse(&mut self, reason: &str) {
        self.set_status(Status::Failed, reason);
    }

    pub(crate) fn set_status(&mut self, status: Status, reason: &str) {
        self.out.truncate(self.start);
        self.out.extend_from_slice(reason.as_bytes());
        self.outcome = HandlerOutcome::Answered(status, None);
    }

    /// The answer comes later; its handler sees by this whether it is still wanted.
    pub(crate) fn defer(&mut self, cancelled: Arc<AtomicBool>) {
        self.outcome = HandlerOutcome::Deferred(cancelled);
    }

    /// What was given away comes back, where more is to follow it.
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
            self.set_status(Status::Failed, &format!("the answer has {bytes} bytes, {PAYLOAD_BYTES_MAX} at most"));
        }
        self.outcome
    }
}

/// A request that is answered later, from any thread. Dropping it answers that the handler gave it up.
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

    /// Whether nobody waits for the answer any more.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Answers.
    pub fn answer(mut self, payload: Vec<u8>) {
        if payload.len() > PAYLOAD_BYTES_MAX {
            let reason = format!("the answer has {} bytes, {PAYLOAD_BYTES_MAX} at most", payload.len());
            return self.deliver_once(Status::Failed, reason.into_bytes());
        }
        self.deliver_once(Status::Answered, payload);
    }

    /// Refuses, instead of an answer.
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
