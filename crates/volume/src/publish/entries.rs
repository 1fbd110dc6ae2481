//! Applies the directory entries of a change set: first detaches each changed entry from its old inode, then attaches its
//! new one.
//!
//! Directories that move are orphans in between, so that no order of moves forms a cycle.

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::calls::PublishError;
use super::layout::{inode_path, orphan_name};
use super::publisher::Publisher;
use crate::change::ChangeSet;
use crate::record::{EntryKey, EntryName, InodeNumber};

/// Name of a new link until it is renamed over an existing entry. Names of orphans differ: they are hexadecimal numbers.
const NEW_LINK: &[u8] = b"new-link";

impl Publisher {
    pub(super) fn move_entries(&mut self, changes: &ChangeSet) -> Result<(), PublishError> {
        for (entry, target) in &changes.entries {
            self.detach(entry, *target)?;
        }
        for (entry, target) in &changes.entries {
            if let Some(target) = target {
                self.attach(entry, *target)?;
            }
        }
        Ok(())
    }

    /// Frees an entry. A file that another file replaces stays until `attach` renames over it.
    fn detach(&mut self, entry: &EntryKey, target: Option<InodeNumber>) -> Result<(), PublishError> {
        let current = self.directories.at(entry);
        if current.is_some() && current == target {
            return Ok(());
        }
        if let Some(directory) = current {
            let (parent, name) = self.directories.place(&self.shared, directory)?;
            let orphan = orphan_name(directory);
            self.calls.rename(&parent, &name, &self.shared.orphans, orphan.as_bytes())?;
            self.directories.set_location(directory, None);
            return Ok(());
        }
        let is_replaced_by_file = target.is_some_and(|target| !self.directories.contains(target));
        let EntryKey { parent, name } = entry;
        if is_replaced_by_file || !self.directories.contains(*parent) {
            return Ok(());
        }
        let parent = self.directories.open(&self.shared, *parent)?;
        self.calls.unlink(&*parent, name.as_bytes())
    }

    fn attach(&mut self, entry: &EntryKey, target: InodeNumber) -> Result<(), PublishError> {
        let EntryKey { parent, name } = entry;
        let parent = self.directories.open(&self.shared, *parent)?;
        if self.directories.contains(target) {
            if self.directories.at(entry) == Some(target) {
                return Ok(());
            }
            let (old_parent, old_name) = self.directories.place(&self.shared, target)?;
            self.calls.rename(&old_parent, &old_name, &parent, name.as_bytes())?;
            self.directories.set_location(target, Some(entry.clone()));
            return Ok(());
        }
        let path = inode_path(target);
        if self.calls.link(&self.shared.inodes, path.as_bytes(), &parent, name.as_bytes())? {
            return Ok(());
        }
        self.replace(&parent, name, target)
    }

    /// Renames a new link over an existing entry, unless the entry already leads to the inode.
    fn replace(
        &self,
        parent: &std::os::fd::OwnedFd,
        name: &EntryName,
        target: InodeNumber,
    ) -> Result<(), PublishError> {
        let path = inode_path(target);
        let stat = |directory, name: &[u8]| {
            let state = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok::<_, Errno>((state.st_dev, state.st_ino))
        };
        let expected = stat(&self.shared.inodes, path.as_bytes()).map_err(PublishError::call("stat a file"))?;
        let current = stat(parent, name.as_bytes()).map_err(PublishError::call("stat an entry"))?;
        if current == expected {
            return Ok(());
        }
        let orphans = &self.shared.orphans;
        self.calls.unlink(orphans, NEW_LINK)?;
        self.calls.link(&self.shared.inodes, path.as_bytes(), orphans, NEW_LINK)?;
        self.calls.rename(orphans, NEW_LINK, parent, name.as_bytes())
    }
}
