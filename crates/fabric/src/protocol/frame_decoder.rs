//! Decodes a stream of bytes into the hello and frames.
//!
//! Small frames arrive in the staging buffer, many per system call. A body that arrives in parts gets its own buffer
//! once its header is decoded. The rest is received directly into this buffer, so a long reply is not copied. The
//! buffer for a body from an untrusted peer grows as the bytes arrive, so an announced length alone costs no memory.

use std::io::IoSliceMut;

use farfork_wire::frame::{FabricFrameError, FrameKind, HEADER_BYTES, HELLO_BYTES, Header, decode_hello};

use crate::buffer::{Buffer, BufferPool};

/// A decoded part of the stream.
#[derive(Debug)]
pub(crate) enum DecodeEvent {
    /// The peer's hello, once, before all frames.
    Hello,
    /// A frame whose checksums match.
    Frame(Header, Buffer),
}

/// Decodes the bytes that one side of a connection received.
#[derive(Debug)]
pub(crate) struct FrameDecoder {
    staging: Box<[u8]>,
    /// The bytes in the staging buffer that were not decoded yet.
    unparsed: std::ops::Range<usize>,
    has_greeted: bool,
    /// The body that is being received. While it is incomplete, the staging buffer has no undecoded bytes.
    body: Option<PartialBody>,
    /// Whether the stream itself protects each byte. Then DATA frames have no body checksum.
    is_integrity_protected: bool,
    /// Size of the buffer that a body gets when its header is decoded. More is allocated only as bytes arrive.
    body_prealloc_bytes: usize,
}

/// Factor by which the full buffer of a body grows.
const BUFFER_GROWTH_FACTOR: usize = 4;

#[derive(Debug)]
struct PartialBody {
    header: Header,
    buffer: Buffer,
    filled_bytes: usize,
    /// Checksum of the received part; `None` if the body has no checksum.
    crc: Option<u32>,
}

impl PartialBody {
    /// Number of bytes that have not arrived.
    fn missing_bytes(&self) -> usize {
        self.header.body_bytes as usize - self.filled_bytes
    }

    /// Free space in the buffer, in bytes.
    fn free_bytes(&self) -> usize {
        self.buffer.len() - self.filled_bytes
    }

    /// Enlarges the buffer if it is full and more bytes are expected.
    fn grow(&mut self, pool: &mut BufferPool) {
        if self.free_bytes() == 0 && self.missing_bytes() > 0 {
            let bytes = (self.buffer.len() * BUFFER_GROWTH_FACTOR).min(self.header.body_bytes as usize);
            let mut larger = pool.take(bytes);
            larger[..self.filled_bytes].copy_from_slice(&self.buffer);
            pool.put(std::mem::replace(&mut self.buffer, larger));
        }
    }

    /// Adds `count` bytes after the filled part, and updates the checksum while they are in the cache.
    fn advance(&mut self, count: usize) {
        if let Some(crc) = &mut self.crc {
            *crc = crc32c::crc32c_append(*crc, &self.buffer[self.filled_bytes..self.filled_bytes + count]);
        }
        self.filled_bytes += count;
    }
}

impl FrameDecoder {
    /// Creates a decoder with a staging buffer of this size. A body gets a buffer of at most `believed_bytes` when its
    /// header is decoded.
    pub(crate) fn new(staging_bytes: usize, believed_bytes: usize) -> Self {
        assert!(staging_bytes >= HEADER_BYTES + HELLO_BYTES);
        let staging = vec![0; staging_bytes].into_boxed_slice();
        let believed_bytes = believed_bytes.max(1);
        Self {
            staging,
            unparsed: 0..0,
            has_greeted: false,
            body: None,
            is_integrity_protected: false,
            body_prealloc_bytes: believed_bytes,
        }
    }

    /// Records that the stream itself protects each byte from now on.
    pub(crate) fn set_integrity_protected(&mut self) {
        self.is_integrity_protected = true;
    }

    /// Whether the peer has sent its hello.
    pub(crate) fn has_greeted(&self) -> bool {
        self.has_greeted
    }

    /// Whether the received bytes end with an incomplete frame.
    pub(crate) fn has_partial_frame(&self) -> bool {
        self.body.is_some() || !self.unparsed.is_empty()
    }

    /// Returns the buffers to receive into, in order: the rest of a body, then the staging buffer. Call only after
    /// [`FrameDecoder::next_event`] has returned `None`.
    pub(crate) fn receive_buffers(&mut self) -> [IoSliceMut<'_>; 2] {
        self.staging.copy_within(self.unparsed.clone(), 0);
        self.unparsed = 0..self.unparsed.len();
        let rest = match &mut self.body {
            Some(body) => &mut body.buffer[body.filled_bytes..],
            None => &mut [],
        };
        [IoSliceMut::new(rest), IoSliceMut::new(&mut self.staging[self.unparsed.end..])]
    }

    /// Records that `count` bytes were written to the [`FrameDecoder::receive_buffers`].
    pub(crate) fn mark_received(&mut self, count: usize) {
        let into_body = self.body.as_ref().map_or(0, |body| count.min(body.free_bytes()));
        if let Some(body) = &mut self.body {
            body.advance(into_body);
        }
        self.unparsed.end += count - into_body;
        assert!(self.unparsed.end <= self.staging.len(), "more bytes were received than the buffers hold");
    }

