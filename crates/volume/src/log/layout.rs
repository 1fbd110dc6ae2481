//! The layout of a log file: two header slots of one page each, then the ring.
//!
//! A mount writes the slot that is not the newest, so a torn write leaves the other one valid.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::{DATA_BYTES_MAX, PAGE_BYTES};

/// Where the ring begins in the file.
pub const RING_OFFSET: u64 = 2 * PAGE_BYTES;

/// The file offset of a position in the endless log. Pages of the log are pages of the file.
pub const fn file_offset(position: u64, ring_bytes: u64) -> u64 {
    RING_OFFSET + position % ring_bytes
}
/// Smallest ring: the largest record fits several times, so that publishing and appending overlap.
pub const LOG_BYTES_MIN: u64 = 4 * DATA_BYTES_MAX as u64;
/// Largest ring: replay and the recovery of a mount take seconds at most.
pub const LOG_BYTES_MAX: u64 = 2 << 30;

const MAGIC: [u8; 8] = *b"ffvollog";
/// Raised when records or headers change their layout.
const FORMAT_VERSION: u16 = 1;

/// The header of a log file. It changes once per mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// Identifies the volume.
    pub volume: u64,
    /// Identifies the client: one mount point on one node.
    pub client: u64,
    /// Rises with each mount. A record of a lower epoch never follows one of a higher.
    pub epoch: u32,
    /// Size of the ring, a multiple of the page size.
    pub ring_bytes: u64,
}

/// Why bytes are no log header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LogHeaderError {
    /// Another kind of file, or a torn write.
    #[error("no valid header of a volume's log")]
    Invalid,
    /// A later version of the format.
    #[error("the log has format version {0}, this program reads version {FORMAT_VERSION}")]
    Version(u16),
}

//  0       8         10  12       16       24       32           40       44
//  │ magic │ version │ 0 │ epoch  │ volume │ client │ ring bytes │ crc32c │
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct LogHeaderLayout {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    epoch: U32,
    volume: U64,
    client: U64,
    ring_bytes: U64,
    checksum: U32,
}

impl LogHeader {
    /// Where in the file this header is written: odd and even epochs take turns.
    pub fn slot_offset(&self) -> u64 {
        u64::from(self.epoch % 2) * PAGE_BYTES
    }

    /// The bytes of a slot.
    pub fn encode(&self) -> Vec<u8> {
        let mut layout = LogHeaderLayout {
            magic: MAGIC,
            version: FORMAT_VERSION.into(),
            reserved: U16::ZERO,
            epoch: self.epoch.into(),
            volume: self.volume.into(),
            client: self.client.into(),
            ring_bytes: self.ring_bytes.into(),
            checksum: U32::ZERO,
        };
        layout.checksum = checksum(&layout).into();
        layout.as_bytes().to_vec()
    }

    /// Reads one slot.
    ///
    /// # Errors
    /// Whatever is no header of this version.
    pub fn decode(slot: &[u8]) -> Result<Self, LogHeaderError> {
        let (layout, _) = LogHeaderLayout::read_from_prefix(slot).map_err(|_| LogHeaderError::Invalid)?;
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
        let (volume, client, epoch) = (layout.volume.get(), layout.client.get(), layout.epoch.get());
        Ok(Self { volume, client, epoch, ring_bytes })
    }
}

/// The valid header with the highest epoch of the two slots at the beginning of a log file.
///
/// # Errors
/// As `LogHeader::decode`, when neither slot is valid.
pub fn newest_header(slots: &[u8]) -> Result<LogHeader, LogHeaderError> {
    let (first, second) = slots.split_at(slots.len().min(PAGE_BYTES as usize));
    match (LogHeader::decode(first), LogHeader::decode(second)) {
        (Ok(first), Ok(second)) => Ok(if first.epoch > second.epoch { first } else { second }),
        (Ok(header), Err(_)) | (Err(_), Ok(header)) => Ok(header),
        (Err(LogHeaderError::Invalid), Err(error)) | (Err(error), Err(_)) => Err(error),
    }
}

fn checksum(layout: &LogHeaderLayout) -> u32 {
    let bytes = layout.as_bytes();
    crc32c::crc32c(&bytes[..bytes.len() - size_of::<U32>()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(epoch: u32) -> LogHeader {
        LogHeader { volume: 5, client: 6, epoch, ring_bytes: LOG_BYTES_MIN }
    }

    fn slots(headers: &[LogHeader]) -> Vec<u8> {
        let mut file = vec![0; RING_OFFSET as usize];
        for header in headers {
            let at = header.slot_offset() as usize;
            file[at..][..header.encode().len()].copy_from_slice(&header.encode());
        }
        file
    }

    #[test]
    fn the_newest_valid_header_counts() {
        let mut file = slots(&[header(3), header(4)]);
        assert_eq!(newest_header(&file), Ok(header(4)));
        file[header(4).slot_offset() as usize + 13] ^= 1;
        assert_eq!(newest_header(&file), Ok(header(3)), "a torn header leaves the one before");
        file.fill(0);
        assert_eq!(newest_header(&file), Err(LogHeaderError::Invalid));
    }

    #[test]
    fn a_later_version_is_named() {
        let mut bytes = header(1).encode();
        bytes[8] = 2;
        let sum = crc32c::crc32c(&bytes[..bytes.len() - 4]);
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(LogHeader::decode(&bytes), Err(LogHeaderError::Version(2)));
    }
}
