//! Frames that a client sends.

use std::fmt;

use super::head::{self, HeadPrefix, PAYLOAD_CRC_BYTES, PREFIX_BYTES, u32_at};
use super::{Frame, FrameHead, RpcFrameError, SESSIONS_MAX, WINDOW_MAX};

/// Size of the head of a client's frame, in bytes.
pub const REQUEST_HEAD_BYTES: usize = PREFIX_BYTES + 8;

const REQUEST: u8 = 1;
const OPEN: u8 = 2;
const CANCEL: u8 = 3;
const ACKNOWLEDGE: u8 = 4;
const CLOSE: u8 = 5;
const PING: u8 = 6;

/// The id of a session. It is random: clients need not coordinate, and cannot guess each other's ids.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// Takes random bytes from the caller: this crate has no randomness.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Shows only the first bytes: a peer that knows a session's id can take the session over.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// Slot of the session.
    pub slot: u16,
    /// Id of the handler to call.
    pub handler: u32,
    /// Id of the request in its session.
    pub id: u64,
    /// Distance from the id of the oldest unanswered request to `id`. It acknowledges the replies to all requests before the
    /// oldest unanswered one.
    pub oldest_pending_distance: u32,
    /// Time until the client gives up, in microseconds; 0 for no limit.
    pub remaining_us: u32,
    /// Whether request and reply have payload checksums.
    pub has_payload_crc: bool,
}

/// A frame from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFrame {
    /// Calls a handler.
    Request(RequestHead),
    /// Binds a session to a slot of this connection.
    Open {
        /// The slot of the session.
        slot: u16,
        /// The session.
        session: SessionId,
        /// Number of the session's connection. The number rises with each reconnection.
        epoch: u32,
        /// Whether the client resumes an existing session.
        resumed: bool,
    },
    /// Cancels a request. If its handler has not started, the handler does not run.
    Cancel {
        /// Slot of the session.
        slot: u16,
        /// Id of the request.
        id: u64,
    },
    /// Acknowledges the replies to all requests with ids below `below`.
    Acknowledge {
        /// Slot of the session.
        slot: u16,
        /// Id of the oldest unanswered request.
        below: u64,
    },
    /// Ends a session.
    Close {
        /// Slot of the session.
        slot: u16,
    },
    /// Requests a PONG.
    Ping,
}

impl RequestHead {
    /// Number of bytes before the payload.
    #[inline]
    pub fn head_bytes(&self) -> usize {
        REQUEST_HEAD_BYTES + if self.has_payload_crc { PAYLOAD_CRC_BYTES } else { 0 }
    }

    /// Writes the head to the first [`RequestHead::head_bytes`] of `frame`. The payload already follows them, or is in
    /// `apart`.
    ///
    /// # Panics
    /// If the frame is too short, the payload too long, or a payload in `apart` too short. The sender must not build such
    /// frames.
    #[inline]
    pub fn seal(&self, frame: &mut [u8], apart: Option<&[u8]>) {
        debug_assert!(
            u64::from(self.oldest_pending_distance) < WINDOW_MAX && u64::from(self.oldest_pending_distance) <= self.id
        );
        let prefix = HeadPrefix {
            has_payload_crc: self.has_payload_crc,
            ..HeadPrefix::without_payload(REQUEST, self.slot, self.handler, self.id)
        };
        prefix.write(frame);
        frame[24..28].copy_from_slice(&self.oldest_pending_distance.to_le_bytes());
        frame[28..32].copy_from_slice(&self.remaining_us.to_le_bytes());
        head::seal(frame, REQUEST_HEAD_BYTES, self.has_payload_crc, apart);
    }
}

impl ClientFrame {
    /// Appends a frame that is not a request.
    ///
    /// # Panics
    /// For a request, which `RequestHead::seal` encodes.
    pub fn append(&self, out: &mut Vec<u8>) {
        let mut frame = [0; REQUEST_HEAD_BYTES];
        let mut write = |kind, slot, id| HeadPrefix::without_payload(kind, slot, 0, id).write(&mut frame);
        match *self {
            Self::Request(_) => panic!("`RequestHead::seal` encodes requests"),
            Self::Open { slot, session, epoch, resumed } => {
                HeadPrefix { is_resumed: resumed, ..HeadPrefix::without_payload(OPEN, slot, epoch, 0) }
                    .write(&mut frame);
                frame[16..].copy_from_slice(&session.0);
            }
            Self::Cancel { slot, id } => write(CANCEL, slot, id),
            Self::Acknowledge { slot, below } => write(ACKNOWLEDGE, slot, below),
            Self::Close { slot } => write(CLOSE, slot, 0),
            Self::Ping => write(PING, 0, 0),
        }
        head::seal(&mut frame, REQUEST_HEAD_BYTES, false, None);
        out.extend_from_slice(&frame);
    }

    #[inline]
    fn from_parts(prefix: &HeadPrefix, bytes: &[u8]) -> Result<Self, RpcFrameError> {
        let slot = prefix.slot;
        Ok(match prefix.kind {
            REQUEST => {
                let (oldest_pending_distance, remaining_us) = (u32_at(bytes, 24), u32_at(bytes, 28));
                if u64::from(oldest_pending_distance) >= WINDOW_MAX || u64::from(oldest_pending_distance) > prefix.id {
                    return Err(RpcFrameError::Invalid("its oldest unanswered request is out of the window"));
                }
                let (handler, id, checked) = (prefix.code, prefix.id, prefix.has_payload_crc);
                Self::Request(RequestHead {
                    slot,
                    handler,
                    id,
                    oldest_pending_distance,
                    remaining_us,
                    has_payload_crc: checked,
                })
            }
            OPEN => {
                let session = SessionId(*bytes[16..].first_chunk().expect("a head was checked"));
                Self::Open { slot, session, epoch: prefix.code, resumed: prefix.is_resumed }
            }
            CANCEL => Self::Cancel { slot, id: prefix.id },
            ACKNOWLEDGE => Self::Acknowledge { slot, below: prefix.id },
            CLOSE => Self::Close { slot },
            PING => Self::Ping,
            other => return Err(RpcFrameError::UnexpectedKind(other)),
        })
    }
}

impl FrameHead for ClientFrame {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<Option<Frame<Self>>, RpcFrameError> {
        let Some((prefix, head_bytes, payload_crc)) = HeadPrefix::decode(bytes, REQUEST_HEAD_BYTES)? else {
            return Ok(None);
        };
        let message = Self::from_parts(&prefix, bytes)?;
        let is_request = matches!(message, Self::Request(_));
        if !is_request && (prefix.payload_bytes != 0 || prefix.has_payload_crc) {
            return Err(RpcFrameError::Invalid("only requests have payloads"));
        }
        if prefix.is_resumed && prefix.kind != OPEN {
            return Err(RpcFrameError::Invalid("only OPEN may have the flag of a resumed session"));
        }
        if usize::from(prefix.slot) >= SESSIONS_MAX {
            return Err(RpcFrameError::Invalid("its slot exceeds the limit"));
        }
        Ok(Some(Frame { head: message, head_bytes, payload_bytes: prefix.payload_bytes as usize, payload_crc }))
    }
}
