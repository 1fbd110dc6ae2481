//! Number and change time of an inode of the volume. They are in an extended attribute, because a file of the shared tree
//! has its own number and change time.

use crate::record::{InodeNumber, Timestamp};

/// The name of the attribute. Only processes with CAP_SYS_ADMIN see it.
pub(super) const XATTR_NAME: &[u8] = b"trusted.farfork.inode";
/// Number (8), seconds (8), nanoseconds (4), little-endian.
const ENCODED_BYTES: usize = 20;

/// Number and change time of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InodeRecord {
    pub(super) inode: InodeNumber,
    pub(super) changed: Timestamp,
}

impl InodeRecord {
    pub(super) fn encode(self) -> [u8; ENCODED_BYTES] {
        let mut bytes = [0; ENCODED_BYTES];
        bytes[..8].copy_from_slice(&self.inode.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.changed.seconds.to_le_bytes());
        bytes[16..].copy_from_slice(&self.changed.nanoseconds.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (seconds, rest) = rest.split_first_chunk()?;
        let nanoseconds = u32::from_le_bytes(rest.try_into().ok()?);
        let changed = Timestamp { seconds: i64::from_le_bytes(*seconds), nanoseconds };
        let inode = InodeNumber(u64::from_le_bytes(*number));
        (inode.0 > 0 && changed.is_valid()).then_some(Self { inode, changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_decodes_as_it_was_encoded() {
        let changed = Timestamp { seconds: -5, nanoseconds: 7 };
        let record = InodeRecord { inode: InodeNumber(9), changed };
        assert_eq!(InodeRecord::decode(&record.encode()), Some(record));
        assert_eq!(InodeRecord::decode(&record.encode()[..19]), None);
        assert_eq!(InodeRecord::decode(&[0; ENCODED_BYTES]), None);
    }
}
