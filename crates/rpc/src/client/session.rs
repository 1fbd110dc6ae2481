//! The client's state of one session.

use farfork_wire::rpc::{ReplyHead, RpcFrameError, SessionId};

use super::request_window::{PendingRequest, RequestWindow};

#[derive(Debug)]
pub(super) struct ClientSession {
    pub(super) id: SessionId,
    pub(super) stage: SessionStage,
    pub(super) epoch: u32,
    /// Whether the server has said that it has it.
    pub(super) is_established: bool,
    pub(super) requests: RequestWindow,
    pub(super) unacknowledged_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionStage {
    Closed,
    Opening,
    Open,
    /// It was closed while it was being opened: the server has to be told once it has answered.
    Closing,
}

impl ClientSession {
    /// A session that its server has not heard of.
    pub(super) fn new(id: SessionId, window: u64) -> Self {
        let requests = RequestWindow::new(window);
        Self { id, stage: SessionStage::Closed, epoch: 0, is_established: false, requests, unacknowledged_bytes: 0 }
    }

    /// Takes the request that a reply answers; `None` where nobody waits for it any more.
    pub(super) fn take_answered(&mut self, head: &ReplyHead) -> Result<Option<PendingRequest>, RpcFrameError> {
        let unasked = RpcFrameError::Invalid("it answers what was not asked");
        if self.stage != SessionStage::Open {
            // For the session that had the slot before.
            return Ok(None);
        }
        if !self.requests.was_issued(head.id) {
            return Err(unasked);
        }
        match self.requests.get_mut(head.id) {
            Some(request) if !request.sent => Err(unasked),
            _ => Ok(self.requests.take(head.id)),
        }
    }
}
