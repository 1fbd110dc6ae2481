//! All inodes of a volume, and the application of effects to them.

use std::collections::{HashMap, VecDeque};

use rustix::io::Errno;

use super::directory::DirectoryEntries;
use super::inode::{Inode, InodeContent};
use crate::log::AppendedRecord;
use crate::record::{EntryKey, EntryName, FILE_BYTES_MAX, InodeNumber, RecordEffect};

/// Maximum number of inodes of a path: PATH_MAX is 4096, and each name takes at least one byte and a slash.
const PATH_INODES_MAX: usize = 4096 / 2;

/// An inode that was read from the shared tree.
pub type LoadedInode = Inode;

/// The namespace of a volume.
#[derive(Debug)]
pub struct VolumeNamespace {
    pub(super) inodes: HashMap<InodeNumber, Inode>,
    /// Removed inodes that the kernel still knows: programs of this node may have them open.
    pub(super) gone: HashMap<InodeNumber, Inode>,
    /// Entries by which the kernel may still know a directory, although another client has changed them.
    pub(super) former_entries: HashMap<InodeNumber, Vec<EntryKey>>,
    /// The number of this client, which selects its range of inode numbers.
    client: u16,
    pub(super) next_inode: u64,
    /// Files with unpublished data, with the sequence number of the change.
    unpublished: VecDeque<(u64, InodeNumber)>,
}

impl VolumeNamespace {
    /// Creates a namespace with a root and no entries. The client has used inode numbers up to `inode_max`.
    pub fn new(root: LoadedInode, client: u16, inode_max: u64) -> Self {
        let inodes = HashMap::from([(InodeNumber::ROOT, LoadedInode { entry_count: 1, ..root })]);
        let next_inode = inode_max.max(InodeNumber::before_first_of(client).0) + 1;
        let (gone, former_entries, unpublished) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Self { inodes, gone, former_entries, client, next_inode, unpublished }
    }

    /// Adds an entry of the shared tree, and its inode unless an earlier entry has added it. A directory is added before its
    /// entries.
    pub fn load(&mut self, parent: InodeNumber, name: EntryName, number: InodeNumber, inode: LoadedInode) {
        self.note_number(number);
        self.inodes.entry(number).or_insert(inode);
        self.set_entry(parent, name, Some(number));
    }

    /// Returns an inode.
    ///
    /// # Errors
    /// ESTALE if no inode has this number: another client has removed it.
    pub fn inode(&self, number: InodeNumber) -> Result<&Inode, Errno> {
        self.inodes.get(&number).ok_or(Errno::STALE)
    }

    /// Returns an inode for reading. Includes inodes that another client has removed and that a program of this node may
    /// have open.
    ///
    /// # Errors
    /// ESTALE if the inode is removed and the kernel has forgotten it.
    pub fn readable_inode(&self, number: InodeNumber) -> Result<&Inode, Errno> {
        self.inode(number).or_else(|error| self.gone.get(&number).ok_or(error))
    }

    /// Whether this client has created an inode in the record `sequence` or a later one.
    pub fn is_created_since(&self, number: InodeNumber, sequence: u64) -> bool {
        let created_by = self.inodes.get(&number).and_then(|inode| inode.created_by);
        created_by.is_some_and(|created_by| created_by >= sequence)
    }

    /// All inodes.
    pub fn into_inodes(self) -> impl Iterator<Item = (InodeNumber, Inode)> {
        self.inodes.into_iter()
    }

    /// Number of inodes.
    pub fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    /// Marks a number as used.
    fn note_number(&mut self, number: InodeNumber) {
        if number.belongs_to(self.client) {
            self.next_inode = self.next_inode.max(number.0 + 1);
        }
    }

