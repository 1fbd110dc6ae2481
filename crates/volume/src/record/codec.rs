//! The bytes of a record. `log` places records in the ring, `replay` validates them.
//!
//! A record is a header, a body (its effects, in postcard), and the data of a write, if any.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::effect::{DATA_BYTES_MAX, EFFECTS_MAX};
use super::{EffectError, RecordEffect};

/// Page size: data of this size and alignment can be moved between files without a copy.
pub const PAGE_BYTES: u64 = 4096;
/// Records begin at multiples of this, so that the rest of a ring always has room for one header.
pub const RECORD_ALIGNMENT: u64 = 32;
/// Size of a header.
pub const HEADER_BYTES: u64 = 32;
/// Data of at least this many bytes begins at a page boundary of the log.
pub const DATA_ALIGNED_MIN: u32 = 4096;
/// Maximum number of bytes of a body: `EFFECTS_MAX` effects with long names, or one with a long extended attribute.
const BODY_BYTES_MAX: u32 = 64 << 10;

//  0        4        8            12           15     16         24         32
//  │ crc32c │ epoch  │ body bytes │ data bytes │ kind │ sequence │ position │ body     │ padding │ data
//
// Little-endian. The checksum covers everything after itself, without the padding. `position` is the record's place in
// the endless log, of which the ring holds a window: a record of an earlier lap has another position. `epoch` is the
// term in which the client wrote the record. Records of an earlier term may remain after the last valid record. Their
// epoch is lower than its epoch, so replay ends there. Data of 4 KiB and more starts at a page.

/// The purpose of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Effects of one operation.
    Effects,
    /// Nothing: fills the end of the ring.
    Filler,
}

impl RecordKind {
    fn number(self) -> u8 {
        match self {
            Self::Effects => 1,
            Self::Filler => 2,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Effects),
            2 => Some(Self::Filler),
            _ => None,
        }
    }
}

/// A header's fields, checked against the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind of the record.
    pub kind: RecordKind,
    /// The term in which the client wrote the record.
    pub epoch: u32,
    /// The sizes of body and data.
    pub shape: RecordShape,
    /// Sequence number: 1 for the first record of a log, one more for each later one.
    pub sequence: u64,
    /// Position of the record in the endless log.
    pub position: u64,
}

/// Sizes of the parts of a record. With the position of the record, they give the position of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordShape {
    /// Size of the encoded effects. In a filler: the number of bytes that it fills after its header.
    pub body_bytes: u32,
    /// Size of the data.
    pub data_bytes: u32,
}

impl RecordShape {
    /// Position of the data of a record at `position`.
    pub fn data_position(self, position: u64) -> u64 {
        let body_end = position + HEADER_BYTES + u64::from(self.body_bytes);
        let alignment = if self.data_bytes >= DATA_ALIGNED_MIN { PAGE_BYTES } else { 1 };
        body_end.next_multiple_of(alignment)
    }

    /// Position of the record after one at `position`.
    pub fn end(self, position: u64) -> u64 {
        (self.data_position(position) + u64::from(self.data_bytes)).next_multiple_of(RECORD_ALIGNMENT)
    }
}

/// Why bytes are not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The kind or a length is invalid.
    #[error("the header is out of bounds")]
    HeaderBounds,
    /// The checksum differs.
    #[error("the checksum differs")]
    Checksum,
    /// The body does not decode.
    #[error("the effects do not decode")]
    BodyFormat,
    /// An effect is out of bounds.
    #[error("an effect is invalid")]
    RecordEffect(#[from] EffectError),
    /// The data length differs from the length of the write, or there are several writes.
    #[error("the data does not match exactly one write")]
    DataLength,
}

/// The header as it is in the log.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct HeaderLayout {
    checksum: U32,
    epoch: U32,
    body_bytes: U32,
    data_bytes: [u8; 3],
    kind: u8,
    sequence: U64,
    position: U64,
}

/// The decoded body of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordBody {
    /// The effects, in order.
    pub effects: Vec<RecordEffect>,
}

impl RecordHeader {
    /// Reads a header and checks its bounds. The checksum needs body and data: see `RecordChecksum`.
    ///
    /// # Errors
    /// `HeaderBounds`.
    pub fn parse(bytes: &[u8; HEADER_BYTES as usize]) -> Result<Self, RecordError> {
        let layout = HeaderLayout::read_from_bytes(bytes).map_err(|_| RecordError::HeaderBounds)?;
        let kind = RecordKind::from_number(layout.kind).ok_or(RecordError::HeaderBounds)?;
        let [low, middle, high] = layout.data_bytes;
        let data_bytes = u32::from_le_bytes([low, middle, high, 0]);
        let shape = RecordShape { body_bytes: layout.body_bytes.get(), data_bytes };
        let is_within = match kind {
            RecordKind::Effects => shape.body_bytes <= BODY_BYTES_MAX && shape.data_bytes <= DATA_BYTES_MAX,
            RecordKind::Filler => shape.data_bytes == 0,
        };
        let position = layout.position.get();
        if !is_within || !position.is_multiple_of(RECORD_ALIGNMENT) || position > u64::MAX / 2 {
            return Err(RecordError::HeaderBounds);
        }
        Ok(Self { kind, epoch: layout.epoch.get(), shape, sequence: layout.sequence.get(), position })
    }

