//! Frames that a server sends.

use super::head::{self, HeadPrefix, PAYLOAD_CRC_BYTES, PREFIX_BYTES};
use super::{Frame, FrameHead, OpenOutcome, RpcFrameError, SESSIONS_MAX, Status};

/// Size of the head of a server's frame, in bytes, without the checksum of the payload.
pub const REPLY_HEAD_BYTES: usize = PREFIX_BYTES;

const REPLY: u8 = 16;
const OPENED: u8 = 17;
const PONG: u8 = 18;

/// The head of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    /// Slot of the session.
    pub slot: u16,
    /// Id of the answered request.
    pub id: u64,
    /// The outcome of the request.
    pub status: Status,
    /// Whether the payload has a checksum of its own.
    pub has_payload_crc: bool,
}

/// A frame from a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFrame {
    /// Completes a request.
    Reply(ReplyHead),
    /// Answers an OPEN.
    Opened {
        /// Slot in the OPEN.
        slot: u16,
        /// Epoch in the OPEN.
        epoch: u32,
        /// The outcome of the OPEN.
        outcome: OpenOutcome,
    },
    /// Answers a PING.
    Pong,
}

impl ReplyHead {
    /// Number of bytes before the payload.
    #[inline]
    pub fn head_bytes(&self) -> usize {
        Self::head_bytes_with(self.has_payload_crc)
    }

    /// Number of bytes before the payload, for a reply with or without a payload checksum.
    #[inline]
    pub fn head_bytes_with(checked: bool) -> usize {
        REPLY_HEAD_BYTES + if checked { PAYLOAD_CRC_BYTES } else { 0 }
    }

    /// Writes the head to the first [`ReplyHead::head_bytes`] of `frame`. The payload already follows them, or is in `apart`.
    ///
    /// # Panics
    /// If the frame is too short or the payload too long. Also if the payload is in `apart` and so short that the head's
    /// checksum must cover it. The sender must not build such frames.
    #[inline]
    pub fn seal(&self, frame: &mut [u8], apart: Option<&[u8]>) {
        HeadPrefix {
            has_payload_crc: self.has_payload_crc,
            ..HeadPrefix::without_payload(REPLY, self.slot, self.status as u32, self.id)
        }
        .write(frame);
        head::seal(frame, REPLY_HEAD_BYTES, self.has_payload_crc, apart);
    }
}

impl ServerFrame {
    /// Appends a frame that is not a reply.
    ///
    /// # Panics
    /// For a reply, which `ReplyHead::seal` encodes.
    pub fn append(&self, out: &mut Vec<u8>) {
        let mut frame = [0; REPLY_HEAD_BYTES];
        match *self {
            Self::Reply(_) => panic!("`ReplyHead::seal` encodes replies"),
            Self::Opened { slot, epoch, outcome } => {
                HeadPrefix::without_payload(OPENED, slot, outcome as u32, u64::from(epoch)).write(&mut frame);
            }
            Self::Pong => HeadPrefix::without_payload(PONG, 0, 0, 0).write(&mut frame),
        }
        head::seal(&mut frame, REPLY_HEAD_BYTES, false, None);
        out.extend_from_slice(&frame);
    }

    #[inline]
    fn from_prefix(prefix: &HeadPrefix) -> Result<Self, RpcFrameError> {
        let (slot, id) = (prefix.slot, prefix.id);
        Ok(match prefix.kind {
            REPLY => {
                let status = Status::from_number(prefix.code).ok_or(RpcFrameError::Invalid("an unknown status"))?;
                Self::Reply(ReplyHead { slot, id, status, has_payload_crc: prefix.has_payload_crc })
            }
            OPENED => {
                let outcome =
                    OpenOutcome::from_number(prefix.code).ok_or(RpcFrameError::Invalid("an unknown outcome"))?;
                let epoch = u32::try_from(id).map_err(|_| RpcFrameError::Invalid("an epoch above the limit"))?;
                Self::Opened { slot, epoch, outcome }
            }
            PONG => Self::Pong,
            other => return Err(RpcFrameError::UnexpectedKind(other)),
        })
    }
}

impl FrameHead for ServerFrame {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<Option<Frame<Self>>, RpcFrameError> {
        let Some((prefix, head_bytes, payload_crc)) = HeadPrefix::decode(bytes, REPLY_HEAD_BYTES)? else {
            return Ok(None);
        };
        let message = Self::from_prefix(&prefix)?;
        if !matches!(message, Self::Reply(_)) && (prefix.payload_bytes != 0 || prefix.has_payload_crc) {
            return Err(RpcFrameError::Invalid("only replies have payloads"));
        }
        if prefix.is_resumed || usize::from(prefix.slot) >= SESSIONS_MAX {
            return Err(RpcFrameError::Invalid("a server's frame has a client's flag, or a slot above the limit"));
        }
        Ok(Some(Frame { head: message, head_bytes, payload_bytes: prefix.payload_bytes as usize, payload_crc }))
    }
}
