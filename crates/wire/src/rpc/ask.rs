//! What a client sends.

use std::fmt;

use super::head::{self, PAYLOAD_CRC_BYTES, PREFIX_BYTES, Prefix, u32_at};
use super::{Frame, FrameError, Message, SESSIONS_MAX, WINDOW_MAX};

/// Size of the head of a client's frame, in bytes.
pub const REQUEST_HEAD_BYTES: usize = PREFIX_BYTES + 8;

const REQUEST: u8 = 1;
const OPEN: u8 = 2;
const CANCEL: u8 = 3;
const ACKNOWLEDGE: u8 = 4;
const CLOSE: u8 = 5;
const PING: u8 = 6;

/// The name of a session: random, so that clients need not agree, nor can guess each other's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// Takes random bytes from the caller, who has the randomness.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Shows the first bytes only: who knows a session's id can take it over.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// The session.
    pub slot: u16,
    /// What is to be called.
    pub handler: u32,
    /// Of the request, in its session.
    pub id: u64,
    /// How far behind `id` the oldest unanswered request is; all before that one are acknowledged.
    pub behind: u32,
    /// Time until the client gives up, in microseconds; 0: it does not.
    pub remaining_us: u32,
    /// Whether both payloads have checksums of their own.
    pub checked: bool,
}

/// A client's frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Calls a handler.
    Request(RequestHead),
    /// Binds a session to a slot of this connection.
    Open {
        /// The session's short name.
        slot: u16,
        /// The session.
        session: SessionId,
        /// Counts the connections that the session has been on.
        epoch: u32,
        /// Whether the server should know it.
        resumed: bool,
    },
    /// Takes a request back; what has not begun does not begin.
    Cancel {
        /// The session.
        slot: u16,
        /// The request.
        id: u64,
    },
    /// All requests before this one are answered.
    Acknowledge {
        /// The session.
        slot: u16,
        /// The oldest unanswered request.
        below: u64,
    },
    /// Ends a session.
    Close {
        /// The session.
        slot: u16,
    },
    /// Asks for a sign of life.
    Ping,
}

impl RequestHead {
    /// Bytes before the payload.
    #[inline]
    pub fn bytes(&self) -> usize {
        REQUEST_HEAD_BYTES + if self.checked { PAYLOAD_CRC_BYTES } else { 0 }
    }

    /// Writes it to the front of `frame`, which holds [`RequestHead::bytes`] and the payload, unless that lies `apart`.
    ///
    /// # Panics
    /// When the frame is too short or the payload too long: the sender must not build such frames.
    #[inline]
    pub fn seal(&self, frame: &mut [u8], apart: Option<&[u8]>) {
        debug_assert!(u64::from(self.behind) < WINDOW_MAX && u64::from(self.behind) <= self.id);
        let prefix = Prefix { checked: self.checked, ..Prefix::bare(REQUEST, self.slot, self.handler, self.id) };
        prefix.write(frame);
        frame[24..28].copy_from_slice(&self.behind.to_le_bytes());
        frame[28..32].copy_from_slice(&self.remaining_us.to_le_bytes());
        head::seal(frame, REQUEST_HEAD_BYTES, self.checked, apart);
    }
}

impl Ask {
    /// Appends a frame that is no request.
    ///
    /// # Panics
    /// For a request, which is sealed around its payload.
    pub fn append(&self, out: &mut Vec<u8>) {
        let mut frame = [0; REQUEST_HEAD_BYTES];
        let mut write = |kind, slot, id| Prefix::bare(kind, slot, 0, id).write(&mut frame);
        match *self {
            Self::Request(_) => panic!("requests are sealed around their payload"),
            Self::Open { slot, session, epoch, resumed } => {
                Prefix { resumed, ..Prefix::bare(OPEN, slot, epoch, 0) }.write(&mut frame);
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
    fn from_parts(prefix: &Prefix, bytes: &[u8]) -> Result<Self, FrameError> {
        let slot = prefix.slot;
        Ok(match prefix.kind {
            REQUEST => {
                let (behind, remaining_us) = (u32_at(bytes, 24), u32_at(bytes, 28));
                if u64::from(behind) >= WINDOW_MAX || u64::from(behind) > prefix.id {
                    return Err(FrameError::Sense("its oldest unanswered request is out of the window"));
                }
                let (handler, id, checked) = (prefix.code, prefix.id, prefix.checked);
                Self::Request(RequestHead { slot, handler, id, behind, remaining_us, checked })
            }
            OPEN => {
                let session = SessionId(*bytes[16..].first_chunk().expect("a head was checked"));
                Self::Open { slot, session, epoch: prefix.code, resumed: prefix.resumed }
            }
            CANCEL => Self::Cancel { slot, id: prefix.id },
            ACKNOWLEDGE => Self::Acknowledge { slot, below: prefix.id },
            CLOSE => Self::Close { slot },
            PING => Self::Ping,
            other => return Err(FrameError::Kind(other)),
        })
    }
}

impl Message for Ask {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<Option<Frame<Self>>, FrameError> {
        let Some((prefix, head_bytes, payload_crc)) = Prefix::decode(bytes, REQUEST_HEAD_BYTES)? else {
            return Ok(None);
        };
        let message = Self::from_parts(&prefix, bytes)?;
        let is_request = matches!(message, Self::Request(_));
        if !is_request && (prefix.payload_bytes != 0 || prefix.checked) {
            return Err(FrameError::Sense("only requests have payloads"));
        }
        if prefix.resumed && prefix.kind != OPEN {
            return Err(FrameError::Sense("only sessions are resumed"));
        }
        if usize::from(prefix.slot) >= SESSIONS_MAX {
            return Err(FrameError::Sense("its slot is beyond all sessions"));
        }
        Ok(Some(Frame { message, head_bytes, payload_bytes: prefix.payload_bytes as usize, payload_crc }))
    }
}
