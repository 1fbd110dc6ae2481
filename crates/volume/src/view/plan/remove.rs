//! Plans the removal of entries and of unused inodes.

use rustix::io::Errno;

use super::CallerIdentity;
use crate::record::{EntryName, InodeNumber, RecordEffect};
use crate::view::VolumeNamespace;

impl VolumeNamespace {
    /// Plans unlink(2). The inode stays until the kernel forgets it.
    ///
    /// # Errors
    /// ENOENT; EISDIR.
    pub fn plan_unlink(
        &self,
        parent: InodeNumber,
        name: &EntryName,
        caller: CallerIdentity,
    ) -> Result<Vec<RecordEffect>, Errno> {
        let inode = self.lookup(parent, name)?;
        if self.inode(inode)?.is_directory() {
            return Err(Errno::ISDIR);
        }
        self.plan_removal(parent, name, inode, caller)
    }

    /// Plans rmdir(2).
    ///
    /// # Errors
    /// ENOENT; ENOTDIR; ENOTEMPTY.
    pub fn plan_rmdir(
        &self,
        parent: InodeNumber,
        name: &EntryName,
        caller: CallerIdentity,
    ) -> Result<Vec<RecordEffect>, Errno> {
        let inode = self.lookup(parent, name)?;
        if !self.entries(inode)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.plan_removal(parent, name, inode, caller)
    }

    /// Plans to drop an inode that no entry leads to and that the kernel has forgotten. None while it is in use. Also none
    /// if another client has removed its last entry, because a program on that node may have the inode open.
    pub fn plan_drop(&self, inode: InodeNumber) -> Option<Vec<RecordEffect>> {
        let state = self.inode(inode).ok()?;
        let is_unused = state.entry_count == 0 && state.lookups == 0 && !state.is_unlinked_elsewhere;
        is_unused.then(|| vec![RecordEffect::DropInode { inode }])
    }

    fn plan_removal(
        &self,
        parent: InodeNumber,
        name: &EntryName,
        inode: InodeNumber,
        caller: CallerIdentity,
    ) -> Result<Vec<RecordEffect>, Errno> {
        Ok(vec![
            RecordEffect::SetEntry { parent, name: name.clone(), inode: None },
            self.touch_inode(inode, caller.now)?,
            self.touch_directory(parent, caller.now)?,
        ])
    }
}
