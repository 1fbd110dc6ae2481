//! From a stream of bytes to greeting and frames.
//!
//! Bytes are received into a staging area that all connections of a thread share, and understood there, in place; what
//! is incomplete at the end of a turn is kept by its connection. A long payload that does not arrive whole gets a buffer
//! as soon as its head is verified, and the rest is received straight into it.

use std::io::IoSliceMut;
use std::ops::{Deref, Range};

use farfork_wire::rpc::{Frame, FrameError, HELLO_BYTES, Message, Versions};

/// Size of a staging area, in bytes: a socket's worth, some thousand small frames.
const STAGING_BYTES: usize = 256 << 10;

/// Shortest payload that gets a buffer of its own, in bytes: below, moving the part that came is cheaper.
const BODY_BYTES_MIN: usize = 32 << 10;

/// Longest buffer that a connection keeps for its next long payload, in bytes.
const SPARE_BYTES_MAX: usize = 1 << 20;

/// Where bytes arrive. The connections of a thread take turns with it.
#[derive(Debug)]
pub(crate) struct Staging {
    bytes: Box<[u8]>,
    /// What waits to be understood.
    waiting: Range<usize>,
}

impl Default for Staging {
    fn default() -> Self {
        Self { bytes: vec![0; STAGING_BYTES].into_boxed_slice(), waiting: 0..0 }
    }
}

/// A payload as it was received: borrowed, and to be had without a copy where it is long.
#[derive(Debug)]
pub struct Payload<'a>(Source<'a>);

#[derive(Debug)]
enum Source<'a> {
    Staged(&'a [u8]),
    Whole(&'a mut Vec<u8>),
}

impl Payload<'_> {
    /// Takes the bytes; those of a long payload are moved, not copied.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Source::Staged(bytes) => bytes.to_vec(),
            Source::Whole(bytes) => std::mem::take(bytes),
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Source::Staged(bytes))
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::Staged(bytes) => bytes,
            Source::Whole(bytes) => bytes,
        }
    }
}

/// What one side of a connection has received and not yet understood.
#[derive(Debug)]
pub(crate) struct Inbound<M> {
    /// What came of a frame that is incomplete.
    rest: Vec<u8>,
    /// The long payload that is arriving. While it is incomplete, nothing else waits.
    body: Option<Body<M>>,
    /// The last long payload, for its reader, then for the next.
    whole: Vec<u8>,
}

#[derive(Debug)]
struct Body<M> {
    frame: Frame<M>,
    bytes: Vec<u8>,
    filled: usize,
    crc: u32,
}

impl<M> Body<M> {
    fn missing(&self) -> usize {
        self.bytes.len() - self.filled
    }

    /// Counts `count` bytes behind the filled part; sums them up while they are in the cache.
    fn advance(&mut self, count: usize) {
        if self.frame.payload_crc.is_some() {
            self.crc = crc32c::crc32c_append(self.crc, &self.bytes[self.filled..self.filled + count]);
        }
        self.filled += count;
    }
}

impl<M> Default for Inbound<M> {
    fn default() -> Self {
        Self { rest: Vec::new(), body: None, whole: Vec::new() }
    }
}

impl<M: Message + Copy> Inbound<M> {
    /// Brings what this connection has kept into the staging area, which must be empty.
    pub(crate) fn load(&mut self, staging: &mut Staging) {
        debug_assert!(staging.waiting.is_empty(), "the last connection has left something");
        staging.bytes[..self.rest.len()].copy_from_slice(&self.rest);
        staging.waiting = 0..self.rest.len();
        self.rest.clear();
    }

