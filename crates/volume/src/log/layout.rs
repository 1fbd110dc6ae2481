//! The layout of a log file: a page with the header, then the ring.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::{DATA_BYTES_MAX, PAGE_BYTES};

/// Limits of a ring. In the smallest one, the largest record fits several times, so that publishing and appending overlap. The
/// largest one bounds the time of a replay, which reads the unpublished part of the ring.
pub use farfork_cluster::catalog::{LOG_BYTES_MAX, LOG_BYTES_MIN};
const _: () = assert!(LOG_BYTES_MIN == 4 * DATA_BYTES_MAX as u64);

/// File offset of the ring.
pub const RING_OFFSET: u64 = PAGE_BYTES;

/// The file offset of a position in the endless log. Pages of the log are pages of the file.
pub const fn file_offset(position: u64, ring_bytes: u64) -> u64 {
    RING_OFFSET + position % ring_bytes
}

const MAGIC: [u8; 8] = *b"ffvollog";
/// Incremented when the layout of records or headers changes.
const FORMAT_VERSION: u16 = 2;

/// The header of a log file. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// Identifies the volume.
    pub volume: u64,
    /// The number of the client in the volume.
    pub client: u16,
    /// Size of the ring, a multiple of the page size.
    pub ring_bytes: u64,
}

/// Why bytes are not a valid log header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LogHeaderError {
    /// Another kind of file, or a torn write.
    #[error("no valid header of a volume's log")]
    Invalid,
    /// Another version of the format.
    #[error("the log has format version {0}, this program reads version {FORMAT_VERSION}")]
    Version(u16),
}

//  0       8         10       12  16       24           32       36
//  │ magic │ version │ client │ 0 │ volume │ ring bytes │ crc32c │
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct LogHeaderLayout {
    magic: [u8; 8],
    version: U16,
    client: U16,
    reserved: U32,
    volume: U64,
    ring_bytes: U64,
    checksum: U32,
}

/// Size of an encoded header.
pub(super) const HEADER_BYTES: usize = size_of::<LogHeaderLayout>();

impl LogHeader {
    /// The bytes at the beginning of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut layout = LogHeaderLayout {
            magic: MAGIC,
            version: FORMAT_VERSION.into(),
            client: self.client.into(),
            reserved: U32::ZERO,
            volume: self.volume.into(),
            ring_bytes: self.ring_bytes.into(),
            checksum: U32::ZERO,
        };
        layout.checksum = checksum(&layout).into();
        layout.as_bytes().to_vec()
    }

    /// Reads the beginning of a file.
    ///
    /// # Errors
    /// If the bytes are not a valid header of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogHeaderError> {
        let (layout, _) = LogHeaderLayout::read_from_prefix(bytes).map_err(|_| LogHeaderError::Invalid)?;
        if layout.magic != MAGIC || layout.checksum.get() != checksum(&layout) {
            return Err(LogHeaderError::Invalid);
        }
        if layout.version.get() != FORMAT_VERSION {
            return Err(LogHeaderError::Version(layout.version.get()));
        }
        let ring_bytes = layout.ring_bytes.get();
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&ring_bytes) || !ring_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(LogHeaderError::Invalid);
        }
        Ok(Self { volume: layout.volume.get(), client: layout.client.get(), ring_bytes })
    }
}

fn checksum(layout: &LogHeaderLayout) -> u32 {
    let bytes = layout.as_bytes();
    crc32c::crc32c(&bytes[..bytes.len() - size_of::<U32>()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: LogHeader = LogHeader { volume: 5, client: 6, ring_bytes: LOG_BYTES_MIN };

    #[test]
    fn a_header_is_read_back_and_any_flipped_bit_is_found() {
        let bytes = HEADER.encode();
        assert_eq!(LogHeader::decode(&bytes), Ok(HEADER));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LogHeader::decode(&flipped), Err(LogHeaderError::Invalid), "bit {bit}");
        }
    }

    #[test]
    fn a_log_header_of_a_later_version_is_named() {
        let mut bytes = HEADER.encode();
        bytes[8] = 3;
        let sum = crc32c::crc32c(&bytes[..bytes.len() - 4]);
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(LogHeader::decode(&bytes), Err(LogHeaderError::Version(3)));
    }
}
