//! Changes that another client made: the view takes final states whose data is in the shared tree.

use super::inode::{Inode, InodeContent};
use super::namespace::VolumeNamespace;
use crate::change::{ChangeSet, InodeChange};
use crate::record::{EntryKey, InodeNumber};

/// What the kernel may have cached of a namespace that was replaced.
#[derive(Debug, Default)]
pub struct CachedObjects {
    /// Inodes.
    pub inodes: Vec<InodeNumber>,
    /// Entries.
    pub entries: Vec<EntryKey>,
}

impl VolumeNamespace {
    /// Applies a change set of another client. This client has nothing unpublished.
    pub fn apply_published(&mut self, changes: &ChangeSet) {
        for (number, change) in changes.inodes.iter().filter(|(_, change)| !change.is_dropped) {
            self.apply_change(*number, change);
        }
        // First all removals, so that a directory is below its new parent last.
        for (entry, _) in changes.entries.iter().filter(|(_, target)| target.is_none()) {
            self.set_entry(entry.parent, entry.name.clone(), None);
        }
        for (entry, target) in changes.entries.iter().filter(|(_, target)| target.is_some()) {
            self.set_entry(entry.parent, entry.name.clone(), *target);
        }
        for (number, _) in changes.inodes.iter().filter(|(_, change)| change.is_dropped) {
            self.inodes.remove(number);
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

    /// Becomes a namespace that was read anew. The kernel's references stay.
    pub fn replace_with(&mut self, loaded: Self) -> CachedObjects {
        let previous = std::mem::replace(self, loaded);
        self.next_inode = self.next_inode.max(previous.next_inode);
        let mut cached = CachedObjects::default();
        for (number, inode) in previous.inodes.into_iter().filter(|(_, inode)| inode.lookups > 0) {
            if let InodeContent::Directory { entries, .. } = &inode.content {
                let names = entries.after(0).map(|entry| entry.name.clone());
                cached.entries.extend(names.map(|name| EntryKey { parent: number, name }));
            }
            if let Some(present) = self.inodes.get_mut(&number) {
                present.lookups = inode.lookups;
            }
            cached.inodes.push(number);
        }
        cached
    }
}
