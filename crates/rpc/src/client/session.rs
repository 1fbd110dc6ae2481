//! The client's state of one session.

use farfork_wire::rpc::{ReplyHead, RpcFrameError, SessionId};

use super::request_window::{PendingRequest, RequestWindow};

#[derive(Debug)]
pub(super) struct ClientSession {
    pub(super) id: SessionId,
    pub(super) stage: SessionStage,
    pub(super) epoch: u32,
    /// Whether the server has confirmed that it has the session.
    pub(super) is_established: bool,
    pub(super) requests: RequestWindow,
    pub(super) unacknowledged_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionStage {
    Closed,
    Opening,
    Open,
    /// The caller closed the session while its OPEN was unanswered. The CLOSE is sent after the reply to the OPEN.
    Closing,
}

impl ClientSession {
    /// Creates a session that the server does not know yet.
    pub(super) fn new(id: SessionId, window: u64) -> Self {
        let requests = RequestWindow::new(window);
        Self { id, stage: SessionStage::Closed, epoch: 0, is_established: false, requests, unacknowledged_bytes: 0 }
    }

    /// Removes and returns the request of a reply; `None` if the request has ended already.
    pub(super) fn take_answered(&mut self, head: &ReplyHead) -> Result<Option<PendingRequest>, RpcFrameError> {
        let unasked = RpcFrameError::Invalid("it answers no request");
        if self.stage != SessionStage::Open {
            // The reply belongs to the previous session in this slot.
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
