//! Decodes a stream of bytes into the hello and frames.
//!
//! All connections of a thread receive into one shared staging buffer, and frames are decoded there in place. At the
//! end of its turn in the thread's loop, a connection saves an incomplete frame. A long payload that arrives in parts
//! gets its own buffer once its head is verified. The remaining bytes are received directly into this buffer.

use std::io::IoSliceMut;
use std::ops::{Deref, Range};

use farfork_wire::rpc::{Frame, FrameHead, HELLO_BYTES, RpcFrameError, VersionRange};

/// Size of the staging buffer, in bytes: about one socket buffer, or several thousand small frames.
const STAGING_BYTES: usize = 256 << 10;

/// Shortest payload that gets a buffer of its own, in bytes. For shorter ones, copying the received part is cheaper.
const LONG_PAYLOAD_BYTES_MIN: usize = 32 << 10;

/// Largest buffer that a connection keeps for its next long payload, in bytes.
const SPARE_BUFFER_BYTES_MAX: usize = 1 << 20;

/// Receives bytes. The connections of a thread use it in turn.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    bytes: Box<[u8]>,
    /// Bytes that were not decoded yet.
    unparsed: Range<usize>,
}

impl Default for StagingBuffer {
    fn default() -> Self {
        Self { bytes: vec![0; STAGING_BYTES].into_boxed_slice(), unparsed: 0..0 }
    }
}

/// A received payload: borrowed, or owned if it is long.
#[derive(Debug)]
pub struct ReceivedPayload<'a>(PayloadSource<'a>);

#[derive(Debug)]
enum PayloadSource<'a> {
    Borrowed(&'a [u8]),
    Owned(&'a mut Vec<u8>),
}

impl ReceivedPayload<'_> {
    /// Returns the bytes. A long payload is moved, not copied.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            PayloadSource::Borrowed(bytes) => bytes.to_vec(),
            PayloadSource::Owned(bytes) => std::mem::take(bytes),
        }
    }
}

impl<'a> From<&'a [u8]> for ReceivedPayload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(PayloadSource::Borrowed(bytes))
    }
}

impl Deref for ReceivedPayload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            PayloadSource::Borrowed(bytes) => bytes,
            PayloadSource::Owned(bytes) => bytes,
        }
    }
}

/// Decodes the bytes that one side of a connection received.
#[derive(Debug)]
pub(crate) struct FrameDecoder<M> {
    /// The received part of an incomplete frame.
    partial_frame: Vec<u8>,
    /// The long payload that is being received. While it is incomplete, the staging buffer has no undecoded bytes.
    partial_payload: Option<PartialPayload<M>>,
    /// The buffer of the last long payload. The next long payload reuses it.
    long_payload: Vec<u8>,
}

#[derive(Debug)]
struct PartialPayload<M> {
    frame: Frame<M>,
    bytes: Vec<u8>,
    filled_bytes: usize,
    crc: u32,
}

impl<M> PartialPayload<M> {
    fn missing_bytes(&self) -> usize {
        self.bytes.len() - self.filled_bytes
    }

    /// Adds `count` bytes after the filled part, and updates the checksum while they are in the cache.
    fn advance(&mut self, count: usize) {
        if self.frame.payload_crc.is_some() {
            self.crc = crc32c::crc32c_append(self.crc, &self.bytes[self.filled_bytes..self.filled_bytes + count]);
        }
        self.filled_bytes += count;
    }
}

impl<M> Default for FrameDecoder<M> {
    fn default() -> Self {
        Self { partial_frame: Vec::new(), partial_payload: None, long_payload: Vec::new() }
    }
}

impl<M: FrameHead + Copy> FrameDecoder<M> {
    /// Moves the saved bytes of this connection to the staging buffer, which must be empty.
    pub(crate) fn restore_partial(&mut self, staging: &mut StagingBuffer) {
        debug_assert!(staging.unparsed.is_empty(), "the staging buffer is empty");
        staging.bytes[..self.partial_frame.len()].copy_from_slice(&self.partial_frame);
        staging.unparsed = 0..self.partial_frame.len();
        self.partial_frame.clear();
    }

