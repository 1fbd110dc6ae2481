//! The sessions of a client: opened, resumed on another connection, begun anew, closed.

use std::time::Instant;

use farfork_wire::rpc::{Ask, FrameError, OpenOutcome, SESSIONS_MAX};

use super::call::CallError;
use super::core::{Core, OWNER, SessionKey, State};
use super::session::{Session, Stage};

impl Core {
    /// Makes a session, with room for so many unanswered requests.
    pub(crate) fn open(&mut self, window: u64) -> Option<SessionKey> {
        let slot = match self.sessions.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.sessions.len() >= SESSIONS_MAX => return None,
            None => {
                self.sessions.push(None);
                self.sessions.len() - 1
            }
        };
        self.sessions[slot] = Some(Session::new((self.new_id)(), window));
        if self.state == State::Up {
            self.send_open(slot);
        }
        Some(SessionKey(slot as u16))
    }

    /// Ends a session; its requests end as cancelled.
    pub(crate) fn close(&mut self, key: SessionKey) {
        let slot = usize::from(key.0);
        let Some(Some(session)) = self.sessions.get(slot) else { return };
        let (stage, ids): (_, Vec<u64>) = (session.stage, session.requests.ids().collect());
        for id in ids {
            self.end(slot, id, CallError::Cancelled);
        }
        match (stage, self.sessions[slot].as_mut()) {
            (Stage::Opening, Some(session)) => session.stage = Stage::Closing,
            (Stage::Open, _) => self.leave(slot),
            _ => self.sessions[slot] = None,
        }
    }

    fn leave(&mut self, slot: usize) {
        self.append(&Ask::Close { slot: slot as u16 });
        self.sessions[slot] = None;
    }

    pub(super) fn send_open(&mut self, slot: usize) {
        let Some(session) = self.sessions[slot].as_mut() else { return };
        session.stage = Stage::Opening;
        if session.known {
            session.epoch += 1;
        }
        let Session { id, epoch, known, .. } = *session;
        self.append(&Ask::Open { slot: slot as u16, session: id, epoch, resumed: known });
    }

    /// The server has answered an OPEN.
    pub(super) fn opened(
        &mut self,
        slot: usize,
        epoch: u32,
        outcome: OpenOutcome,
        now: Instant,
    ) -> Result<(), FrameError> {
        let session = self.sessions.get_mut(slot).and_then(Option::as_mut);
        let is_asked = |it: &&mut Session| matches!(it.stage, Stage::Opening | Stage::Closing) && it.epoch == epoch;
        let Some(session) = session.filter(is_asked) else {
            return Err(FrameError::Sense("it opens what was not asked for"));
        };
        if session.stage == Stage::Closing {
            match outcome {
                OpenOutcome::Open => self.leave(slot),
                _ => self.sessions[slot] = None,
            }
            return Ok(());
        }
        match outcome {
            OpenOutcome::Open => {
                session.stage = Stage::Open;
                session.known = true;
                let ids: Vec<u64> = session.requests.ids().collect();
                for id in ids {
                    let place = session.requests.reseal(id, slot as u16, now, &mut self.spool);
                    self.queue.push(OWNER, &mut self.spool, &place.expect("it waits"));
                }
            }
            OpenOutcome::Expired | OpenOutcome::Taken => self.renew(slot),
            OpenOutcome::Superseded | OpenOutcome::Full => {
                session.stage = Stage::Closed;
                let ids: Vec<u64> = session.requests.ids().collect();
                ids.into_iter().for_each(|id| self.end(slot, id, CallError::Session(outcome)));
            }
        }
        Ok(())
    }

    /// Begins a session anew. What the server may have executed for the old one is not sent again.
    fn renew(&mut self, slot: usize) {
        let id = (self.new_id)();
        let Some(session) = self.sessions[slot].as_mut() else { return };
        (session.id, session.known, session.epoch, session.stage) = (id, false, 0, Stage::Closed);
        let ids: Vec<u64> = session.requests.ids().collect();
        for id in ids {
            let session = self.sessions[slot].as_mut().expect("it was there above");
            if session.requests.get_mut(id).is_some_and(|request| request.sent) {
                self.end(slot, id, CallError::Lost);
            }
        }
        self.send_open(slot);
    }
}
