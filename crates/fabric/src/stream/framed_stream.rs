//! One stream of a requester, with its frame decoder and its queue of bytes to send.

use std::fmt;
use std::os::fd::OwnedFd;

use farfork_wire::frame::{FabricFrameError, Header, encode_hello};

use super::event_source::Interest;
use crate::LinkError;
use crate::buffer::{Buffer, BufferPool};
use crate::protocol::{DecodeEvent, FrameDecoder, SendQueue, carries_fd};
use crate::transport::Stream;

/// Size of the staging buffer, in bytes: one system call can receive seven single pages. The part of a longer reply
/// that arrives in this buffer is copied once more.
const STAGING_BYTES: usize = 32 << 10;

/// Limit on the request bytes that are collected before they are sent: thousands of reads fit. One request may exceed
/// the limit.
const OUTBOUND_BYTES_MAX: usize = 256 << 10;

/// A connected stream.
pub(crate) struct FramedStream {
    stream: Box<dyn Stream>,
    decoder: FrameDecoder,
    send_queue: SendQueue,
    /// Whether the stream accepted fewer bytes than were queued.
    is_send_blocked: bool,
    scratch: Vec<u8>,
}

/// The result of one receive call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiveResult {
    pub(crate) bytes: usize,
    /// Whether the stream has no more bytes for now.
    pub(crate) is_drained: bool,
}

impl FramedStream {
    /// Creates the framed stream, and queues the hello.
    pub(crate) fn new(stream: Box<dyn Stream>, pool: &mut BufferPool) -> Self {
        let mut send_queue = SendQueue::default();
        send_queue.append(&encode_hello(), pool);
        Self {
            stream,
            decoder: FrameDecoder::new(STAGING_BYTES, usize::MAX),
            send_queue,
            is_send_blocked: false,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    /// Returns the events that the stream waits for.
    pub(crate) fn interest(&self) -> Interest {
        Interest { receive: true, send: self.is_send_blocked || self.stream.has_unsent() }
    }

    /// Whether bytes are queued for sending.
    pub(crate) fn has_unsent(&self) -> bool {
        self.send_queue.queued_bytes() > 0 || self.stream.has_unsent()
    }

    /// Sends queued bytes and the bytes that `encode` appends, until none are left or the stream accepts no more.
    pub(crate) fn send_queued(
        &mut self,
        pool: &mut BufferPool,
        mut encode: impl FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<(), LinkError> {
        self.is_send_blocked = false;
        loop {
            while self.send_queue.queued_bytes() < OUTBOUND_BYTES_MAX {
                self.scratch.clear();
                if !encode(&mut self.scratch) {
                    break;
                }
                self.send_queue.append(&self.scratch, pool);
            }
            if !self.has_unsent() {
                return Ok(());
            }
            let (slices, count, _) = self.send_queue.slices();
            match self.stream.send(&slices[..count]).map_err(LinkError::Broken)? {
                Some(sent) => self.send_queue.mark_sent(sent, pool),
                None => break,
            }
            if self.send_queue.queued_bytes() == 0 && self.stream.has_unsent() {
                return Ok(());
            }
        }
        self.is_send_blocked = self.send_queue.queued_bytes() > 0;
        Ok(())
    }

    /// Receives once. Returns `None` if nothing has arrived.
    pub(crate) fn receive(&mut self) -> Result<Option<ReceiveResult>, LinkError> {
        let mut spaces = self.decoder.receive_buffers();
        let room: usize = spaces.iter().map(|space| space.len()).sum();
        match self.stream.receive(&mut spaces).map_err(LinkError::Broken)? {
            None => Ok(None),
            Some(0) => Err(LinkError::Closed),
            Some(bytes) => {
                if self.stream.is_integrity_protected() {
                    self.decoder.set_integrity_protected();
                }
                self.decoder.mark_received(bytes);
                Ok(Some(ReceiveResult { bytes, is_drained: bytes < room && !self.stream.may_have_buffered() }))
            }
        }
    }

    /// Returns the next complete frame, with its file descriptor if it has one.
    pub(crate) fn next_frame(
        &mut self,
        pool: &mut BufferPool,
    ) -> Result<Option<(Header, Buffer, Option<OwnedFd>)>, LinkError> {
        let (header, body) = loop {
            match self.decoder.next_event(pool)? {
                None => return Ok(None),
                Some(DecodeEvent::Hello) => {}
                Some(DecodeEvent::Frame(header, body)) => break (header, body),
            }
        };
        if !carries_fd(&header) {
            return Ok(Some((header, body, None)));
        }
        let missing = FabricFrameError::InvalidBody { kind: header.kind, what: "its file descriptor is missing" };
        let descriptor = self.stream.take_fd().ok_or(missing)?;
        Ok(Some((header, body, Some(descriptor))))
    }
}

impl fmt::Debug for FramedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?})", self.stream)
    }
}
