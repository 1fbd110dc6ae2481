//! Effects: the final states that one operation leaves. An effect describes a result, not a step, so that applying it twice
//! is the same as applying it once.

use serde::{Deserialize, Serialize};

use super::{EntryName, FileKind, InodeAttributes, InodeNumber};

/// Largest file: half of the 16 TiB that ext4 allows, so that every file system for a shared tree supports it.
pub const FILE_BYTES_MAX: u64 = 1 << 43;
/// Maximum number of bytes of a symbolic link's target: PATH_MAX without the final NUL.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Maximum number of bytes of all extended attributes of an inode: names and values fit into one block of ext4.
pub const XATTR_BYTES_MAX: usize = 3072;
/// Maximum number of bytes of data in one record: twice the largest write of FUSE.
pub const DATA_BYTES_MAX: u32 = 2 << 20;
/// Maximum number of effects of one record. A rename has at most 6; `VolumeClient::drop_unused_inodes` fills records.
pub const EFFECTS_MAX: usize = 64;

/// Name of an extended attribute, with its namespace: `user.note`.
pub type XattrName = serde_bytes::ByteBuf;

/// One final state. The effects of one record are applied together, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordEffect {
    /// The inode exists and has these attributes.
    SetAttributes {
        /// The inode.
        inode: InodeNumber,
        /// All attributes.
        attributes: InodeAttributes,
    },
    /// The symbolic link has this target. Follows `SetAttributes` of a new link.
    SetSymlinkTarget {
        /// The symbolic link.
        inode: InodeNumber,
        /// The target.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// The entry of a directory leads to an inode, or does not exist.
    SetEntry {
        /// The directory.
        parent: InodeNumber,
        /// The entry.
        name: EntryName,
        /// The inode that the entry leads to; none if the entry is removed.
        inode: Option<InodeNumber>,
    },
    /// The record's data is in the file from `offset` on. At most one per record.
    WriteData {
        /// The file.
        inode: InodeNumber,
        /// File offset of the first byte.
        offset: u64,
        /// Number of bytes: all data of the record.
        bytes: u32,
    },
    /// The range reads as zeroes, and takes no space if the file system supports holes.
    PunchHole {
        /// The file.
        inode: InodeNumber,
        /// File offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The range has allocated space, and keeps its data.
    AllocateSpace {
        /// The file.
        inode: InodeNumber,
        /// File offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The file has this size: bytes after it are removed, added bytes are zeroes.
    SetSize {
        /// The file.
        inode: InodeNumber,
        /// Its size.
        bytes: u64,
    },
    /// An extended attribute has a value, or does not exist.
    SetXattr {
        /// The inode.
        inode: InodeNumber,
        /// The name of the attribute.
        name: XattrName,
        /// The value; none if the attribute is removed.
        value: Option<serde_bytes::ByteBuf>,
    },
    /// The inode is removed: no entry leads to it, and no process has it open.
    DropInode {
        /// The inode.
        inode: InodeNumber,
    },
}

/// Why an effect is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EffectError {
    /// A range ends after the largest file.
    #[error("a range ends after the largest file")]
    RangeEnd,
    /// The attributes are out of bounds.
    #[error("attributes are out of bounds")]
    AttributeBounds,
    /// A target, a name or a value is too long or empty.
    #[error("a length is out of bounds")]
    LengthBounds,
    /// The inode number is 0, or the root is dropped.
    #[error("an inode number is out of bounds")]
    InodeBounds,
}

impl RecordEffect {
    /// The inode that the effect changes; for an entry, its directory.
    pub fn inode(&self) -> InodeNumber {
        match self {
            Self::SetAttributes { inode, .. }
            | Self::SetSymlinkTarget { inode, .. }
            | Self::WriteData { inode, .. }
            | Self::PunchHole { inode, .. }
            | Self::AllocateSpace { inode, .. }
            | Self::SetSize { inode, .. }
            | Self::SetXattr { inode, .. }
            | Self::DropInode { inode } => *inode,
            Self::SetEntry { parent, .. } => *parent,
        }
    }

    /// Checks every bound that does not depend on the state of the volume.
    ///
    /// # Errors
    /// The first violated bound.
    pub fn validate(&self) -> Result<(), EffectError> {
        if self.inode().0 == 0 {
            return Err(EffectError::InodeBounds);
        }
        match self {
            Self::SetAttributes { attributes, .. } => validate_attributes(attributes),
            Self::SetSymlinkTarget { target, .. } => validate_length(target.len(), SYMLINK_BYTES_MAX),
            Self::SetEntry { inode, .. } if inode.is_some_and(|inode| inode.0 <= InodeNumber::ROOT.0) => {
                Err(EffectError::InodeBounds)
            }
            Self::SetEntry { .. } => Ok(()),
            Self::WriteData { offset, bytes, .. } => validate_range(*offset, u64::from(*bytes)),
            Self::PunchHole { offset, bytes, .. } | Self::AllocateSpace { offset, bytes, .. } => {
                validate_range(*offset, *bytes)
            }
            Self::SetSize { bytes, .. } => validate_range(0, *bytes),
            Self::SetXattr { name, value, .. } => {
                validate_length(name.len(), XATTR_BYTES_MAX)?;
                let has_room = value.as_ref().is_none_or(|value| value.len() <= XATTR_BYTES_MAX);
                if has_room { Ok(()) } else { Err(EffectError::LengthBounds) }
            }
            Self::DropInode { inode } if *inode == InodeNumber::ROOT => Err(EffectError::InodeBounds),
            Self::DropInode { .. } => Ok(()),
        }
    }
}

fn validate_attributes(attributes: &InodeAttributes) -> Result<(), EffectError> {
    let times = [attributes.accessed, attributes.modified, attributes.changed];
    let has_size = attributes.size == 0 || attributes.kind == FileKind::Regular;
    let is_valid = attributes.mode <= 0o7777
        && attributes.size <= FILE_BYTES_MAX
        && has_size
        && times.iter().all(|time| time.is_valid());
    if is_valid { Ok(()) } else { Err(EffectError::AttributeBounds) }
}

fn validate_range(offset: u64, bytes: u64) -> Result<(), EffectError> {
    let end = offset.checked_add(bytes);
    if end.is_some_and(|end| end <= FILE_BYTES_MAX) { Ok(()) } else { Err(EffectError::RangeEnd) }
}

fn validate_length(length: usize, length_max: usize) -> Result<(), EffectError> {
    if (1..=length_max).contains(&length) { Ok(()) } else { Err(EffectError::LengthBounds) }
}
