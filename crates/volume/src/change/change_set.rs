//! Folds effects into a change set: the last state of attributes, entries and extended attributes, and the changes of data
//! in order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::overwritten::remove_overwritten;
use crate::log::LogPoint;
use crate::record::{EntryKey, InodeAttributes, InodeNumber, RecordEffect, XattrName};
use crate::replay::ReplayedRecord;

/// A change of a file's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataChange {
    /// Copies bytes of the log to the file.
    Copy {
        /// File offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u32,
        /// Position of the first byte in the endless log.
        log_position: u64,
    },
    /// As `RecordEffect::PunchHole`.
    PunchHole {
        /// File offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// As `RecordEffect::AllocateSpace`.
    AllocateSpace {
        /// File offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// As `RecordEffect::SetSize`.
    SetSize {
        /// The size.
        bytes: u64,
    },
}

impl DataChange {
    /// Number of bytes that the change copies from the log.
    fn copied_bytes(&self) -> u64 {
        match self {
            Self::Copy { bytes, .. } => u64::from(*bytes),
            Self::PunchHole { .. } | Self::AllocateSpace { .. } | Self::SetSize { .. } => 0,
        }
    }
}

/// The final state of one inode, as far as it was touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeChange {
    /// The attributes; none if they were not touched.
    pub attributes: Option<InodeAttributes>,
    /// Target of a new symbolic link.
    pub symlink_target: Option<ByteBuf>,
    /// Touched extended attributes; a value of none means removed.
    pub xattrs: BTreeMap<XattrName, Option<ByteBuf>>,
    /// Changes of the data, in order.
    pub data: Vec<DataChange>,
    /// The inode is dropped. The other fields then have no meaning.
    pub is_dropped: bool,
}

/// The final state after a run of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeSet {
    /// Point of the first record.
    pub begin: LogPoint,
    /// Point after the last record.
    pub end: LogPoint,
    /// Epoch of the last record.
    pub epoch: u32,
    /// Each inode that was touched.
    pub inodes: BTreeMap<InodeNumber, InodeChange>,
    /// Each directory entry that was touched, by directory and name.
    pub entries: BTreeMap<EntryKey, Option<InodeNumber>>,
    record_count: usize,
    data_bytes: u64,
    coalesced_bytes: u64,
    is_coalesced: bool,
}

impl ChangeSet {
    /// Creates a change set without changes. `epoch` is the epoch of the record before `begin`.
    pub fn new(begin: LogPoint, epoch: u32) -> Self {
        Self {
            begin,
            end: begin,
            epoch,
            inodes: BTreeMap::new(),
            entries: BTreeMap::new(),
            record_count: 0,
            data_bytes: 0,
            coalesced_bytes: 0,
            is_coalesced: false,
        }
    }

    /// Number of folded records.
    pub fn record_count(&self) -> usize {
        self.record_count
    }

    /// Bytes of data in all folded records.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Adds the next record.
    pub fn fold(&mut self, record: ReplayedRecord) {
        assert_eq!(record.point, self.end, "records are folded in order");
        for effect in record.effects {
            self.fold_effect(effect, record.data_position);
        }
        self.end = record.end;
        self.epoch = record.epoch;
        self.record_count += 1;
        self.is_coalesced = false;
    }

    /// Bytes of data that are not copied, because later records overwrite them or drop their file.
    pub fn coalesced_bytes(&self) -> u64 {
        self.coalesced_bytes
    }

    /// Drops data that later records of the set overwrite, punch or cut off. Then no two copies to a file overlap.
    pub fn coalesce(&mut self) {
        let removed = self.inodes.values_mut().map(|change| remove_overwritten(&mut change.data));
        self.coalesced_bytes += removed.sum::<u64>();
        self.is_coalesced = true;
    }

    /// Whether no two copies to a file overlap, so that copies may be executed in any order.
    pub fn is_coalesced(&self) -> bool {
        self.is_coalesced
    }

    fn fold_effect(&mut self, effect: RecordEffect, log_position: u64) {
        match effect {
            RecordEffect::SetAttributes { inode, attributes } => self.change_of(inode).attributes = Some(attributes),
            RecordEffect::SetSymlinkTarget { inode, target } => {
                self.change_of(inode).symlink_target = Some(ByteBuf::from(target))
            }
            RecordEffect::SetEntry { parent, name, inode } => _ = self.entries.insert(EntryKey { parent, name }, inode),
            RecordEffect::WriteData { inode, offset, bytes } => {
                self.change_of(inode).data.push(DataChange::Copy { offset, bytes, log_position });
                self.data_bytes += u64::from(bytes);
            }
            RecordEffect::PunchHole { inode, offset, bytes } => {
                self.change_of(inode).data.push(DataChange::PunchHole { offset, bytes });
            }
            RecordEffect::AllocateSpace { inode, offset, bytes } => {
                self.change_of(inode).data.push(DataChange::AllocateSpace { offset, bytes });
            }
            RecordEffect::SetSize { inode, bytes } => self.change_of(inode).data.push(DataChange::SetSize { bytes }),
            RecordEffect::SetXattr { inode, name, value } => _ = self.change_of(inode).xattrs.insert(name, value),
            RecordEffect::DropInode { inode } => {
                let change = self.change_of(inode);
                let dropped = std::mem::replace(change, InodeChange { is_dropped: true, ..Default::default() });
                self.coalesced_bytes += dropped.data.iter().map(DataChange::copied_bytes).sum::<u64>();
            }
        }
    }

    fn change_of(&mut self, inode: InodeNumber) -> &mut InodeChange {
        self.inodes.entry(inode).or_default()
    }
}
