//! The header of a frame: its kind, its length, and the checksums of header and body.

use super::{FabricFrameError, FieldReader, change, reply, request};

//  0      1         4             8              16            20            24
//  ┌──────┬─────────┬─────────────┬──────────────┬─────────────┬─────────────┬────────┐
//  │ kind │ 0 0 0   │ body bytes  │ request id   │ CRC-32C     │ CRC-32C     │ body   │
//  │ u8   │         │ u32         │ u64          │ of the body │ of 0..20    │        │
//  └──────┴─────────┴─────────────┴──────────────┴─────────────┴─────────────┴────────┘
//
// The header has its own checksum, so that a length is never trusted before it is checked. It also holds the
// body's checksum, so that no flipped bit of either is missed. All numbers are little-endian.
//
// An encrypted stream protects each byte already: there the body of DATA has no checksum, and its field is 0.

/// Size of a header, in bytes.
pub const HEADER_BYTES: usize = 24;

const CRC_COVERED_BYTES: usize = HEADER_BYTES - 4;

/// The kind of a frame. Requests have small numbers; replies start at 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Binds a handle to a seed.
    Open = 1,
    /// Requests bytes.
    Read = 2,
    /// Requests the ranges that a requester on the same host can read directly.
    AskGrants = 3,
    /// Gives the id of the connection whose changes follow.
    Introduce = 4,
    /// Writes bytes to the owner's memory.
    Write = 5,
    /// Delivers a message to the owner.
    Message = 6,
    /// The bytes of a read.
    Data = 16,
    /// The owner refuses a request.
    Refused = 17,
    /// The ranges that a requester on the same host can read directly.
    Granted = 18,
    /// A write was made.
    Written = 19,
    /// A message was accepted.
    Arrived = 20,
}

const FRAME_KINDS: [FrameKind; 11] = [
    FrameKind::Open,
    FrameKind::Read,
    FrameKind::AskGrants,
    FrameKind::Introduce,
    FrameKind::Write,
    FrameKind::Message,
    FrameKind::Data,
    FrameKind::Refused,
    FrameKind::Granted,
    FrameKind::Written,
    FrameKind::Arrived,
];

impl FrameKind {
    fn from_number(number: u8) -> Option<Self> {
        FRAME_KINDS.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Whether owners receive this kind of frame. Requesters receive the other kinds.
    pub fn is_request(self) -> bool {
        (self as u8) < Self::Data as u8
    }

    /// Whether it is a kind of [`change`].
    pub fn is_change(self) -> bool {
        matches!(self, Self::Introduce | Self::Write | Self::Message)
    }

    /// Longest body, in bytes.
    pub fn body_bytes_max(self) -> usize {
        match self {
            Self::Open => request::OPEN_BYTES_MAX,
            Self::Read => request::READ_REQUEST_BYTES_MAX,
            Self::AskGrants => request::ASK_GRANTS_BYTES,
            Self::Introduce => change::INTRODUCE_BYTES,
            Self::Write => change::WRITE_REQUEST_BYTES_MAX,
            Self::Message => change::MESSAGE_BYTES_MAX,
            Self::Data => reply::DATA_BYTES_MAX,
            Self::Refused => reply::REFUSED_BYTES,
            Self::Granted => reply::GRANTED_BYTES_MAX,
            Self::Written | Self::Arrived => 0,
        }
    }
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// Length of the body, in bytes.
    pub body_bytes: u32,
    /// Id of the request that the frame makes or answers; 0 for a request without a reply.
    pub id: u64,
    /// CRC-32C of the body.
    pub body_crc: u32,
}

impl Header {
    /// Builds the header for a body.
    ///
    /// # Panics
    /// If the body is longer than its kind permits. The sender must not build such frames.
    pub fn for_body(kind: FrameKind, id: u64, body: &[u8]) -> Self {
        Self { body_crc: crc32c::crc32c(body), ..Self::without_checksum(kind, id, body.len()) }
    }

    /// Builds the header for a body of this length that has no checksum.
    ///
    /// # Panics
    /// As [`Header::for_body`].
    pub(super) fn without_checksum(kind: FrameKind, id: u64, body_bytes: usize) -> Self {
        assert!(
            body_bytes <= kind.body_bytes_max(),
            "the body of a {kind:?} frame has {body_bytes} bytes, more than the limit"
        );
        Self { kind, body_bytes: body_bytes as u32, id, body_crc: 0 }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.body_crc.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..CRC_COVERED_BYTES]);
        bytes[CRC_COVERED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes bytes that may be damaged or hostile. The length in the result is within the limit of its kind.
    ///
    /// # Errors
    /// [`FabricFrameError::HeaderChecksum`], [`FabricFrameError::UnexpectedKind`] or [`FabricFrameError::TooLong`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FabricFrameError> {
        let mut fields = FieldReader(bytes);
        let word = |field: Option<u32>| field.expect("a header holds its fields");
        let first = word(fields.read_u32());
        let body_bytes = word(fields.read_u32());
        let id = fields.read_u64().expect("a header holds its fields");
        let body_crc = word(fields.read_u32());
        if word(fields.read_u32()) != crc32c::crc32c(&bytes[..CRC_COVERED_BYTES]) {
            return Err(FabricFrameError::HeaderChecksum);
        }
        let number = u8::try_from(first).map_err(|_| FabricFrameError::UnexpectedKind(first as u8))?;
        let kind = FrameKind::from_number(number).ok_or(FabricFrameError::UnexpectedKind(number))?;
        if body_bytes as usize > kind.body_bytes_max() {
            return Err(FabricFrameError::TooLong { kind, bytes: body_bytes });
        }
        Ok(Self { kind, body_bytes, id, body_crc })
    }

    /// Checks a body against the checksum in the header.
    ///
    /// # Errors
    /// [`FabricFrameError::BodyChecksum`].
    pub fn check_body(&self, body: &[u8]) -> Result<(), FabricFrameError> {
        self.check_body_crc(crc32c::crc32c(body))
    }

    /// Like [`Header::check_body`], but takes the checksum that the receiver computed while the body arrived.
    ///
    /// # Errors
    /// [`FabricFrameError::BodyChecksum`].
    pub fn check_body_crc(&self, crc: u32) -> Result<(), FabricFrameError> {
        if crc == self.body_crc { Ok(()) } else { Err(FabricFrameError::BodyChecksum { id: self.id }) }
    }
}

/// Appends a frame: leaves room for the header, lets `write` append the body, then fills the header in.
pub(super) fn append_frame(out: &mut Vec<u8>, kind: FrameKind, id: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    write(out);
    let header = Header::for_body(kind, id, &out[start + HEADER_BYTES..]);
    out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
}