    /// Decodes the next complete event.
    ///
    /// # Errors
    /// The first error in the stream. Bytes after the error must not be decoded.
    pub(crate) fn next_event(&mut self, pool: &mut BufferPool) -> Result<Option<DecodeEvent>, FabricFrameError> {
        if !self.has_greeted {
            return self.decode_hello();
        }
        if self.body.is_none() {
            let Some(bytes) = self.staging[self.unparsed.clone()].first_chunk::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let header = Header::decode(bytes)?;
            self.unparsed.start += HEADER_BYTES;
            let buffer = pool.take(self.body_prealloc_bytes.min(header.body_bytes as usize));
            let crc = (!self.is_integrity_protected || header.kind != FrameKind::Data).then_some(0);
            self.body = Some(PartialBody { header, buffer, filled_bytes: 0, crc });
        }
        self.fill_body(pool)
    }

    fn decode_hello(&mut self) -> Result<Option<DecodeEvent>, FabricFrameError> {
        let Some(bytes) = self.staging[self.unparsed.clone()].first_chunk::<HELLO_BYTES>() else {
            return Ok(None);
        };
        decode_hello(bytes)?;
        self.unparsed.start += HELLO_BYTES;
        self.has_greeted = true;
        Ok(Some(DecodeEvent::Hello))
    }

    /// Moves undecoded bytes of the body to its buffer. Returns the frame once it is complete.
    fn fill_body(&mut self, pool: &mut BufferPool) -> Result<Option<DecodeEvent>, FabricFrameError> {
        let Some(body) = &mut self.body else { return Ok(None) };
        loop {
            body.grow(pool);
            let count = body.free_bytes().min(self.unparsed.len());
            let from = self.unparsed.start..self.unparsed.start + count;
            body.buffer[body.filled_bytes..body.filled_bytes + count].copy_from_slice(&self.staging[from]);
            body.advance(count);
            self.unparsed.start += count;
            if body.missing_bytes() == 0 {
                break;
            }
            if body.free_bytes() > 0 {
                return Ok(None);
            }
        }
        body.crc.map_or(Ok(()), |crc| body.header.check_body_crc(crc))?;
        Ok(self.body.take().map(|body| DecodeEvent::Frame(body.header, body.buffer)))
    }
}

#[cfg(test)]
mod tests {
    use farfork_wire::frame::encode_hello;
    use farfork_wire::frame::reply::{data_frame_bytes, seal_data, seal_data_without_checksum};
    use proptest::prelude::*;

    use super::*;

    fn stream(lengths: &[usize]) -> Vec<u8> {
        let mut stream = encode_hello().to_vec();
        for (id, length) in lengths.iter().enumerate() {
            let mut frame = vec![id as u8; data_frame_bytes(*length)];
            seal_data(&mut frame, id as u64, 9);
            stream.extend_from_slice(&frame);
        }
        stream
    }

    /// Passes a stream to a decoder in pieces. Returns the lengths of the frames' data, in order.
    fn feed(
        stream: &[u8],
        pieces: &[usize],
        staging_bytes: usize,
        believed_bytes: usize,
    ) -> Result<Vec<usize>, FabricFrameError> {
        feed_to(FrameDecoder::new(staging_bytes, believed_bytes), stream, pieces)
    }

    fn feed_to(mut decoder: FrameDecoder, stream: &[u8], pieces: &[usize]) -> Result<Vec<usize>, FabricFrameError> {
        let (mut pool, mut lengths) = (BufferPool::default(), Vec::new());
        let (mut rest, mut pieces) = (stream, pieces.iter().cycle());
        while !rest.is_empty() {
            let mut piece = *pieces.next().unwrap();
            let mut count = 0;
            for space in &mut decoder.receive_buffers() {
                let part = piece.min(space.len()).min(rest.len());
                space[..part].copy_from_slice(&rest[..part]);
                (rest, piece, count) = (&rest[part..], piece - part, count + part);
            }
            decoder.mark_received(count);
            while let Some(event) = decoder.next_event(&mut pool)? {
                if let DecodeEvent::Frame(header, body) = event {
                    assert_eq!(header.id, lengths.len() as u64);
                    assert!(body[..body.len() - 8].iter().all(|byte| *byte == header.id as u8));
                    lengths.push(body.len() - 8);
                    pool.put(body);
                }
            }
        }
        Ok(lengths)
    }

    #[test]
    fn only_an_integrity_protected_stream_needs_no_checksums() {
        let mut stream = encode_hello().to_vec();
        let mut frame = vec![0; data_frame_bytes(3000)];
        seal_data_without_checksum(&mut frame, 0, 9);
        stream.extend_from_slice(&frame);
        let (plain, mut proven) = (FrameDecoder::new(1000, 100), FrameDecoder::new(1000, 100));
        assert_eq!(feed_to(plain, &stream, &[700]), Err(FabricFrameError::BodyChecksum { id: 0 }));
        proven.set_integrity_protected();
        assert_eq!(feed_to(proven, &stream, &[700]), Ok(vec![3000]));
    }

    proptest! {
        #[test]
        fn frames_are_decoded_from_pieces_of_any_length(
            lengths in prop::collection::vec(0usize..6000, 0..12),
            pieces in prop::collection::vec(1usize..9000, 1..6),
            staging_bytes in 64usize..5000,
            believed_bytes in 0usize..7000,
        ) {
            prop_assert_eq!(feed(&stream(&lengths), &pieces, staging_bytes, believed_bytes).unwrap(), lengths);
        }

        #[test]
        fn a_damaged_frame_is_never_delivered(
            lengths in prop::collection::vec(0usize..3000, 1..6),
            pieces in prop::collection::vec(1usize..4000, 1..6),
            at: prop::sample::Index,
            bit in 0u8..8,
        ) {
            let mut stream = stream(&lengths);
            let at = at.index(stream.len());
            stream[at] ^= 1 << bit;
            // `feed` checks the frames before the damage. A length that grew is always an error.
            prop_assert!(feed(&stream, &pieces, 1000, 100).is_err());
        }
    }
}
