//! The client's handling of received frames: completes requests, and acknowledges replies.

use std::io::IoSliceMut;
use std::time::Instant;

use farfork_wire::rpc::{ClientFrame, RpcFrameError, ServerFrame, Status, VersionRange};

use super::protocol::{ClientProtocol, ConnectionState};
use super::request::{CallError, Completion};
use super::session::SessionStage;
use crate::frame_decoder::StagingBuffer;

/// Bytes of received replies after which a client sends an acknowledgement, unless a request has acknowledged them
/// before.
const UNACKNOWLEDGED_BYTES_MAX: usize = 256 << 10;

impl ClientProtocol {
    /// Restores saved bytes to the staging buffer. Call it before [`ClientProtocol::receive_buffers`].
    pub(crate) fn restore_partial(&mut self, staging: &mut StagingBuffer) {
        self.decoder.restore_partial(staging);
    }

    /// Returns the buffers to receive into.
    pub(crate) fn receive_buffers<'a>(&'a mut self, staging: &'a mut StagingBuffer) -> [IoSliceMut<'a>; 2] {
        self.decoder.receive_buffers(staging)
    }

    /// Saves the bytes in the staging buffer, and empties it. Called if nothing was received.
    pub(crate) fn save_partial(&mut self, staging: &mut StagingBuffer) {
        self.decoder.save_partial(staging);
    }

    /// Handles received bytes, reports the requests that they complete, and leaves the staging buffer empty.
    ///
    /// # Errors
    /// The server violated the protocol. The caller must close the connection.
    pub(crate) fn handle_received(
        &mut self,
        staging: &mut StagingBuffer,
        count: usize,
        now: Instant,
        on_end: &mut impl FnMut(Completion<'_>),
    ) -> Result<(), RpcFrameError> {
        self.keepalive.reset(now);
        self.decoder.mark_received(staging, count);
        let handled = self.handle_frames(staging, now, on_end);
        self.decoder.save_partial(staging);
        handled
    }

    fn handle_frames(
        &mut self,
        staging: &mut StagingBuffer,
        now: Instant,
        on_end: &mut impl FnMut(Completion<'_>),
    ) -> Result<(), RpcFrameError> {
        if self.state == ConnectionState::Greeting {
            let Some(theirs) = self.decoder.decode_hello(staging)? else { return Ok(()) };
            VersionRange::SUPPORTED.negotiate(theirs)?;
            self.state = ConnectionState::Up;
            (0..self.sessions.len()).for_each(|slot| self.send_open(slot));
        }
        loop {
            let Self { decoder, retransmit, sessions, .. } = self;
            let Some((answer, payload)) = decoder.next_frame(staging)? else { return Ok(()) };
            match answer {
                ServerFrame::Reply(head) => {
                    let Some(session) = sessions.get_mut(usize::from(head.slot)).and_then(Option::as_mut) else {
                        continue;
                    };
                    let payload_bytes = payload.len();
                    if let Some(request) = session.take_answered(&head)? {
                        retransmit.release_frame(&request.location);
                        self.unanswered -= 1;
                        let result = match head.status {
                            Status::Answered => Ok(payload),
                            status => Err(CallError::from_status(status, &payload)),
                        };
                        on_end(Completion { tag: request.tag, result });
                    }
                    self.acknowledge_received(usize::from(head.slot), payload_bytes);
                }
                ServerFrame::Opened { slot, epoch, outcome } => {
                    self.handle_opened(usize::from(slot), epoch, outcome, now)?
                }
                ServerFrame::Pong => {}
            }
        }
    }

    /// Acknowledges replies if many bytes have been received that no request has acknowledged.
    fn acknowledge_received(&mut self, slot: usize, payload_bytes: usize) {
        let Some(session) = self.sessions[slot].as_mut() else { return };
        session.unacknowledged_bytes += payload_bytes;
        if session.unacknowledged_bytes >= UNACKNOWLEDGED_BYTES_MAX && session.stage == SessionStage::Open {
            session.unacknowledged_bytes = 0;
            let below = session.requests.oldest_pending();
            self.append_frame(&ClientFrame::Acknowledge { slot: slot as u16, below });
        }
    }
}
