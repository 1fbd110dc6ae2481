//! Plans new inodes and new links.

use rustix::io::Errno;

use super::{CallerIdentity, SET_GROUP_ID};
use crate::record::{EntryName, FileKind, InodeAttributes, InodeNumber, RecordEffect};
use crate::view::VolumeNamespace;

/// Maximum number of entries of one inode. ext4 allows 65,000, and the shared tree needs one for itself.
pub const LINKS_MAX: u32 = 64_000;

/// Maximum number of bytes of a symbolic link's target: XFS allows no more.
const SYMLINK_TARGET_MAX: usize = 1023;

/// Mode of symbolic links, whose permissions Linux ignores.
const SYMLINK_MODE: u16 = 0o777;

/// A request to create an inode.
#[derive(Clone, Debug)]
pub struct NewInode {
    /// The kind of the new inode.
    pub kind: FileKind,
    /// Permission bits, after the umask.
    pub mode: u16,
    /// Device number of a device node, 0 otherwise.
    pub device: u32,
    /// Target of a symbolic link, empty otherwise.
    pub symlink_target: Vec<u8>,
}

/// A creation that is ready to be logged.
#[derive(Clone, Debug)]
pub struct PlannedCreation {
    /// The new inode.
    pub inode: InodeNumber,
    /// Effects to log and to apply.
    pub effects: Vec<RecordEffect>,
}

impl VolumeNamespace {
    /// Plans a new inode with one entry. It inherits the group of a directory that has the set-group-id bit.
    ///
    /// # Errors
    /// EEXIST, ENOTDIR; ENOENT if the directory is removed; ENAMETOOLONG for a symbolic link's target.
    pub fn plan_create(
        &self,
        parent: InodeNumber,
        name: &EntryName,
        new: &NewInode,
        caller: CallerIdentity,
    ) -> Result<PlannedCreation, Errno> {
        self.check_new_entry(parent, name)?;
        if new.kind == FileKind::Symlink && new.symlink_target.is_empty() {
            return Err(Errno::NOENT);
        }
        if new.symlink_target.len() > SYMLINK_TARGET_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let inode = self.next_inode();
        let attributes = self.initial_attributes(parent, new, caller)?;
        let mut effects = vec![RecordEffect::SetAttributes { inode, attributes }];
        if new.kind == FileKind::Symlink {
            effects.push(RecordEffect::SetSymlinkTarget { inode, target: new.symlink_target.clone() });
        }
        effects.push(RecordEffect::SetEntry { parent, name: name.clone(), inode: Some(inode) });
        effects.push(self.touch_directory(parent, caller.now)?);
        Ok(PlannedCreation { inode, effects })
    }

    /// Plans a hard link.
    ///
    /// # Errors
    /// EPERM for a directory; EMLINK; EEXIST; ENOENT for a file without links; ESTALE if another client has removed the file.
    pub fn plan_link(
        &self,
        inode: InodeNumber,
        parent: InodeNumber,
        name: &EntryName,
        caller: CallerIdentity,
    ) -> Result<Vec<RecordEffect>, Errno> {
        let state = self.inode(inode)?;
        if state.is_directory() {
            return Err(Errno::PERM);
        }
        self.check_new_entry(parent, name)?;
        match state.entry_count {
            // The name of the file may lead to another one. After ESTALE, the kernel looks it up again.
            0 if state.is_unlinked_elsewhere => return Err(Errno::STALE),
            0 => return Err(Errno::NOENT),
            LINKS_MAX.. => return Err(Errno::MLINK),
            _ => {}
        }
        Ok(vec![
            RecordEffect::SetEntry { parent, name: name.clone(), inode: Some(inode) },
            self.touch_inode(inode, caller.now)?,
            self.touch_directory(parent, caller.now)?,
        ])
    }

    fn check_new_entry(&self, parent: InodeNumber, name: &EntryName) -> Result<(), Errno> {
        if self.entries(parent)?.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        if self.inode(parent)?.entry_count == 0 { Err(Errno::NOENT) } else { Ok(()) }
    }

    fn initial_attributes(
        &self,
        parent: InodeNumber,
        new: &NewInode,
        caller: CallerIdentity,
    ) -> Result<InodeAttributes, Errno> {
        let directory = &self.inode(parent)?.attributes;
        let inherits_group = directory.mode & SET_GROUP_ID != 0;
        let inherits_bit = inherits_group && new.kind == FileKind::Directory;
        let mode = if new.kind == FileKind::Symlink { SYMLINK_MODE } else { new.mode & 0o7777 };
        Ok(InodeAttributes {
            kind: new.kind,
            mode: mode | if inherits_bit { SET_GROUP_ID } else { 0 },
            user: caller.user,
            group: if inherits_group { directory.group } else { caller.group },
            device: new.device,
            size: 0,
            accessed: caller.now,
            modified: caller.now,
            changed: caller.now,
        })
    }
}
