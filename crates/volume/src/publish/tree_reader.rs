//! Reads a shared tree part by part, as change sets that copy it to an empty tree on another node. Nothing may be published
//! until the last part is read.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pwrite};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::data_changes::{DataCopy, LogData, write_fully};
use super::file_data::find_data;
use super::inodes::{UnenteredFiles, find_unentered};
use super::layout::{SharedTree, inode_path, orphan_name};
use super::load::{load_inode, load_namespace};
use crate::change::{ChangeSet, DataChange, InodeChange};
use crate::log::LogPoint;
use crate::record::{EntryKey, EntryName, InodeNumber};
use crate::view::{Inode, InodeContent};

/// Maximum number of bytes of data in one part. The slowest link of a live replica, half a Mbit/s, needs less than the time
/// limit of a call for it.
const PART_DATA_BYTES: u64 = 512 << 10;
/// Maximum number of inodes or entries of one part.
const PART_CHANGES_MAX: usize = 4096;

/// A part of a tree: changes, and the data that they copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreePart {
    /// The changes. They may refer to inodes of earlier parts. A log position is an offset in `data`.
    pub changes: ChangeSet,
    /// The data that the changes copy.
    pub data: ByteBuf,
    /// Whether this is the last part.
    pub is_last: bool,
}

impl TreePart {
    /// The data of a copy. None if the part lacks it: another node has sent the part.
    pub fn data_at(&self, log_position: u64, bytes: usize) -> Option<&[u8]> {
        self.data.get(usize::try_from(log_position).ok()?..)?.get(..bytes)
    }
}

impl LogData for &TreePart {
    fn copy(&mut self, copies: &[DataCopy<'_>]) -> Result<(), Errno> {
        copies.iter().try_for_each(|copy| {
            let data = self.data_at(copy.log_position, copy.bytes).ok_or(Errno::IO)?;
            write_fully(copy.bytes, |done| pwrite(copy.file, &data[done..], copy.offset + done as u64))
        })
    }
}

/// Reads one tree: first all inodes with their data, then all entries.
#[derive(Debug)]
pub struct TreeReader {
    shared: SharedTree,
    inodes: VecDeque<(InodeNumber, Inode)>,
    /// File offset at which the data of the first of `inodes` continues.
    data_offset: u64,
    entries: VecDeque<(EntryKey, InodeNumber)>,
    directories: VecDeque<(InodeNumber, Inode)>,
}

impl TreeReader {
    /// Reads the inodes and entries, without data.
    ///
    /// # Errors
    /// As `load_namespace`.
    pub fn new(shared: SharedTree) -> io::Result<Self> {
        let inodes = VecDeque::from(load_tree(&shared)?.inodes);
        let mut entries = VecDeque::new();
        let mut directories = VecDeque::new();
        for (number, inode) in &inodes {
            // An unlinked directory is empty.
            if let InodeContent::Directory { entries: found, .. } = &inode.content {
                let key = |name: &EntryName| EntryKey { parent: *number, name: name.clone() };
                entries.extend(found.after(0).map(|entry| (key(entry.name), entry.inode)));
                directories.push_back((*number, inode.clone()));
            }
        }
        Ok(Self { shared, inodes, data_offset: 0, entries, directories })
    }

    /// Reads the next part, which is empty after the last one.
    ///
    /// # Errors
    /// As read(2).
    pub fn next_part(&mut self) -> io::Result<TreePart> {
        let mut part = TreePart { changes: ChangeSet::new(LogPoint::START, 0), data: ByteBuf::new(), is_last: false };
        while part.changes.inodes.len() < PART_CHANGES_MAX && (part.data.len() as u64) < PART_DATA_BYTES {
            let Some((number, inode)) = self.inodes.front() else { break };
            let mut change = change_of(inode);
            let next_offset = match inode.content {
                InodeContent::File(_) => {
                    let file = self.shared.open_data(*number)?;
                    read_data(&file, self.data_offset, inode.attributes.size, &mut part.data, &mut change.data)?
                }
                _ => None,
            };
            part.changes.inodes.insert(*number, change);
            self.data_offset = next_offset.unwrap_or(0);
            if next_offset.is_some() {
                return Ok(part);
            }
            self.inodes.pop_front();
        }
        if self.inodes.is_empty() && part.changes.inodes.is_empty() {
            self.take_entries(&mut part);
        }
        Ok(part)
    }