    /// The number that the next inode will have.
    pub(super) fn next_inode(&self) -> InodeNumber {
        InodeNumber(self.next_inode)
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE.
    pub fn entries(&self, directory: InodeNumber) -> Result<&DirectoryEntries, Errno> {
        match &self.inode(directory)?.content {
            InodeContent::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Looks up a name in a directory.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE, ENOENT.
    pub fn lookup(&self, directory: InodeNumber, name: &EntryName) -> Result<InodeNumber, Errno> {
        self.entries(directory)?.get(name).ok_or(Errno::NOENT)
    }

    /// Adds a reference of the kernel to an inode.
    pub fn count_lookup(&mut self, number: InodeNumber) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.lookups += 1;
        }
    }

    /// Removes references of the kernel to an inode. Returns whether the kernel has forgotten the inode.
    pub fn forget(&mut self, number: InodeNumber, count: u64) -> bool {
        let inode = self.inodes.get_mut(&number).or_else(|| self.gone.get_mut(&number));
        let Some(inode) = inode else { return true };
        inode.lookups = inode.lookups.saturating_sub(count);
        if inode.lookups > 0 || number == InodeNumber::ROOT {
            return false;
        }
        inode.has_foreign_permissions = false;
        self.gone.remove(&number);
        self.former_entries.remove(&number);
        true
    }

    /// Applies the effects of a record that is in the log.
    pub fn apply(&mut self, effects: &[RecordEffect], record: AppendedRecord) {
        for effect in effects {
            self.apply_effect(effect, record);
        }
    }

    /// Forgets the log positions of data before the record `sequence`: the data is in the shared tree.
    pub fn release_published(&mut self, sequence: u64) {
        let mut last_released = None;
        while let Some((changed_by, number)) = self.unpublished.front().copied()
            && changed_by < sequence
        {
            self.unpublished.pop_front();
            if last_released.replace(number) == Some(number) {
                continue;
            }
            if let Some(Inode { content: InodeContent::File(extents), .. }) = self.inodes.get_mut(&number) {
                extents.release(sequence - 1);
            }
        }
    }

    fn apply_effect(&mut self, effect: &RecordEffect, record: AppendedRecord) {
        let sequence = record.sequence;
        match effect {
            RecordEffect::SetAttributes { inode, attributes } => {
                self.note_number(*inode);
                let new = || Inode { created_by: Some(sequence), ..Inode::new(attributes.clone()) };
                self.inodes.entry(*inode).or_insert_with(new).attributes = attributes.clone();
            }
            RecordEffect::SetSymlinkTarget { inode, target } => {
                if let Some(Inode { content: InodeContent::Symlink(content), .. }) = self.inodes.get_mut(inode) {
                    content.clone_from(target);
                }
            }
            RecordEffect::SetEntry { parent, name, inode } => _ = self.set_entry(*parent, name.clone(), *inode),
            RecordEffect::WriteData { inode, offset, bytes } => {
                let range = *offset..offset + u64::from(*bytes);
                self.change_data(*inode, sequence, |extents| {
                    extents.insert_data(range, record.data_position, sequence);
                });
            }
            RecordEffect::PunchHole { inode, offset, bytes } => {
                let range = *offset..offset + bytes;
                self.change_data(*inode, sequence, |extents| extents.insert_hole(range, sequence));
            }
            RecordEffect::AllocateSpace { inode, bytes, .. } => {
                self.change_data(*inode, sequence, |extents| extents.note_allocation(*bytes, sequence));
            }
            RecordEffect::SetSize { inode, bytes } => {
                let range = *bytes..FILE_BYTES_MAX;
                self.change_data(*inode, sequence, |extents| extents.insert_hole(range, sequence));
            }
            RecordEffect::SetXattr { inode, name, value } => {
                let Some(state) = self.inodes.get_mut(inode) else { return };
                match value {
                    Some(value) => state.xattrs.insert(name.clone(), value.clone()),
                    None => state.xattrs.remove(name),
                };
            }
            RecordEffect::DropInode { inode } => _ = self.inodes.remove(inode),
        }
    }

    fn change_data(
        &mut self,
        number: InodeNumber,
        sequence: u64,
        change: impl FnOnce(&mut super::extent_map::ExtentMap),
    ) {
        if let Some(Inode { content: InodeContent::File(extents), .. }) = self.inodes.get_mut(&number) {
            change(extents);
            self.unpublished.push_back((sequence, number));
        }
    }

    /// Returns an inode and all directories above it, up to the root. For a file with several entries, includes the
    /// directories above each entry.
    pub fn path_of(&self, inode: InodeNumber) -> Vec<InodeNumber> {
        let mut path = Vec::new();
        let mut pending = vec![inode];
        while let Some(current) = pending.pop().filter(|_| path.len() < PATH_INODES_MAX) {
            // Several entries may have common directories above them. The parents may also form a circle, because a
            // directory that has lost its last entry keeps its parent.
            if path.contains(&current) {
                continue;
            }
            path.push(current);
            if current != InodeNumber::ROOT
                && let Ok(inode) = self.inode(current)
            {
                pending.extend(inode.other_parents.iter().copied().chain([inode.parent]));
            }
        }
        path
    }

    /// Sets the inode that an entry leads to, and returns the previous one.
    pub(super) fn set_entry(
        &mut self,
        parent: InodeNumber,
        name: EntryName,
        target: Option<InodeNumber>,
    ) -> Option<InodeNumber> {
        let Some(Inode { content: InodeContent::Directory { entries, .. }, .. }) = self.inodes.get_mut(&parent) else {
            return None;
        };
        let previous = match target {
            Some(target) => entries.set(name, target),
            None => entries.remove(&name),
        };
        if previous == target {
            return previous;
        }
        if let Some(previous) = previous {
            self.count_entry(parent, previous, false);
        }
        if let Some(target) = target {
            self.count_entry(parent, target, true);
        }
        previous
    }

    /// Adds an entry of `parent` that leads to `number` to the counts (`is_added`), or removes it from them.
    fn count_entry(&mut self, parent: InodeNumber, number: InodeNumber, is_added: bool) {
        let Some(inode) = self.inodes.get_mut(&number) else { return };
        let add = |count: u32| if is_added { count + 1 } else { count - 1 };
        if is_added {
            inode.add_entry(parent);
        } else {
            inode.remove_entry(parent);
        }
        if !inode.is_directory() {
            return;
        }
        if let Some(Inode { content: InodeContent::Directory { subdirectories, .. }, .. }) =
            self.inodes.get_mut(&parent)
        {
            *subdirectories = add(*subdirectories);
        }
    }
}
