//! The prefix that all frame heads share, and the checksum that covers a small frame in one pass.

use super::{HEAD_CRC_PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX, RpcFrameError};

//  0         4      5       6      8           12            16             24             28
//  ┌─────────┬──────┬───────┬──────┬───────────┬─────────────┬──────────────┬──────────────┬──────────────┐
//  │ CRC-32C │ kind │ flags │ slot │ payload   │ handler     │ request id   │ distance     │ remaining µs │ REQUEST
//  │ u32     │ u8   │ u8    │ u16  │ bytes u32 │ u32         │ u64          │ u32          │ u32, 0: none │
//  │         │      │       │      │ 0         │ epoch u32   │ session id, 16 bytes                       │ OPEN
//  │         │      │       │      │ 0         │ 0           │ request id   │ 0            │ 0            │ CANCEL
//  │         │      │       │      │ 0         │ 0           │ request id   │ 0            │ 0            │ ACKNOWLEDGE
//  │         │      │       │ 0    │ 0         │ 0           │ 0            │ 0            │ 0            │ CLOSE, PING
//  ├─────────┼──────┼───────┼──────┼───────────┼─────────────┼──────────────┼──────────────┴──────────────┘
//  │         │      │       │      │ u32       │ status u32  │ request id   │ REPLY
//  │         │      │       │      │ 0         │ outcome u32 │ epoch as u64 │ OPENED
//  │         │      │       │ 0    │ 0         │ 0           │ 0            │ PONG
//  └─────────┴──────┴───────┴──────┴───────────┴─────────────┴──────────────┘
//
// Every frame begins with the same 24 bytes, so that either side can find the next frame. A client's head has
// eight bytes more. All numbers are little-endian. The distance of a request is
// `RequestHead::oldest_pending_distance`.
//
// In checked frames (flag 1), the payload's own CRC-32C (u32) follows the head, then the payload. The head's checksum is the
// first field. It covers the rest of the head and the payload's checksum. It also covers a payload of at most
// `HEAD_CRC_PAYLOAD_BYTES_MAX` bytes, so that a small frame needs one pass. A longer payload is covered by its own checksum,
// if the client requested one. So no length is trusted before its checksum was verified.

/// Size of the part that all heads share, in bytes.
pub(super) const PREFIX_BYTES: usize = 24;

/// Size of a payload's own checksum, in bytes.
pub const PAYLOAD_CRC_BYTES: usize = 4;

/// Offset of the first byte that the head's checksum covers.
const HEAD_CRC_START: usize = 4;

const FLAG_CHECKED: u8 = 1;
const FLAG_RESUMED: u8 = 2;

/// The heads of the frames of one direction of a connection.
pub trait FrameHead: Sized {
    /// Decodes the frame at the front of `bytes`. `None` if `bytes` is too short to decide.
    ///
    /// # Errors
    /// The first check that failed.
    fn decode(bytes: &[u8]) -> Result<Option<Frame<Self>>, RpcFrameError>;
}

/// A frame, as described by its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<M> {
    /// The decoded head.
    pub head: M,
    /// Offset of the payload from the frame's first byte.
    pub head_bytes: usize,
    /// Length of its payload, in bytes.
    pub payload_bytes: usize,
    /// The payload's own checksum, if it has one.
    pub payload_crc: Option<u32>,
}

/// The part that all heads share.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadPrefix {
    pub(super) kind: u8,
    pub(super) has_payload_crc: bool,
    pub(super) is_resumed: bool,
    pub(super) slot: u16,
    pub(super) payload_bytes: u32,
    pub(super) code: u32,
    pub(super) id: u64,
}

/// Result of [`HeadPrefix::decode`]: the prefix, the length of the head with the payload's checksum, and that checksum.
pub(super) type DecodedPrefix = (HeadPrefix, usize, Option<u32>);

impl HeadPrefix {
    /// The prefix of a frame without payload.
    #[inline]
    pub(super) fn without_payload(kind: u8, slot: u16, code: u32, id: u64) -> Self {
        Self { kind, has_payload_crc: false, is_resumed: false, slot, payload_bytes: 0, code, id }
    }

