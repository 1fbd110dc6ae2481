//! Frames that the owner of a seed sends: replies to requests and changes.

use super::{FabricFrameError, FieldReader, FrameKind, HEADER_BYTES, Header, READ_BYTES_MAX, header};
use crate::descriptor::ExtentId;

/// Size of the trailer of a DATA frame, which follows the data, in bytes.
pub const DATA_TRAILER_BYTES: usize = 8;

/// Maximum number of grants of one reply. Memory without a grant is read through the owner, which is only slower.
pub const GRANTS_MAX: usize = 32 << 10;

const GRANT_BYTES: usize = 24;
pub(super) const DATA_BYTES_MAX: usize = READ_BYTES_MAX + DATA_TRAILER_BYTES;
pub(super) const REFUSED_BYTES: usize = 8;
pub(super) const GRANTED_BYTES_MAX: usize = GRANTS_MAX * GRANT_BYTES;

/// Why the owner refuses a request. All refusals except [`Refusal::MessageQueueFull`] are final: another attempt is refused
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The owner does not have the seed, or no longer has it.
    #[error("its owner does not have it: it was dropped, its template has ended, or its node was restarted")]
    UnknownSeed,
    /// The token does not match the seed's.
    #[error("the token does not match")]
    WrongToken,
    /// The seed has no such extent, or the extent ends before the requested bytes.
    #[error("it has no such range of memory")]
    OutOfBounds,
    /// The owner has the extent but cannot read it.
    #[error("its owner cannot read this memory (errno {errno})")]
    Unreadable {
        /// The owner's errno.
        errno: i32,
    },
    /// The memory may only be read.
    #[error("it may only be read")]
    ReadOnly,
    /// The owner has the extent but cannot write it.
    #[error("its owner cannot write this memory (errno {errno})")]
    Unwritable {
        /// The owner's errno.
        errno: i32,
    },
    /// The owner accepts no messages.
    #[error("its owner accepts no messages")]
    NoReceiver,
    /// The owner's message queue is full.
    #[error("its owner's message queue is full; send it again later")]
    MessageQueueFull,
    /// The change was sent before, to an owner that does not remember it. It may or may not have been made.
    #[error("its owner does not know whether it did this before: it was restarted, or has dropped its record")]
    OutcomeForgotten,
}

/// A range that a requester on the owner's host can read directly from the template's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The extent.
    pub extent: ExtentId,
    /// First address of the range in the template.
    pub address: u64,
    /// Length of the range, in bytes.
    pub bytes: u64,
}

//  DATA     bytes of the spans, one after the other │ length of the first span's extent u64
//  REFUSED  reason u32 │ errno i32
//  GRANTED  grant …          grant: extent u32 │ 0 u32 │ address u64 │ bytes u64
//  WRITTEN, ARRIVED          nothing: the write was made, the message was accepted
//
// The extent's length follows the data, so that a receiver can remove the length without moving the data.

/// A reply, as the requester reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The bytes that a read requested.
    Data {
        /// The bytes of the spans, one after the other.
        data: &'a [u8],
        /// Length of the first span's extent, in bytes.
        extent_bytes: u64,
    },
    /// The owner refuses the request.
    Refused(Refusal),
    /// The granted ranges. If there are any, the owner passes a pidfd of the template's process with the frame.
    Granted(Vec<Grant>),
    /// The write was made.
    Written,
    /// The message was accepted.
    Arrived,
}

/// Fills in the header of a DATA frame, and the trailer after its data. `frame` is the whole frame with the data in place:
/// an owner reads memory straight into the frame that it sends.
///
/// # Panics
/// If `frame` is shorter than header and trailer, or longer than a DATA frame may be.
pub fn seal_data(frame: &mut [u8], id: u64, extent_bytes: u64) {
    let trailer = frame.len() - DATA_TRAILER_BYTES;
    frame[trailer..].copy_from_slice(&extent_bytes.to_le_bytes());
    let header = Header::for_body(FrameKind::Data, id, &frame[HEADER_BYTES..]);
    frame[..HEADER_BYTES].copy_from_slice(&header.encode());
}

/// Like [`seal_data`], but for a stream that already protects each byte: the checksum field of the body is 0.
///
/// # Panics
/// As [`seal_data`].
pub fn seal_data_without_checksum(frame: &mut [u8], id: u64, extent_bytes: u64) {
    let trailer = frame.len() - DATA_TRAILER_BYTES;
    frame[trailer..].copy_from_slice(&extent_bytes.to_le_bytes());
    let header = Header::without_checksum(FrameKind::Data, id, frame.len() - HEADER_BYTES);
    frame[..HEADER_BYTES].copy_from_slice(&header.encode());
}

