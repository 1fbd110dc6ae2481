//! One requester's connection at the owner. It works in turns of bounded length, so that no requester holds up
//! another, and reads no further requests while the requester does not take its replies, so that none exhausts memory.
//!
//! ```text
//!   Securing ── open ──▶ Greeting ── greeted ──▶ Serving
//!      └──────── not within the limit ──┴──▶ ended
//! ```

use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::rim::Interest;
use crate::LinkError;
use crate::buffer::Pool;
use crate::protocol::{Event, Inbound, Outbound, Owner, Refused, Shared};
use crate::transport::Stream;

/// Size of the staging area, in bytes: some hundred requests with one system call.
const STAGING_BYTES: usize = 16 << 10;

/// Memory that a requester gets for the body that it announces, in bytes: the longest message. For a longer write, it
/// gets more as the body comes: who only announces costs little.
const BELIEVED_BYTES: usize = 64 << 10;

/// Reply bytes that may wait for a requester before its further requests do. One more reply may exceed it.
const OUTBOUND_BYTES_MAX: usize = 2 << 20;

/// Reply bytes of one turn. One more reply may exceed it.
const TURN_BYTES_MAX: usize = 512 << 10;

/// Reply bytes that are sent before the next request is served: the requester works on them meanwhile.
const SENT_BYTES: usize = 128 << 10;

/// How long a connection may go without handshake and greeting.
pub(crate) const HELLO_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long replies may wait without any being taken, and a request for its rest. A pager that was stopped for longer connects again.
const STALL_MAX: Duration = Duration::from_secs(30);

/// What a turn leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing, until the stream has something or takes something.
    Waits,
    /// Requests that were received but not served yet.
    HasMore,
}

/// One requester's connection.
pub(crate) struct Peer {
    stream: Box<dyn Stream>,
    inbound: Inbound,
    outbound: Outbound,
    owner: Owner,
    /// Whether the handshake is over.
    secured: bool,
    /// Whether there may be requests that were received but not served.
    backlog: bool,
    /// Whether the stream may keep bytes that have come.
    unread: bool,
    /// Whether nothing more is received.
    finishing: bool,
    /// Reply bytes of the last turn.
    served_bytes: usize,
    /// When it last got on: when it came, when replies were taken, or when none waited.
    progress_at: Instant,
    /// When bytes came last, or the rest of a frame was not waited for.
    heard_at: Instant,
}

impl Peer {
    /// Of a stream that was accepted. `from`: who it comes from, as the log names it; `came_at`: since when it has had time
    /// to greet.
    pub(crate) fn new(
        stream: Box<dyn Stream>,
        from: String,
        same_host: bool,
        came_at: Instant,
        pool: &mut Pool,
    ) -> Self {
        let mut outbound = Outbound::default();
        let owner = Owner::new(from, same_host, &mut outbound, pool);
        let inbound = Inbound::new(STAGING_BYTES, BELIEVED_BYTES);
        let (secured, backlog, unread, finishing) = (false, false, false, false);
        Self {
            stream,
            inbound,
            outbound,
            owner,
            secured,
            backlog,
            unread,
            finishing,
            served_bytes: 0,
            progress_at: came_at,
            heard_at: came_at,
        }
    }

    /// Who it is, as the log names it.
    pub(crate) fn from(&self) -> &str {
        self.owner.from()
    }

    /// What it was refused since this was asked last.
    pub(crate) fn take_refused(&mut self) -> Option<Refused> {
        self.owner.take_refused()
    }

    pub(crate) fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    /// Whether it has said what it speaks.
    pub(crate) fn has_greeted(&self) -> bool {
        self.inbound.greeted()
    }

    /// Receives, serves, sends: as much as a turn may.
    pub(crate) fn turn(&mut self, now: Instant, shared: &Shared, pool: &mut Pool) -> Result<Turn, LinkError> {
        if !self.secured && !self.shake()? {
            return Ok(Turn::Waits);
        }
        if !self.is_sending() {
            self.progress_at = now;
        }
        if !self.awaits_rest() {
            self.heard_at = now;
        }
        let served = self.receive(now).and_then(|()| self.serve(now, shared, pool));
        // Who violates the protocol still learns what was served before, and who is here.
        self.send(now, pool)?;
        served?;
        let has_more = (self.backlog || self.unread) && !self.is_full();
        Ok(if has_more { Turn::HasMore } else { Turn::Waits })
    }

