//! The lifecycle of a client's sessions: open, resume on a new connection, replace by a new session, close.

use std::time::Instant;

use farfork_wire::rpc::{ClientFrame, OpenOutcome, RpcFrameError, SESSIONS_MAX};

use super::protocol::{BUFFER_OWNER, ClientProtocol, ConnectionState, SessionHandle};
use super::request::CallError;
use super::session::{ClientSession, SessionStage};

impl ClientProtocol {
    /// Opens a session with room for this many unanswered requests.
    pub(crate) fn open_session(&mut self, window: u64) -> Option<SessionHandle> {
        let slot = match self.sessions.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.sessions.len() >= SESSIONS_MAX => return None,
            None => {
                self.sessions.push(None);
                self.sessions.len() - 1
            }
        };
        self.sessions[slot] = Some(ClientSession::new((self.new_session_id)(), window));
        if self.state == ConnectionState::Up {
            self.send_open(slot);
        }
        Some(SessionHandle(slot as u16))
    }

    /// Closes a session. Its requests end as cancelled.
    pub(crate) fn close_session(&mut self, key: SessionHandle) {
        let slot = usize::from(key.0);
        let Some(Some(session)) = self.sessions.get(slot) else { return };
        let (stage, ids): (_, Vec<u64>) = (session.stage, session.requests.ids().collect());
        for id in ids {
            self.end_request(slot, id, CallError::Cancelled);
        }
        match (stage, self.sessions[slot].as_mut()) {
            (SessionStage::Opening, Some(session)) => session.stage = SessionStage::Closing,
            (SessionStage::Open, _) => self.send_close(slot),
            _ => self.sessions[slot] = None,
        }
    }

    fn send_close(&mut self, slot: usize) {
        self.append_frame(&ClientFrame::Close { slot: slot as u16 });
        self.sessions[slot] = None;
    }

    pub(super) fn send_open(&mut self, slot: usize) {
        let Some(session) = self.sessions[slot].as_mut() else { return };
        session.stage = SessionStage::Opening;
        if session.is_established {
            session.epoch += 1;
        }
        let ClientSession { id, epoch, is_established: known, .. } = *session;
        self.append_frame(&ClientFrame::Open { slot: slot as u16, session: id, epoch, resumed: known });
    }

    /// Handles the server's reply to an OPEN.
    pub(super) fn handle_opened(
        &mut self,
        slot: usize,
        epoch: u32,
        outcome: OpenOutcome,
        now: Instant,
    ) -> Result<(), RpcFrameError> {
        let session = self.sessions.get_mut(slot).and_then(Option::as_mut);
        let has_pending_open = |session: &&mut ClientSession| {
            matches!(session.stage, SessionStage::Opening | SessionStage::Closing) && session.epoch == epoch
        };
        let Some(session) = session.filter(has_pending_open) else {
            return Err(RpcFrameError::Invalid("it answers no OPEN"));
        };
        if session.stage == SessionStage::Closing {
            match outcome {
                OpenOutcome::Opened => self.send_close(slot),
                _ => self.sessions[slot] = None,
            }
            return Ok(());
        }
        match outcome {
            OpenOutcome::Opened => {
                session.stage = SessionStage::Open;
                session.is_established = true;
                let ids: Vec<u64> = session.requests.ids().collect();
                for id in ids {
                    let location = session.requests.reseal(id, slot as u16, now, &mut self.retransmit);
                    self.send_queue.push(BUFFER_OWNER, &mut self.retransmit, &location.expect("request is pending"));
                }
            }
            OpenOutcome::Expired | OpenOutcome::IdInUse => self.restart_session(slot),
            OpenOutcome::Superseded | OpenOutcome::TooManySessions => {
                session.stage = SessionStage::Closed;
                let ids: Vec<u64> = session.requests.ids().collect();
                ids.into_iter().for_each(|id| self.end_request(slot, id, CallError::SessionRefused(outcome)));
            }
        }
        Ok(())
    }

    /// Replaces a session by a new one. Ends the requests that were sent: the server may have executed them for the old
    /// session.
    fn restart_session(&mut self, slot: usize) {
        let id = (self.new_session_id)();
        let Some(session) = self.sessions[slot].as_mut() else { return };
        (session.id, session.is_established, session.epoch, session.stage) = (id, false, 0, SessionStage::Closed);
        let ids: Vec<u64> = session.requests.ids().collect();
        for id in ids {
            let session = self.sessions[slot].as_mut().expect("the session exists");
            if session.requests.get_mut(id).is_some_and(|request| request.sent) {
                self.end_request(slot, id, CallError::SessionLost);
            }
        }
        self.send_open(slot);
    }
}