    fn layout(&self) -> HeaderLayout {
        let [low, middle, high, excess] = self.shape.data_bytes.to_le_bytes();
        debug_assert_eq!(excess, 0, "data has 16 MiB at most");
        HeaderLayout {
            checksum: U32::ZERO,
            epoch: self.epoch.into(),
            body_bytes: self.shape.body_bytes.into(),
            data_bytes: [low, middle, high],
            kind: self.kind.number(),
            sequence: self.sequence.into(),
            position: self.position.into(),
        }
    }
}

/// Encodes a header with the checksum. The checksum of a filler covers only its header.
pub fn seal_header(header: &RecordHeader, body: &[u8], data: &[u8]) -> [u8; HEADER_BYTES as usize] {
    let mut layout = header.layout();
    layout.checksum = checksum(layout.as_bytes(), body, data).into();
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes.copy_from_slice(layout.as_bytes());
    bytes
}

/// Computes the checksum of a record that is read back. The data may be added in pieces.
#[derive(Debug, Clone, Copy)]
pub struct RecordChecksum(u32);

impl RecordChecksum {
    /// Starts the checksum with header and body.
    pub fn new(header: &[u8; HEADER_BYTES as usize], body: &[u8]) -> Self {
        Self(checksum(header, body, &[]))
    }

    /// Adds the next bytes of the data.
    pub fn append(&mut self, data: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, data);
    }

    /// Checks the bytes of the record against the checksum in its header.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn verify(self, header: &[u8; HEADER_BYTES as usize]) -> Result<(), RecordError> {
        let stored = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        if stored == self.0 { Ok(()) } else { Err(RecordError::Checksum) }
    }
}

/// Encodes effects that the caller has validated.
pub fn encode_body(effects: &[RecordEffect]) -> Vec<u8> {
    let body = postcard::to_stdvec(effects).expect("vectors and integers always encode");
    debug_assert!(body.len() <= BODY_BYTES_MAX as usize, "effects fit into a body");
    body
}

/// Decodes and validates effects.
///
/// # Errors
/// The body does not decode, an effect is invalid, or the data length does not match.
pub fn decode_body(body: &[u8], data_bytes: u32) -> Result<RecordBody, RecordError> {
    let decoded: RecordBody = postcard::from_bytes(body).map_err(|_| RecordError::BodyFormat)?;
    if decoded.effects.len() > EFFECTS_MAX {
        return Err(RecordError::BodyFormat);
    }
    let mut written = None;
    for effect in &decoded.effects {
        effect.validate()?;
        if let RecordEffect::WriteData { bytes, .. } = effect
            && written.replace(*bytes).is_some()
        {
            return Err(RecordError::DataLength);
        }
    }
    if written.unwrap_or(0) == data_bytes { Ok(decoded) } else { Err(RecordError::DataLength) }
}

fn checksum(header: &[u8], body: &[u8], data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&header[4..]), body), data)
}

#[cfg(test)]
mod tests {
    use super::super::InodeNumber;
    use super::*;

    fn header(body: &[u8], data: &[u8]) -> RecordHeader {
        let shape = RecordShape { body_bytes: body.len() as u32, data_bytes: data.len() as u32 };
        RecordHeader { kind: RecordKind::Effects, epoch: 3, shape, sequence: 7, position: 96 }
    }

    #[test]
    fn a_sealed_header_parses_and_any_flipped_bit_is_found() {
        let (body, data) = (b"body".to_vec(), b"data".to_vec());
        let sealed = seal_header(&header(&body, &data), &body, &data);
        assert_eq!(RecordHeader::parse(&sealed), Ok(header(&body, &data)));
        let verify = |header: &[u8; HEADER_BYTES as usize], body: &[u8], data: &[u8]| {
            let mut checksum = RecordChecksum::new(header, body);
            data.chunks(3).for_each(|piece| checksum.append(piece));
            checksum.verify(header)
        };
        assert_eq!(verify(&sealed, &body, &data), Ok(()));
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(verify(&flipped, &body, &data), Err(RecordError::Checksum), "bit {bit}");
        }
    }

    #[test]
    fn large_data_begins_at_a_page_and_small_data_is_packed() {
        let shape = RecordShape { body_bytes: 10, data_bytes: 4096 };
        assert_eq!((shape.data_position(64), shape.end(64)), (4096, 8192));
        let shape = RecordShape { body_bytes: 10, data_bytes: 5 };
        assert_eq!((shape.data_position(64), shape.end(64)), (106, 128));
    }

    #[test]
    fn data_belongs_to_exactly_one_write() {
        let write = RecordEffect::WriteData { inode: InodeNumber(2), offset: 0, bytes: 4 };
        let decode =
            |effects: &[RecordEffect], bytes| decode_body(&encode_body(effects), bytes).map(|body| body.effects);
        assert_eq!(decode(std::slice::from_ref(&write), 4), Ok(vec![write.clone()]));
        assert_eq!(decode(std::slice::from_ref(&write), 5), Err(RecordError::DataLength));
        assert_eq!(decode(&[], 5), Err(RecordError::DataLength));
        assert_eq!(decode(&[write.clone(), write], 4), Err(RecordError::DataLength));
    }
}
