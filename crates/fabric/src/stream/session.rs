//! One stream's life at the requester: what waits to be sent through it, what has come.

use std::fmt;
use std::os::fd::OwnedFd;

use farfork_wire::frame::{FrameError, Header, encode_hello};

use super::rim::Interest;
use crate::LinkError;
use crate::buffer::{Buffer, Pool};
use crate::protocol::{Event, Inbound, Outbound, brings_descriptor};
use crate::transport::Stream;

/// Size of the staging area, in bytes: a burst of seven single pages with one system call; of a longer reply, the part
/// that is copied once more.
const STAGING_BYTES: usize = 32 << 10;

/// Most request bytes that are put together before they are sent: thousands of reads. One more request may exceed it.
const OUTBOUND_BYTES_MAX: usize = 256 << 10;

/// A connected stream.
pub(crate) struct Session {
    stream: Box<dyn Stream>,
    inbound: Inbound,
    outbound: Outbound,
    /// Whether the stream took less than there was.
    blocked: bool,
    scratch: Vec<u8>,
}

/// What one receipt brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// Whether the stream has no more for now.
    pub(crate) drained: bool,
}

impl Session {
    /// Begins with the greeting.
    pub(crate) fn new(stream: Box<dyn Stream>, pool: &mut Pool) -> Self {
        let mut outbound = Outbound::default();
        outbound.append(&encode_hello(), pool);
        Self { stream, inbound: Inbound::new(STAGING_BYTES, usize::MAX), outbound, blocked: false, scratch: Vec::new() }
    }

    pub(crate) fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    /// What the stream is waited for.
    pub(crate) fn interest(&self) -> Interest {
        Interest { receive: true, send: self.blocked || self.stream.has_unsent() }
    }

    /// Whether something waits to be sent.
    pub(crate) fn is_sending(&self) -> bool {
        self.outbound.queued() > 0 || self.stream.has_unsent()
    }

    /// Sends what waits and what `encode` appends, until that is nothing or the stream takes no more.
    pub(crate) fn transmit(
        &mut self,
        pool: &mut Pool,
        mut encode: impl FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<(), LinkError> {
        self.blocked = false;
        loop {
            while self.outbound.queued() < OUTBOUND_BYTES_MAX {
                self.scratch.clear();
                if !encode(&mut self.scratch) {
                    break;
                }
                self.outbound.append(&self.scratch, pool);
            }
            if !self.is_sending() {
                return Ok(());
            }
            let (slices, count, _) = self.outbound.slices();
            match self.stream.send(&slices[..count]).map_err(LinkError::Broken)? {
                Some(sent) => self.outbound.sent(sent, pool),
                None => break,
            }
            if self.outbound.queued() == 0 && self.stream.has_unsent() {
                return Ok(());
            }
        }
        self.blocked = self.outbound.queued() > 0;
        Ok(())
    }

    /// Receives once; `None` when there is nothing now.
    pub(crate) fn receive(&mut self) -> Result<Option<Received>, LinkError> {
        let mut spaces = self.inbound.spaces();
        let room: usize = spaces.iter().map(|space| space.len()).sum();
        match self.stream.receive(&mut spaces).map_err(LinkError::Broken)? {
            None => Ok(None),
            Some(0) => Err(LinkError::Closed),
            Some(bytes) => {
                if self.stream.proves_bytes() {
                    self.inbound.is_proven();
                }
                self.inbound.received(bytes);
                Ok(Some(Received { bytes, drained: bytes < room && !self.stream.keeps_received() }))
            }
        }
    }

    /// The next frame that is complete, with the descriptor that belongs to it.
    pub(crate) fn next_frame(
        &mut self,
        pool: &mut Pool,
    ) -> Result<Option<(Header, Buffer, Option<OwnedFd>)>, LinkError> {
        let (header, body) = loop {
            match self.inbound.next(pool)? {
                None => return Ok(None),
                Some(Event::Hello) => {}
                Some(Event::Frame(header, body)) => break (header, body),
            }
        };
        if !brings_descriptor(&header) {
            return Ok(Some((header, body, None)));
        }
        let missing = FrameError::Body { kind: header.kind, what: "its file descriptor is missing" };
        let descriptor = self.stream.take_descriptor().ok_or(missing)?;
        Ok(Some((header, body, Some(descriptor))))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?})", self.stream)
    }
}