    /// How many bytes of replies the last turn has put together.
    pub(crate) fn served_bytes(&self) -> usize {
        self.served_bytes
    }

    /// From now on nothing more is received.
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Whether all that was received is served, and all replies are sent.
    pub(crate) fn is_done(&self) -> bool {
        !(self.backlog || self.secured && self.is_sending())
    }

    /// What to wait for: requests unless too many replies wait, room while any do.
    pub(crate) fn interest(&self) -> Interest {
        Interest {
            receive: !self.backlog && !self.is_full() && !self.finishing,
            send: self.is_sending() && self.secured_or_unsent(),
        }
    }

    /// Whether it did not get on for too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.progress_at);
        let silence = now.saturating_duration_since(self.heard_at);
        let cut_off = self.has_greeted() && self.awaits_rest() && silence >= STALL_MAX;
        (!self.has_greeted() && since >= HELLO_WAIT_MAX) || (self.is_sending() && since >= STALL_MAX) || cut_off
    }

    fn shake(&mut self) -> Result<bool, LinkError> {
        self.secured = self.stream.shake().map_err(LinkError::Handshake)?;
        if self.secured && self.stream.proves_bytes() {
            self.owner.is_proven();
        }
        if let Some(name) = self.stream.peer().filter(|_| self.secured) {
            let address = self.owner.from();
            let from = format!("{name} at {address}");
            self.owner.name(from);
        }
        Ok(self.secured)
    }

    /// Whether a frame has come in part, and the rest would be received.
    fn awaits_rest(&self) -> bool {
        self.inbound.is_amid_frame() && !self.backlog && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.outbound.queued() >= OUTBOUND_BYTES_MAX
    }

    fn is_sending(&self) -> bool {
        self.outbound.queued() > 0 || self.stream.has_unsent()
    }

    /// Before the handshake is over the greeting waits, and only the handshake's own bytes may want room.
    fn secured_or_unsent(&self) -> bool {
        self.secured || self.stream.has_unsent()
    }

    fn receive(&mut self, now: Instant) -> Result<(), LinkError> {
        if self.backlog || self.is_full() || self.finishing {
            return Ok(());
        }
        let mut spaces = self.inbound.spaces();
        match self.stream.receive(&mut spaces).map_err(LinkError::Broken)? {
            Some(0) => Err(LinkError::Closed),
            Some(count) => {
                self.inbound.received(count);
                self.heard_at = now;
                self.backlog = true;
                self.unread = self.stream.keeps_received();
                Ok(())
            }
            None => {
                self.unread = false;
                Ok(())
            }
        }
    }

    /// Serves what was received, while not too much waits to be sent.
    fn serve(&mut self, now: Instant, shared: &Shared, pool: &mut Pool) -> Result<(), LinkError> {
        self.served_bytes = 0;
        while self.backlog && !self.is_full() && self.served_bytes < TURN_BYTES_MAX {
            let queued_before = self.outbound.queued();
            match self.inbound.next(pool)? {
                Some(Event::Frame(header, body)) => {
                    self.owner.serve(&header, &body, shared, &mut self.outbound, pool)?;
                    pool.put(body);
                }
                Some(Event::Hello) => {}
                None => self.backlog = false,
            }
            self.served_bytes += self.outbound.queued() - queued_before;
            if self.outbound.queued() >= SENT_BYTES {
                self.send(now, pool)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, now: Instant, pool: &mut Pool) -> Result<(), LinkError> {
        while self.is_sending() {
            let (slices, count, descriptor) = self.outbound.slices();
            let sent = match descriptor {
                Some(descriptor) => self.stream.send_with(&slices[..count], descriptor.as_fd()),
                None => self.stream.send(&slices[..count]),
            };
            let Some(sent) = sent.map_err(LinkError::Broken)? else { break };
            self.outbound.sent(sent, pool);
            self.progress_at = now;
            if self.outbound.queued() == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.from())
    }
}
