//! What a client remembers of a session.

use farfork_wire::rpc::{FrameError, ReplyHead, SessionId};

use super::requests::{Requests, Waiting};

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) stage: Stage,
    pub(super) epoch: u32,
    /// Whether the server has said that it has it.
    pub(super) known: bool,
    pub(super) requests: Requests,
    pub(super) unacknowledged_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Closed,
    Opening,
    Open,
    /// It was closed while it was being opened: the server has to be told once it has answered.
    Closing,
}

impl Session {
    /// A session that its server has not heard of.
    pub(super) fn new(id: SessionId, window: u64) -> Self {
        let requests = Requests::new(window);
        Self { id, stage: Stage::Closed, epoch: 0, known: false, requests, unacknowledged_bytes: 0 }
    }

    /// Takes the request that a reply answers; `None` where nobody waits for it any more.
    pub(super) fn answered(&mut self, head: &ReplyHead) -> Result<Option<Waiting>, FrameError> {
        let unasked = FrameError::Sense("it answers what was not asked");
        if self.stage != Stage::Open {
            // For the session that had the slot before.
            return Ok(None);
        }
        if !self.requests.was_given(head.id) {
            return Err(unasked);
        }
        match self.requests.get_mut(head.id) {
            Some(request) if !request.sent => Err(unasked),
            _ => Ok(self.requests.take(head.id)),
        }
    }
}