/// Size of a DATA frame with `data_bytes` bytes of data, in bytes.
pub fn data_frame_bytes(data_bytes: usize) -> usize {
    HEADER_BYTES + data_bytes + DATA_TRAILER_BYTES
}

/// Appends a REFUSED frame.
pub fn append_refused(out: &mut Vec<u8>, id: u64, refusal: Refusal) {
    let (reason, errno) = match refusal {
        Refusal::UnknownSeed => (1u32, 0),
        Refusal::WrongToken => (2, 0),
        Refusal::OutOfBounds => (3, 0),
        Refusal::Unreadable { errno } => (4, errno),
        Refusal::ReadOnly => (5, 0),
        Refusal::Unwritable { errno } => (6, errno),
        Refusal::NoReceiver => (7, 0),
        Refusal::MessageQueueFull => (8, 0),
        Refusal::OutcomeForgotten => (9, 0),
    };
    header::append_frame(out, FrameKind::Refused, id, |body| {
        body.extend_from_slice(&reason.to_le_bytes());
        body.extend_from_slice(&errno.to_le_bytes());
    });
}

/// Appends a WRITTEN frame.
pub fn append_written(out: &mut Vec<u8>, id: u64) {
    header::append_frame(out, FrameKind::Written, id, |_| {});
}

/// Appends an ARRIVED frame.
pub fn append_arrived(out: &mut Vec<u8>, id: u64) {
    header::append_frame(out, FrameKind::Arrived, id, |_| {});
}

/// Appends a GRANTED frame with at most the first [`GRANTS_MAX`] grants.
pub fn append_granted(out: &mut Vec<u8>, id: u64, grants: &[Grant]) {
    header::append_frame(out, FrameKind::Granted, id, |body| {
        for grant in grants.iter().take(GRANTS_MAX) {
            body.extend_from_slice(&grant.extent.0.to_le_bytes());
            body.extend_from_slice(&[0; 4]);
            body.extend_from_slice(&grant.address.to_le_bytes());
            body.extend_from_slice(&grant.bytes.to_le_bytes());
        }
    });
}

impl<'a> Reply<'a> {
    /// Decodes the body of a reply whose checksums were verified.
    ///
    /// # Errors
    /// [`FabricFrameError::UnexpectedKind`] for a request, [`FabricFrameError::InvalidBody`] if the body is invalid.
    pub fn decode(header: &Header, body: &'a [u8]) -> Result<Self, FabricFrameError> {
        let fail = |what| FabricFrameError::InvalidBody { kind: header.kind, what };
        match header.kind {
            FrameKind::Data => {
                let (data, trailer) = body.split_last_chunk().ok_or(fail("it ends in its trailer"))?;
                Ok(Self::Data { data, extent_bytes: u64::from_le_bytes(*trailer) })
            }
            FrameKind::Refused => {
                decode_refusal(FieldReader(body)).map(Self::Refused).ok_or(fail("its reason is unknown"))
            }
            FrameKind::Granted => decode_grants(FieldReader(body)).map(Self::Granted).ok_or(fail("it ends in a grant")),
            FrameKind::Written if body.is_empty() => Ok(Self::Written),
            FrameKind::Arrived if body.is_empty() => Ok(Self::Arrived),
            FrameKind::Written | FrameKind::Arrived => Err(fail("it is too long")),
            other => Err(FabricFrameError::UnexpectedKind(other as u8)),
        }
    }
}

fn decode_refusal(mut fields: FieldReader<'_>) -> Option<Refusal> {
    let reason = fields.read_u32()?;
    let errno = fields.read_u32()?.cast_signed();
    match (reason, errno) {
        _ if !fields.0.is_empty() => None,
        (1, 0) => Some(Refusal::UnknownSeed),
        (2, 0) => Some(Refusal::WrongToken),
        (3, 0) => Some(Refusal::OutOfBounds),
        (4, errno) => Some(Refusal::Unreadable { errno }),
        (5, 0) => Some(Refusal::ReadOnly),
        (6, errno) => Some(Refusal::Unwritable { errno }),
        (7, 0) => Some(Refusal::NoReceiver),
        (8, 0) => Some(Refusal::MessageQueueFull),
        (9, 0) => Some(Refusal::OutcomeForgotten),
        _ => None,
    }
}

fn decode_grants(mut fields: FieldReader<'_>) -> Option<Vec<Grant>> {
    let mut grants = Vec::with_capacity(fields.0.len() / GRANT_BYTES);
    while !fields.0.is_empty() {
        let extent = ExtentId(fields.read_u32()?);
        if fields.read_u32()? != 0 {
            return None;
        }
        grants.push(Grant { extent, address: fields.read_u64()?, bytes: fields.read_u64()? });
    }
    Some(grants)
}
