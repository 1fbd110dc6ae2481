//! One requester's connection at the owner. It works in turns of bounded length, so that no requester delays another.
//! While the requester does not receive its replies, its further requests are not received, so that their replies
//! cannot exhaust the memory.

use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::event_source::Interest;
use crate::LinkError;
use crate::buffer::BufferPool;
use crate::protocol::{DecodeEvent, FrameDecoder, OwnerContext, RefusedRequest, Responder, SendQueue};
use crate::transport::Stream;

/// Size of the staging buffer, in bytes: several hundred requests in one system call.
const STAGING_BYTES: usize = 16 << 10;

/// Size of the buffer for a body when its header is received, in bytes: the longest message. For a longer write, the
/// buffer grows as bytes arrive. So a header alone costs little memory.
const BODY_PREALLOC_BYTES: usize = 64 << 10;

/// Limit on the queued reply bytes. While it is reached, the requester's further requests wait. One reply may exceed
/// the limit.
const OUTBOUND_BYTES_MAX: usize = 2 << 20;

/// Limit on the reply bytes of one turn. One reply may exceed the limit.
const TURN_BYTES_MAX: usize = 512 << 10;

/// Number of queued reply bytes from which they are sent before the next request is served, so that the requester can
/// already process them.
const FLUSH_BYTES: usize = 128 << 10;

/// Longest time that a connection may exist without a complete handshake and a hello.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time in which a requester may accept no bytes of queued replies, or send no bytes of an incomplete request.
/// A pager that was stopped for longer reconnects.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnOutcome {
    /// There is nothing to do until the stream receives or accepts bytes.
    Idle,
    /// The next turn can be run at once: requests or bytes are left.
    HasMore,
}

//   handshake -- done --> hello expected -- greeted --> serving
//       +------- not within HELLO_TIMEOUT ---+--> ended

/// One requester's connection.
pub(crate) struct ServerConnection {
    stream: Box<dyn Stream>,
    decoder: FrameDecoder,
    send_queue: SendQueue,
    responder: Responder,
    /// Whether the handshake is complete.
    is_handshake_done: bool,
    /// Whether there may be received requests that were not served yet.
    has_backlog: bool,
    /// Whether the stream may have buffered bytes.
    may_have_unread: bool,
    /// Whether receiving has stopped.
    is_draining: bool,
    /// Number of reply bytes of the last turn.
    served_bytes: usize,
    /// Time of the last progress: the connection was accepted, replies were sent, or no replies were queued.
    progress_at: Instant,
    /// Time at which bytes last arrived, or at which no frame was incomplete.
    received_at: Instant,
}

impl ServerConnection {
    /// Creates a connection over an accepted stream. `from` is the peer's name for the log. The time limit for the
    /// hello starts at `accepted_at`.
    pub(crate) fn new(
        stream: Box<dyn Stream>,
        from: String,
        same_host: bool,
        accepted_at: Instant,
        pool: &mut BufferPool,
    ) -> Self {
        let mut send_queue = SendQueue::default();
        let responder = Responder::new(from, same_host, &mut send_queue, pool);
        let decoder = FrameDecoder::new(STAGING_BYTES, BODY_PREALLOC_BYTES);
        let (is_handshake_done, has_backlog, may_have_unread, is_draining) = (false, false, false, false);
        Self {
            stream,
            decoder,
            send_queue,
            responder,
            is_handshake_done,
            has_backlog,
            may_have_unread,
            is_draining,
            served_bytes: 0,
            progress_at: accepted_at,
            received_at: accepted_at,
        }
    }

    /// Returns the peer's name, as in the log.
    pub(crate) fn peer_name(&self) -> &str {
        self.responder.peer_name()
    }

    /// Returns the last refusal since the previous call.
    pub(crate) fn take_last_refusal(&mut self) -> Option<RefusedRequest> {
        self.responder.take_last_refusal()
    }

    pub(crate) fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    /// Whether the requester has sent its hello.
    pub(crate) fn has_greeted(&self) -> bool {
        self.decoder.has_greeted()
    }

    /// Receives, serves and sends, within the limits of a turn.
    pub(crate) fn run_turn(
        &mut self,
        now: Instant,
        shared: &OwnerContext,
        pool: &mut BufferPool,
    ) -> Result<TurnOutcome, LinkError> {
        if !self.is_handshake_done && !self.continue_handshake()? {
            return Ok(TurnOutcome::Idle);
        }
        if !self.has_unsent() {
            self.progress_at = now;
        }
        if !self.awaits_frame_rest() {
            self.received_at = now;
        }
        let served = self.receive(now).and_then(|()| self.serve_received(now, shared, pool));
        // A requester that violates the protocol still gets the replies to earlier requests, and the owner's hello.
        self.send_replies(now, pool)?;
        served?;
        let has_more = (self.has_backlog || self.may_have_unread) && !self.is_send_queue_full();
        Ok(if has_more { TurnOutcome::HasMore } else { TurnOutcome::Idle })
    }