    /// The buffers to receive into, in order: the rest of a long payload, then the staging buffer. Call
    /// [`FrameDecoder::restore_partial`] before.
    pub(crate) fn receive_buffers<'a>(&'a mut self, staging: &'a mut StagingBuffer) -> [IoSliceMut<'a>; 2] {
        let rest = match &mut self.partial_payload {
            Some(body) => &mut body.bytes[body.filled_bytes..],
            None => &mut [],
        };
        [IoSliceMut::new(rest), IoSliceMut::new(&mut staging.bytes[staging.unparsed.end..])]
    }

    /// Records that `count` bytes were written to the [`FrameDecoder::receive_buffers`].
    pub(crate) fn mark_received(&mut self, staging: &mut StagingBuffer, count: usize) {
        let mut into_body = 0;
        if let Some(body) = &mut self.partial_payload {
            into_body = count.min(body.missing_bytes());
            body.advance(into_body);
        }
        staging.unparsed.end += count - into_body;
        assert!(staging.unparsed.end <= staging.bytes.len(), "more bytes were received than the buffers hold");
    }

    /// Decodes the peer's hello, once it is complete. The hello precedes all frames.
    pub(crate) fn decode_hello(&mut self, staging: &mut StagingBuffer) -> Result<Option<VersionRange>, RpcFrameError> {
        let Some(bytes) = staging.bytes[staging.unparsed.clone()].first_chunk::<HELLO_BYTES>() else {
            return Ok(None);
        };
        staging.unparsed.start += HELLO_BYTES;
        VersionRange::decode(bytes).map(Some)
    }

    /// Decodes the next complete frame.
    ///
    /// # Errors
    /// The first error in the stream. Bytes after the error must not be decoded.
    pub(crate) fn next_frame<'a>(
        &'a mut self,
        staging: &'a mut StagingBuffer,
    ) -> Result<Option<(M, ReceivedPayload<'a>)>, RpcFrameError> {
        if self.partial_payload.is_some() {
            return self.next_long_frame();
        }
        let waiting = &staging.bytes[staging.unparsed.clone()];
        let Some(frame) = M::decode(waiting)? else { return Ok(None) };
        let frame_bytes = frame.head_bytes + frame.payload_bytes;
        if let Some(payload) = waiting.get(frame.head_bytes..frame_bytes) {
            staging.unparsed.start += frame_bytes;
            if let Some(crc) = frame.payload_crc {
                check_crc(crc32c::crc32c(payload), crc)?;
            }
            return Ok(Some((frame.head, ReceivedPayload(PayloadSource::Borrowed(payload)))));
        }
        if frame.payload_bytes >= LONG_PAYLOAD_BYTES_MIN {
            self.begin_long_payload(frame, &waiting[frame.head_bytes..]);
            staging.unparsed = 0..0;
        }
        Ok(None)
    }

    fn next_long_frame(&mut self) -> Result<Option<(M, ReceivedPayload<'_>)>, RpcFrameError> {
        let Some(body) = self.partial_payload.take_if(|body| body.missing_bytes() == 0) else { return Ok(None) };
        if let Some(crc) = body.frame.payload_crc {
            check_crc(body.crc, crc)?;
        }
        self.long_payload = body.bytes;
        Ok(Some((body.frame.head, ReceivedPayload(PayloadSource::Owned(&mut self.long_payload)))))
    }

    fn begin_long_payload(&mut self, frame: Frame<M>, arrived: &[u8]) {
        let mut bytes = std::mem::take(&mut self.long_payload);
        if bytes.capacity() > SPARE_BUFFER_BYTES_MAX || bytes.capacity() < frame.payload_bytes {
            // The kernel allocates pages when they are first written, so a large length in a hostile head costs no
            // memory yet.
            bytes = vec![0; frame.payload_bytes];
        } else {
            bytes.resize(frame.payload_bytes, 0);
        }
        let mut body = PartialPayload { frame, bytes, filled_bytes: 0, crc: 0 };
        body.bytes[..arrived.len()].copy_from_slice(arrived);
        body.advance(arrived.len());
        self.partial_payload = Some(body);
    }

    /// Whether a frame is incomplete.
    pub(crate) fn has_partial_frame(&self) -> bool {
        self.partial_payload.is_some() || !self.partial_frame.is_empty()
    }

    /// Whether a long payload is incomplete.
    pub(crate) fn has_partial_payload(&self) -> bool {
        self.partial_payload.is_some()
    }

    /// Number of bytes that this connection holds of an incomplete frame.
    pub(crate) fn held_bytes(&self) -> usize {
        self.partial_frame.len() + self.partial_payload.as_ref().map_or(0, |body| body.filled_bytes)
    }

    /// Saves the bytes that were not decoded, and empties the staging buffer.
    pub(crate) fn save_partial(&mut self, staging: &mut StagingBuffer) {
        self.partial_frame.extend_from_slice(&staging.bytes[staging.unparsed.clone()]);
        staging.unparsed = 0..0;
        if self.partial_frame.is_empty() && self.partial_frame.capacity() > LONG_PAYLOAD_BYTES_MIN {
            self.partial_frame = Vec::new();
        }
        if self.partial_payload.is_none() && self.long_payload.capacity() > SPARE_BUFFER_BYTES_MAX {
            self.long_payload = Vec::new();
        }
    }
}

fn check_crc(actual: u32, announced: u32) -> Result<(), RpcFrameError> {
    if actual == announced { Ok(()) } else { Err(RpcFrameError::PayloadChecksum) }
}