    /// Where to put what is received next: all of the first, then the second. What was kept must have been loaded.
    pub(crate) fn spaces<'a>(&'a mut self, staging: &'a mut Staging) -> [IoSliceMut<'a>; 2] {
        let rest = match &mut self.body {
            Some(body) => &mut body.bytes[body.filled..],
            None => &mut [],
        };
        [IoSliceMut::new(rest), IoSliceMut::new(&mut staging.bytes[staging.waiting.end..])]
    }

    /// Takes note that `count` bytes were put into the [`Inbound::spaces`].
    pub(crate) fn received(&mut self, staging: &mut Staging, count: usize) {
        let mut into_body = 0;
        if let Some(body) = &mut self.body {
            into_body = count.min(body.missing());
            body.advance(into_body);
        }
        staging.waiting.end += count - into_body;
        assert!(staging.waiting.end <= staging.bytes.len(), "more was received than there was space for");
    }

    /// The peer's greeting, once it is complete. It comes before all frames.
    pub(crate) fn hello(&mut self, staging: &mut Staging) -> Result<Option<Versions>, FrameError> {
        let Some(bytes) = staging.bytes[staging.waiting.clone()].first_chunk::<HELLO_BYTES>() else {
            return Ok(None);
        };
        staging.waiting.start += HELLO_BYTES;
        Versions::decode(bytes).map(Some)
    }

    /// The next frame that is complete.
    ///
    /// # Errors
    /// What is wrong with the stream; nothing after it can be trusted.
    pub(crate) fn next<'a>(&'a mut self, staging: &'a mut Staging) -> Result<Option<(M, Payload<'a>)>, FrameError> {
        if self.body.is_some() {
            return self.next_whole();
        }
        let waiting = &staging.bytes[staging.waiting.clone()];
        let Some(frame) = M::decode(waiting)? else { return Ok(None) };
        let frame_bytes = frame.head_bytes + frame.payload_bytes;
        if let Some(payload) = waiting.get(frame.head_bytes..frame_bytes) {
            staging.waiting.start += frame_bytes;
            if let Some(crc) = frame.payload_crc {
                check(crc32c::crc32c(payload), crc)?;
            }
            return Ok(Some((frame.message, Payload(Source::Staged(payload)))));
        }
        if frame.payload_bytes >= BODY_BYTES_MIN {
            self.begin_body(frame, &waiting[frame.head_bytes..]);
            staging.waiting = 0..0;
        }
        Ok(None)
    }

    fn next_whole(&mut self) -> Result<Option<(M, Payload<'_>)>, FrameError> {
        let Some(body) = self.body.take_if(|body| body.missing() == 0) else { return Ok(None) };
        if let Some(crc) = body.frame.payload_crc {
            check(body.crc, crc)?;
        }
        self.whole = body.bytes;
        Ok(Some((body.frame.message, Payload(Source::Whole(&mut self.whole)))))
    }

    fn begin_body(&mut self, frame: Frame<M>, arrived: &[u8]) {
        let mut bytes = std::mem::take(&mut self.whole);
        if bytes.capacity() > SPARE_BYTES_MAX || bytes.capacity() < frame.payload_bytes {
            // Zeroed by the kernel, as it is filled: what a hostile head announces costs nothing yet.
            bytes = vec![0; frame.payload_bytes];
        } else {
            bytes.resize(frame.payload_bytes, 0);
        }
        let mut body = Body { frame, bytes, filled: 0, crc: 0 };
        body.bytes[..arrived.len()].copy_from_slice(arrived);
        body.advance(arrived.len());
        self.body = Some(body);
    }

    /// Whether a frame has begun and not ended.
    pub(crate) fn is_amid(&self) -> bool {
        self.body.is_some() || !self.rest.is_empty()
    }

    /// Whether a long payload has begun and not ended.
    pub(crate) fn is_amid_body(&self) -> bool {
        self.body.is_some()
    }

    /// Bytes that came and are kept.
    pub(crate) fn held_bytes(&self) -> usize {
        self.rest.len() + self.body.as_ref().map_or(0, |body| body.filled)
    }

    /// Keeps what was not understood; the staging area is empty then.
    pub(crate) fn keep(&mut self, staging: &mut Staging) {
        self.rest.extend_from_slice(&staging.bytes[staging.waiting.clone()]);
        staging.waiting = 0..0;
        if self.rest.is_empty() && self.rest.capacity() > BODY_BYTES_MIN {
            self.rest = Vec::new();
        }
        if self.body.is_none() && self.whole.capacity() > SPARE_BYTES_MAX {
            self.whole = Vec::new();
        }
    }
}

fn check(actual: u32, announced: u32) -> Result<(), FrameError> {
    if actual == announced { Ok(()) } else { Err(FrameError::PayloadChecksum) }
}
