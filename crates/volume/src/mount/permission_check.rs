//! Checks owners and modes that another client has changed. The kernel has checked each call, but maybe with old ones. It
//! discards attributes that an invalidation has overtaken. It never requests the owner of a file that is removed from a
//! sticky directory. `operations` calls this for calls that change a directory.

use farfork_sys::process::ProcStatus;
use fuser::Request;
use rustix::fs::Mode;
use rustix::io::Errno;

use super::conversion::caller_of;
use crate::record::{InodeAttributes, InodeNumber};
use crate::view::{CallerIdentity, RenameKind, RenameRequest, VolumeNamespace};

/// Bits of one class of a mode: write and search.
const CHANGE_ENTRIES: u16 = 0o3;
/// Bit of one class of a mode.
const WRITE: u16 = 0o2;
/// Bits of a capability set (capabilities(7)).
const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_FOWNER: u64 = 1 << 3;

/// The thread that waits for the answer to a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallingThread {
    pub(super) identity: CallerIdentity,
    /// Thread id, 0 if this process cannot see the thread.
    pub(super) thread: u32,
}

impl CallingThread {
    /// The thread that has sent a request.
    pub(super) fn of(request: &Request) -> Self {
        Self { identity: caller_of(request), thread: request.pid() }
    }

    /// Checks that the thread may add entries to a directory.
    ///
    /// # Errors
    /// EACCES.
    pub(super) fn check_addition(self, namespace: &VolumeNamespace, directory: InodeNumber) -> Result<(), Errno> {
        self.check_access(namespace, directory, CHANGE_ENTRIES)
    }

    /// Checks that the thread may remove an entry that leads to `target` from a directory.
    ///
    /// # Errors
    /// EACCES; EPERM in a sticky directory.
    pub(super) fn check_removal(
        self,
        namespace: &VolumeNamespace,
        directory: InodeNumber,
        target: InodeNumber,
    ) -> Result<(), Errno> {
        self.check_access(namespace, directory, CHANGE_ENTRIES)?;
        let (directory, target) = (namespace.inode(directory)?, namespace.inode(target)?);
        let owners = [directory.attributes.user, target.attributes.user];
        let is_changed = directory.has_foreign_permissions || target.has_foreign_permissions;
        if !is_changed || !is_sticky(&directory.attributes) || owners.contains(&self.identity.user) {
            return Ok(());
        }
        let may_remove = self.status().is_none_or(|status| has_capability(&status, CAP_FOWNER));
        if may_remove { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Checks that the thread may rename an entry. The caller has planned the rename.
    ///
    /// # Errors
    /// EACCES; EPERM in a sticky directory.
    pub(super) fn check_rename(self, namespace: &VolumeNamespace, rename: &RenameRequest) -> Result<(), Errno> {
        let moved = namespace.lookup(rename.parent, &rename.name)?;
        self.check_removal(namespace, rename.parent, moved)?;
        let replaced = namespace.entries(rename.new_parent)?.get(&rename.new_name);
        match replaced {
            Some(replaced) => self.check_removal(namespace, rename.new_parent, replaced)?,
            None => self.check_addition(namespace, rename.new_parent)?,
        }
        let moved_back = replaced.filter(|_| rename.kind == RenameKind::Exchange);
        for inode in [Some(moved), moved_back].into_iter().flatten() {
            // A directory with another parent gets another `..`.
            if rename.parent != rename.new_parent && namespace.inode(inode)?.is_directory() {
                self.check_access(namespace, inode, WRITE)?;
            }
        }
        Ok(())
    }

    fn check_access(self, namespace: &VolumeNamespace, inode: InodeNumber, access: u16) -> Result<(), Errno> {
        let inode = namespace.inode(inode)?;
        if inode.has_foreign_permissions && !self.may_access(&inode.attributes, access) {
            return Err(Errno::ACCESS);
        }
        Ok(())
    }

    fn may_access(self, attributes: &InodeAttributes, access: u16) -> bool {
        let is_owner = self.identity.user == attributes.user;
        if permits(attributes, is_owner, true, access) && permits(attributes, is_owner, false, access) {
            return true;
        }
        // Without the status, the check of the kernel decides.
        self.status().is_none_or(|status| {
            let is_member = self.identity.group == attributes.group || status.groups.contains(&attributes.group);
            permits(attributes, is_owner, is_member, access) || has_capability(&status, CAP_DAC_OVERRIDE)
        })
    }

    /// The groups and capabilities of the thread. None if they are unknown: the thread is not visible in `/proc`, or it acts
    /// with the credentials of another process, as overlayfs does.
    fn status(self) -> Option<ProcStatus> {
        let id = i32::try_from(self.thread).ok().filter(|id| *id > 0)?;
        let status = ProcStatus::read(id).ok()?;
        let CallerIdentity { user, group, .. } = self.identity;
        (status.uids[3] == user && status.gids[3] == group).then_some(status)
    }
}

/// Whether a mode permits an access of the owner, or of a member of the group, or of others.
fn permits(attributes: &InodeAttributes, is_owner: bool, is_member: bool, access: u16) -> bool {
    let shift = match (is_owner, is_member) {
        (true, _) => 6,
        (false, true) => 3,
        (false, false) => 0,
    };
    attributes.mode >> shift & access == access
}

/// In a process of another user namespace, the capability counts too: the kernel has checked that it applies to the inode.
fn has_capability(status: &ProcStatus, capability: u64) -> bool {
    status.capabilities[2] & capability != 0
}

/// Whether only the owner of a file may remove it from a directory.
pub(super) fn is_sticky(directory: &InodeAttributes) -> bool {
    u32::from(directory.mode) & Mode::SVTX.bits() != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{FileKind, Timestamp};

    const USER: u32 = 1000;

    fn attributes(mode: u16, user: u32, group: u32) -> InodeAttributes {
        InodeAttributes { user, group, ..InodeAttributes::of_root(FileKind::Directory, mode) }
    }

    #[test]
    fn the_first_matching_class_of_a_mode_decides() {
        let permitted =
            |mode, is_owner, is_member| permits(&attributes(mode, 0, 0), is_owner, is_member, CHANGE_ENTRIES);
        assert!(permitted(0o700, true, false) && permitted(0o070, false, true) && permitted(0o007, false, false));
        assert!(!permitted(0o077, true, true) && !permitted(0o707, false, true) && !permitted(0o770, false, false));
        assert!(!permitted(0o666, true, true), "a directory must be searched, too");
    }

    #[test]
    fn capabilities_of_the_thread_count() {
        let identity = CallerIdentity { user: 0, group: 0, now: Timestamp::default() };
        // Tests run as root.
        let root = CallingThread { identity, thread: std::process::id() };
        assert!(root.may_access(&attributes(0o700, USER, USER), CHANGE_ENTRIES));
        let user = CallingThread { identity: CallerIdentity { user: USER, group: USER, ..identity }, ..root };
        assert!(user.status().is_none(), "the thread acts for another user");
        assert!(CallingThread { thread: 0, ..root }.status().is_none(), "the thread is not visible");
    }
}
