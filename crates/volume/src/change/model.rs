//! A model of a volume for tests: effects are applied one by one to plain maps and byte vectors.

use std::collections::BTreeMap;

use serde_bytes::ByteBuf;

use super::{ChangeSet, DataChange};
use crate::record::{EntryKey, EntryName, FileKind, InodeAttributes, InodeNumber, RecordEffect, XattrName};

/// An inode of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelInode {
    pub(crate) attributes: Option<InodeAttributes>,
    pub(crate) target: Vec<u8>,
    pub(crate) xattrs: BTreeMap<XattrName, ByteBuf>,
    pub(crate) data: Vec<u8>,
}

/// All inodes and all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelVolume {
    pub(crate) inodes: BTreeMap<InodeNumber, ModelInode>,
    pub(crate) entries: BTreeMap<(InodeNumber, EntryName), InodeNumber>,
}

impl ModelVolume {
    /// Applies one effect. `data` is the data of its record.
    pub(crate) fn apply(&mut self, effect: &RecordEffect, data: &[u8]) {
        match effect {
            RecordEffect::SetAttributes { inode, attributes } => {
                let entry = self.inode(*inode);
                if attributes.kind == FileKind::Regular {
                    entry.data.resize(attributes.size as usize, 0);
                }
                entry.attributes = Some(attributes.clone());
            }
            RecordEffect::SetSymlinkTarget { inode, target } => self.inode(*inode).target = target.clone(),
            RecordEffect::SetEntry { parent, name, inode: Some(inode) } => {
                self.entries.insert((*parent, name.clone()), *inode);
            }
            RecordEffect::SetEntry { parent, name, inode: None } => {
                self.entries.remove(&(*parent, name.clone()));
            }
            RecordEffect::WriteData { inode, offset, .. } => overwrite(&mut self.inode(*inode).data, *offset, data),
            RecordEffect::PunchHole { inode, offset, bytes } => clear(&mut self.inode(*inode).data, *offset, *bytes),
            RecordEffect::AllocateSpace { .. } => {}
            RecordEffect::SetSize { inode, bytes } => self.inode(*inode).data.resize(*bytes as usize, 0),
            RecordEffect::SetXattr { inode, name, value } => set_xattr(self.inode(*inode), name, value.as_ref()),
            RecordEffect::DropInode { inode } => {
                self.inodes.remove(inode);
            }
        }
    }

    /// Applies a change set, with the data from `load`.
    pub(crate) fn apply_change_set(&mut self, changes: &ChangeSet, load: impl Fn(u64, usize) -> Vec<u8>) {
        for (number, change) in &changes.inodes {
            if change.is_dropped {
                self.inodes.remove(number);
                continue;
            }
            let inode = self.inode(*number);
            for data_change in &change.data {
                match *data_change {
                    DataChange::Copy { offset, bytes, log_position } => {
                        overwrite(&mut inode.data, offset, &load(log_position, bytes as usize));
                    }
                    DataChange::PunchHole { offset, bytes } => clear(&mut inode.data, offset, bytes),
                    DataChange::AllocateSpace { .. } => {}
                    DataChange::SetSize { bytes } => inode.data.resize(bytes as usize, 0),
                }
            }
            for (name, value) in &change.xattrs {
                set_xattr(inode, name, value.as_ref());
            }
            if let Some(target) = &change.symlink_target {
                inode.target = target.to_vec();
            }
            if let Some(attributes) = &change.attributes {
                if attributes.kind == FileKind::Regular {
                    inode.data.resize(attributes.size as usize, 0);
                }
                inode.attributes = Some(attributes.clone());
            }
        }
        for (EntryKey { parent, name }, inode) in &changes.entries {
            let key = (*parent, name.clone());
            match inode {
                Some(inode) => self.entries.insert(key, *inode),
                None => self.entries.remove(&key),
            };
        }
    }

    fn inode(&mut self, inode: InodeNumber) -> &mut ModelInode {
        self.inodes.entry(inode).or_default()
    }
}

fn overwrite(file: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    file.resize(file.len().max(end), 0);
    file[offset as usize..end].copy_from_slice(data);
}

fn clear(file: &mut [u8], offset: u64, bytes: u64) {
    let begin = (offset as usize).min(file.len());
    let end = ((offset + bytes) as usize).min(file.len());
    file[begin..end].fill(0);
}

fn set_xattr(inode: &mut ModelInode, name: &XattrName, value: Option<&ByteBuf>) {
    match value {
        Some(value) => inode.xattrs.insert(name.clone(), value.clone()),
        None => inode.xattrs.remove(name),
    };
}
