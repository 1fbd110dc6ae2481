//! Applies published changes of another client to the view. Their data is in the shared tree.

use std::collections::{BTreeMap, BTreeSet};

use crate::change::{ChangeSet, InodeChange};
use crate::record::{EntryKey, InodeAttributes, InodeNumber};
use crate::view::{Inode, InodeContent, VolumeNamespace};

/// Changed objects of a namespace that the kernel may have cached.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CachedObjects {
    /// Inodes.
    pub inodes: BTreeSet<InodeNumber>,
    /// Changed entries, with the inodes that they led to. New entries are left out: the kernel does not cache that a name
    /// does not exist.
    pub entries: BTreeMap<EntryKey, InodeNumber>,
    /// Inodes in `inodes` whose owner or mode has changed.
    pub permissions: BTreeSet<InodeNumber>,
    /// Inodes in `inodes` whose size has changed.
    pub sizes: BTreeSet<InodeNumber>,
}

impl CachedObjects {
    fn note_attributes(&mut self, number: InodeNumber, previous: &InodeAttributes, present: &InodeAttributes) {
        if (previous.mode, previous.user, previous.group) != (present.mode, present.user, present.group) {
            self.permissions.insert(number);
        }
        if previous.size != present.size {
            self.sizes.insert(number);
        }
    }
}

impl VolumeNamespace {
    /// Applies a change set of another client. Returns the changed objects that the kernel may have cached.
    ///
    /// Another client has written, so all records of this client are published on each live replica. The message that says so
    /// is sent by another thread, and may arrive later. Until then, reads would find data of this client in place of the
    /// later data in the shared tree.
    pub fn apply_published(&mut self, changes: &ChangeSet) -> CachedObjects {
        self.release_published(u64::MAX);
        let mut cached = CachedObjects::default();
        let mut unlinked = BTreeSet::new();
        for (number, change) in changes.inodes.iter().filter(|(_, change)| !change.is_dropped) {
            match (self.inodes.get(number), &change.attributes) {
                (None, _) => _ = unlinked.insert(*number),
                (Some(inode), Some(attributes)) => cached.note_attributes(*number, &inode.attributes, attributes),
                _ => {}
            }
            self.apply_change(*number, change);
        }
        // All inodes exist now. While an inode moves, its entry count may be one too high, but never too low.
        for (entry, target) in &changes.entries {
            let previous = self.set_entry(entry.parent, entry.name.clone(), *target);
            let Some(previous) = previous.filter(|previous| Some(*previous) != *target) else { continue };
            unlinked.insert(previous);
            if self.is_known_to_kernel(previous) {
                cached.entries.insert(entry.clone(), previous);
            }
        }
        for number in &unlinked {
            if let Some(inode) = self.inodes.get_mut(number) {
                inode.is_unlinked_elsewhere = inode.entry_count == 0;
            }
        }
        let touched = changes.inodes.keys().chain(&unlinked).copied();
        cached.inodes.extend(touched.filter(|number| self.is_known_to_kernel(*number)));
        cached.permissions.retain(|number| cached.inodes.contains(number));
        cached.sizes.retain(|number| cached.inodes.contains(number));
        self.mark_foreign_permissions(&cached.permissions);
        for (number, _) in changes.inodes.iter().filter(|(_, change)| change.is_dropped) {
            self.drop_foreign(*number);
        }
        self.keep_former_entries(&cached.entries);
        cached
    }

    /// Replaces this namespace by one that was just read from the shared tree. Keeps the kernel's references. Returns all
    /// objects that the kernel may have cached.
    pub fn replace_with(&mut self, loaded: Self) -> CachedObjects {
        let previous = std::mem::replace(self, loaded);
        self.next_inode = self.next_inode.max(previous.next_inode);
        self.gone = previous.gone;
        self.former_entries = previous.former_entries;
        let mut cached = CachedObjects::default();
        let known: BTreeSet<InodeNumber> = previous
            .inodes
            .iter()
            .filter(|(number, inode)| **number == InodeNumber::ROOT || inode.lookups > 0)
            .map(|(number, _)| *number)
            .collect();
        for (number, inode) in previous.inodes.into_iter().filter(|(number, _)| known.contains(number)) {
            if let InodeContent::Directory { entries, .. } = &inode.content {
                let names = entries.after(0).filter(|entry| known.contains(&entry.inode));
                cached
                    .entries
                    .extend(names.map(|entry| (EntryKey { parent: number, name: entry.name.clone() }, entry.inode)));
            }
            if let Some(present) = self.inodes.get(&number) {
                cached.note_attributes(number, &inode.attributes, &present.attributes);
            }
            self.keep_references(number, inode);
        }
        cached.inodes = known;
        self.keep_former_entries(&cached.entries);
        self.mark_foreign_permissions(&cached.permissions);
        cached
    }

    fn mark_foreign_permissions(&mut self, changed: &BTreeSet<InodeNumber>) {
        for number in changed {
            if let Some(inode) = self.inodes.get_mut(number) {
                inode.has_foreign_permissions = true;
            }
        }
    }

    fn apply_change(&mut self, number: InodeNumber, change: &InodeChange) {
        if let Some(attributes) = &change.attributes {
            let inode = self.inodes.entry(number).or_insert_with(|| Inode::new(attributes.clone()));
            inode.attributes = attributes.clone();
        }
        let Some(inode) = self.inodes.get_mut(&number) else { return };
        if let (Some(target), InodeContent::Symlink(content)) = (&change.symlink_target, &mut inode.content) {
            content.clone_from(target);
        }
        for (name, value) in &change.xattrs {
            match value {
                Some(value) => inode.xattrs.insert(name.clone(), value.clone()),
                None => inode.xattrs.remove(name),
            };
        }
    }

    /// Removes an inode that another client has dropped.
    fn drop_foreign(&mut self, number: InodeNumber) {
        if let Some(inode) = self.inodes.remove(&number).filter(|inode| inode.lookups > 0) {
            self.gone.insert(number, inode);
        }
    }

    /// Keeps the kernel's references to an inode of the previous namespace.
    fn keep_references(&mut self, number: InodeNumber, previous: Inode) {
        match self.inodes.get_mut(&number) {
            Some(present) => {
                present.lookups = previous.lookups;
                present.has_foreign_permissions = previous.has_foreign_permissions;
            }
            // An inode without entries is not in the tree that was read. This client drops it later.
            None if previous.entry_count == 0 && !previous.is_unlinked_elsewhere => {
                self.inodes.insert(number, previous);
            }
            None => _ = self.gone.insert(number, previous),
        }
    }

    /// Whether the kernel knows an inode. It knows the root without a lookup.
    fn is_known_to_kernel(&self, number: InodeNumber) -> bool {
        number == InodeNumber::ROOT || self.inodes.get(&number).is_some_and(|inode| inode.lookups > 0)
    }
}

#[cfg(test)]
mod tests;