    /// Moves entries to the part, and, after all entries, the attributes of directories: entries change the timestamps of
    /// directories.
    fn take_entries(&mut self, part: &mut TreePart) {
        let count = self.entries.len().min(PART_CHANGES_MAX);
        part.changes.entries.extend(self.entries.drain(..count).map(|(key, inode)| (key, Some(inode))));
        if self.entries.is_empty() {
            let count = self.directories.len().min(PART_CHANGES_MAX);
            let directories = self.directories.drain(..count);
            part.changes.inodes.extend(directories.map(|(number, inode)| (number, change_of(&inode))));
        }
        part.is_last = self.entries.is_empty() && self.directories.is_empty();
    }
}

/// All inodes of a tree.
pub(super) struct LoadedTree {
    /// Inodes with their entries or targets.
    pub(super) inodes: Vec<(InodeNumber, Inode)>,
    /// Paths in `inodes` and `orphans` of files that do not belong to the volume.
    pub(super) foreign: Vec<String>,
}

/// Reads all inodes, including those that no entry leads to.
pub(super) fn load_tree(shared: &SharedTree) -> io::Result<LoadedTree> {
    let namespace = load_namespace(shared, 0, InodeNumber::ROOT.0)?;
    let mut inodes = Vec::with_capacity(namespace.inode_count());
    let UnenteredFiles { unlinked, mut foreign } = find_unentered(shared).map_err(io::Error::other)?;
    for number in unlinked {
        match load_unlinked(shared, number)? {
            Ok(inode) => inodes.push((number, inode)),
            Err(path) => foreign.push(path),
        }
    }
    inodes.extend(namespace.into_inodes());
    Ok(LoadedTree { inodes, foreign })
}

/// Reads an unlinked inode. Returns the path instead if the file has the name of an inode, but is no inode of the volume.
fn load_unlinked(shared: &SharedTree, number: InodeNumber) -> io::Result<Result<Inode, String>> {
    let load = |directory: &OwnedFd, folder: &str, name: String| match load_inode(directory, name.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Err(format!("{folder}/{name}"))),
        loaded => loaded.map(|(_, inode)| Ok(inode)),
    };
    match load(&shared.inodes, "inodes", inode_path(number)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => load(&shared.orphans, "orphans", orphan_name(number)),
        loaded => loaded,
    }
}

/// A change that creates an inode without its data and entries.
fn change_of(inode: &Inode) -> InodeChange {
    let symlink_target = match &inode.content {
        InodeContent::Symlink(target) => Some(ByteBuf::from(target.clone())),
        _ => None,
    };
    let xattrs = inode.xattrs.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
    InodeChange { attributes: Some(inode.attributes.clone()), symlink_target, xattrs, ..InodeChange::default() }
}

/// Appends data from an offset on, without holes. Returns the offset where the data continues, if the part is full.
fn read_data(
    file: &File,
    mut offset: u64,
    size: u64,
    data: &mut ByteBuf,
    changes: &mut Vec<DataChange>,
) -> io::Result<Option<u64>> {
    while offset < size {
        let Some(begin) = find_data(file, offset)? else { return Ok(None) };
        let end = seek(file, SeekFrom::Hole(begin))?.min(size);
        let room = PART_DATA_BYTES.saturating_sub(data.len() as u64);
        let bytes = end.saturating_sub(begin).min(room);
        if bytes == 0 {
            return Ok((begin < size).then_some(begin));
        }
        let log_position = data.len() as u64;
        let end_of_part = data.len() + bytes as usize;
        data.resize(end_of_part, 0);
        file.read_exact_at(&mut data[log_position as usize..], begin)?;
        changes.push(DataChange::Copy { offset: begin, bytes: bytes as u32, log_position });
        offset = begin + bytes;
    }
    Ok(None)
}