    /// Number of reply bytes of the last turn.
    pub(crate) fn served_bytes(&self) -> usize {
        self.served_bytes
    }

    /// Stops receiving.
    pub(crate) fn stop_receiving(&mut self) {
        self.is_draining = true;
    }

    /// Whether all received requests were served and all replies sent.
    pub(crate) fn is_drained(&self) -> bool {
        !(self.has_backlog || self.is_handshake_done && self.has_unsent())
    }

    /// Returns the events that the connection waits for: bytes to receive, unless too many replies are queued; space to
    /// send, while replies are queued.
    pub(crate) fn interest(&self) -> Interest {
        Interest {
            receive: !self.has_backlog && !self.is_send_queue_full() && !self.is_draining,
            send: self.has_unsent() && self.wants_write(),
        }
    }

    /// Whether the connection has made no progress for too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.progress_at);
        let silence = now.saturating_duration_since(self.received_at);
        let cut_off = self.has_greeted() && self.awaits_frame_rest() && silence >= STALL_TIMEOUT;
        (!self.has_greeted() && since >= HELLO_TIMEOUT) || (self.has_unsent() && since >= STALL_TIMEOUT) || cut_off
    }

    fn continue_handshake(&mut self) -> Result<bool, LinkError> {
        self.is_handshake_done = self.stream.continue_handshake().map_err(LinkError::Handshake)?;
        if self.is_handshake_done && self.stream.is_integrity_protected() {
            self.responder.set_integrity_protected();
        }
        if let Some(name) = self.stream.peer_identity().filter(|_| self.is_handshake_done) {
            let address = self.responder.peer_name();
            let from = format!("{name} at {address}");
            self.responder.set_peer_name(from);
        }
        Ok(self.is_handshake_done)
    }

    /// Whether a frame is incomplete, and its rest may be received.
    fn awaits_frame_rest(&self) -> bool {
        self.decoder.has_partial_frame() && !self.has_backlog && !self.is_send_queue_full()
    }

    fn is_send_queue_full(&self) -> bool {
        self.send_queue.queued_bytes() >= OUTBOUND_BYTES_MAX
    }

    fn has_unsent(&self) -> bool {
        self.send_queue.queued_bytes() > 0 || self.stream.has_unsent()
    }

    /// Whether bytes may be sent. During the handshake, the queued hello waits, and only the handshake's own bytes
    /// count.
    fn wants_write(&self) -> bool {
        self.is_handshake_done || self.stream.has_unsent()
    }

    fn receive(&mut self, now: Instant) -> Result<(), LinkError> {
        if self.has_backlog || self.is_send_queue_full() || self.is_draining {
            return Ok(());
        }
        let mut spaces = self.decoder.receive_buffers();
        match self.stream.receive(&mut spaces).map_err(LinkError::Broken)? {
            Some(0) => Err(LinkError::Closed),
            Some(count) => {
                self.decoder.mark_received(count);
                self.received_at = now;
                self.has_backlog = true;
                self.may_have_unread = self.stream.may_have_buffered();
                Ok(())
            }
            None => {
                self.may_have_unread = false;
                Ok(())
            }
        }
    }

    /// Serves received requests while not too many replies are queued.
    fn serve_received(&mut self, now: Instant, shared: &OwnerContext, pool: &mut BufferPool) -> Result<(), LinkError> {
        self.served_bytes = 0;
        while self.has_backlog && !self.is_send_queue_full() && self.served_bytes < TURN_BYTES_MAX {
            let queued_before = self.send_queue.queued_bytes();
            match self.decoder.next_event(pool)? {
                Some(DecodeEvent::Frame(header, body)) => {
                    self.responder.serve_request(&header, &body, shared, &mut self.send_queue, pool)?;
                    pool.put(body);
                }
                Some(DecodeEvent::Hello) => {}
                None => self.has_backlog = false,
            }
            self.served_bytes += self.send_queue.queued_bytes() - queued_before;
            if self.send_queue.queued_bytes() >= FLUSH_BYTES {
                self.send_replies(now, pool)?;
            }
        }
        Ok(())
    }

    fn send_replies(&mut self, now: Instant, pool: &mut BufferPool) -> Result<(), LinkError> {
        while self.has_unsent() {
            let (slices, count, descriptor) = self.send_queue.slices();
            let sent = match descriptor {
                Some(descriptor) => self.stream.send_with_fd(&slices[..count], descriptor.as_fd()),
                None => self.stream.send(&slices[..count]),
            };
            let Some(sent) = sent.map_err(LinkError::Broken)? else { break };
            self.send_queue.mark_sent(sent, pool);
            self.progress_at = now;
            if self.send_queue.queued_bytes() == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ServerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.peer_name())
    }
}