    /// Writes the prefix to the front of `frame`. `seal` adds the checksum.
    #[inline]
    pub(super) fn write(&self, frame: &mut [u8]) {
        frame[4] = self.kind;
        frame[5] = u8::from(self.has_payload_crc) * FLAG_CHECKED + u8::from(self.is_resumed) * FLAG_RESUMED;
        frame[6..8].copy_from_slice(&self.slot.to_le_bytes());
        frame[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        frame[12..16].copy_from_slice(&self.code.to_le_bytes());
        frame[16..24].copy_from_slice(&self.id.to_le_bytes());
    }

    /// Decodes and verifies the front of `bytes`, whose head has `head_bytes`.
    #[inline]
    pub(super) fn decode(bytes: &[u8], head_bytes: usize) -> Result<Option<DecodedPrefix>, RpcFrameError> {
        let Some(head) = bytes.get(..head_bytes) else { return Ok(None) };
        let prefix = Self::read(head)?;
        let payload_at = head_bytes + if prefix.has_payload_crc { PAYLOAD_CRC_BYTES } else { 0 };
        let Some(covered) = bytes.get(HEAD_CRC_START..head_crc_end(payload_at, prefix.payload_bytes as usize)) else {
            return Ok(None);
        };
        if u32_at(bytes, 0) != crc32c::crc32c(covered) {
            return Err(RpcFrameError::HeadChecksum);
        }
        let payload_crc = prefix.has_payload_crc.then(|| u32_at(bytes, head_bytes));
        Ok(Some((prefix, payload_at, payload_crc)))
    }

    #[inline]
    fn read(head: &[u8]) -> Result<Self, RpcFrameError> {
        let flags = head[5];
        if flags & !(FLAG_CHECKED | FLAG_RESUMED) != 0 {
            return Err(RpcFrameError::Invalid("unknown flags"));
        }
        let payload_bytes = u32_at(head, 8);
        if payload_bytes as usize > PAYLOAD_BYTES_MAX {
            return Err(RpcFrameError::TooLong { bytes: payload_bytes });
        }
        Ok(Self {
            kind: head[4],
            has_payload_crc: flags & FLAG_CHECKED != 0,
            is_resumed: flags & FLAG_RESUMED != 0,
            slot: u16::from_le_bytes([head[6], head[7]]),
            payload_bytes,
            code: u32_at(head, 12),
            id: u64_at(head, 16),
        })
    }
}

/// Fills in the payload's length and the checksums of a frame whose head is otherwise complete. `frame` is the head, then
/// room for the payload's checksum if the frame is checked. The payload follows, or is in `apart`.
///
/// # Panics
/// If the frame is too short or the payload too long. Also if the payload is in `apart` and so short that the head's
/// checksum must cover it.
#[inline]
pub(super) fn seal(frame: &mut [u8], head_bytes: usize, checked: bool, apart: Option<&[u8]>) {
    let payload_at = head_bytes + if checked { PAYLOAD_CRC_BYTES } else { 0 };
    let payload_bytes = apart.map_or(frame.len() - payload_at, <[u8]>::len);
    assert!(
        apart.is_none() || payload_bytes > HEAD_CRC_PAYLOAD_BYTES_MAX,
        "a short payload must be in `frame`, because the head's checksum covers it"
    );
    assert!(payload_bytes <= PAYLOAD_BYTES_MAX, "the payload has {payload_bytes} bytes, {PAYLOAD_BYTES_MAX} at most");
    if checked {
        let checksum = crc32c::crc32c(apart.unwrap_or(&frame[payload_at..]));
        frame[head_bytes..payload_at].copy_from_slice(&checksum.to_le_bytes());
    }
    frame[8..12].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    let checksum = crc32c::crc32c(&frame[HEAD_CRC_START..head_crc_end(payload_at, payload_bytes)]);
    frame[..HEAD_CRC_START].copy_from_slice(&checksum.to_le_bytes());
}

/// Offset after the last byte that the head's checksum covers.
#[inline]
fn head_crc_end(payload_at: usize, payload_bytes: usize) -> usize {
    if payload_bytes <= HEAD_CRC_PAYLOAD_BYTES_MAX { payload_at + payload_bytes } else { payload_at }
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("the caller has checked the length"))
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the caller has checked the length"))
}
