//! What a client makes of the frames that it receives.

use std::io::IoSliceMut;
use std::time::Instant;

use farfork_wire::rpc::{Answer, Ask, FrameError, Status, Versions};

use super::call::{CallError, Completion};
use super::core::{Core, State};
use super::session::Stage;
use crate::inbound::Staging;

/// Bytes of received replies after which a client says that it has them, if no request does before.
const UNACKNOWLEDGED_BYTES_MAX: usize = 256 << 10;

impl Core {
    /// Prepares the staging area for what was kept; then come [`Core::spaces`].
    pub(crate) fn load(&mut self, staging: &mut Staging) {
        self.inbound.load(staging);
    }

    /// Where to receive into.
    pub(crate) fn spaces<'a>(&'a mut self, staging: &'a mut Staging) -> [IoSliceMut<'a>; 2] {
        self.inbound.spaces(staging)
    }

    /// Empties the staging area where nothing was received.
    pub(crate) fn keep(&mut self, staging: &mut Staging) {
        self.inbound.keep(staging);
    }

    /// Takes note of what was received, tells what ended by it, and leaves the staging area empty.
    ///
    /// # Errors
    /// The server violates the protocol; the connection must end.
    pub(crate) fn received(
        &mut self,
        staging: &mut Staging,
        count: usize,
        now: Instant,
        on_end: &mut impl FnMut(Completion<'_>),
    ) -> Result<(), FrameError> {
        self.silence.heard(now);
        self.inbound.received(staging, count);
        let handled = self.handle_frames(staging, now, on_end);
        self.inbound.keep(staging);
        handled
    }

    fn handle_frames(
        &mut self,
        staging: &mut Staging,
        now: Instant,
        on_end: &mut impl FnMut(Completion<'_>),
    ) -> Result<(), FrameError> {
        if self.state == State::Greeting {
            let Some(theirs) = self.inbound.hello(staging)? else { return Ok(()) };
            Versions::OURS.agree(theirs)?;
            self.state = State::Up;
            (0..self.sessions.len()).for_each(|slot| self.send_open(slot));
        }
        loop {
            let Self { inbound, spool, sessions, .. } = self;
            let Some((answer, payload)) = inbound.next(staging)? else { return Ok(()) };
            match answer {
                Answer::Reply(head) => {
                    let Some(session) = sessions.get_mut(usize::from(head.slot)).and_then(Option::as_mut) else {
                        continue;
                    };
                    let payload_bytes = payload.len();
                    if let Some(request) = session.answered(&head)? {
                        spool.release(&request.place);
                        self.unanswered -= 1;
                        let result = match head.status {
                            Status::Answered => Ok(payload),
                            status => Err(CallError::refused(status, &payload)),
                        };
                        on_end(Completion { tag: request.tag, result });
                    }
                    self.count_received(usize::from(head.slot), payload_bytes);
                }
                Answer::Opened { slot, epoch, outcome } => self.opened(usize::from(slot), epoch, outcome, now)?,
                Answer::Pong => {}
            }
        }
    }

    /// Says what was received where long replies come and no requests go.
    fn count_received(&mut self, slot: usize, payload_bytes: usize) {
        let Some(session) = self.sessions[slot].as_mut() else { return };
        session.unacknowledged_bytes += payload_bytes;
        if session.unacknowledged_bytes >= UNACKNOWLEDGED_BYTES_MAX && session.stage == Stage::Open {
            session.unacknowledged_bytes = 0;
            let below = session.requests.floor();
            self.append(&Ask::Acknowledge { slot: slot as u16, below });
        }
    }
}
