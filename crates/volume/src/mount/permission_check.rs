//! Checks owners and modes that another client has changed. The kernel has checked each call, but maybe with old ones. It
//! discards attributes that an invalidation has overtaken. It never requests the owner of a file that is removed from a
//! sticky directory. `operations` calls this for calls that change a directory, attributes or extended attributes.

use rustix::fs::Mode;
use rustix::io::Errno;

use super::calling_thread::{CallingThread, CapabilityBit};
use crate::record::{FileKind, InodeAttributes, InodeNumber};
use crate::view::{AttributeChange, PrivilegeLoss, RenameKind, RenameRequest, VolumeNamespace};

/// Bits of one class of a mode: write and search.
const CHANGE_ENTRIES: u16 = 0o3;
/// Bits of one class of a mode.
const READ: u16 = 0o4;
const WRITE: u16 = 0o2;
/// Bits of a mode.
const SET_USER_ID: u16 = Mode::SUID.bits() as u16;
const SET_GROUP_ID: u16 = Mode::SGID.bits() as u16;
const GROUP_EXECUTE: u16 = Mode::XGRP.bits() as u16;
/// Prefix of the extended attributes whose changes need the permission to write the file (xattr(7)).
const USER_XATTRS: &[u8] = b"user.";
/// The extended attribute that needs a capability which applies to the file to be set. Changes of the others, except
/// `USER_XATTRS`, need one of the user namespace of the mount.
const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// A change of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XattrChange {
    /// setxattr(2).
    Set,
    /// removexattr(2), or a call after which a file must not have capabilities, such as write(2) and chown(2). The kernel
    /// removes them with the credentials of the thread.
    Remove,
}

/// A call of a program that changes attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttributeRequest {
    pub(super) change: AttributeChange,
    /// The call sets both timestamps to the present time. For this, the permission to write is enough.
    pub(super) is_touch: bool,
    /// The program has the file open for writing, and calls ftruncate(2).
    pub(super) has_handle: bool,
}

impl CallingThread {
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
        let may_remove = !is_changed
            || !is_sticky(&directory.attributes)
            || owners.contains(&self.identity.user)
            || self.has_capability_for(CapabilityBit::FOWNER, &target.attributes);
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

    /// Checks that the thread may change attributes of an inode: chmod(2), chown(2), utimensat(2), truncate(2). Returns the
    /// change without a set-group-ID bit that chmod(2) ignores.
    ///
    /// # Errors
    /// EPERM for a thread of another user; EACCES without the permission to write.
    pub(super) fn check_attributes(
        self,
        namespace: &VolumeNamespace,
        inode: InodeNumber,
        request: &AttributeRequest,
    ) -> Result<AttributeChange, Errno> {
        let (inode, mut change) = (namespace.inode(inode)?, request.change);
        if !inode.has_foreign_permissions {
            return Ok(change);
        }
        let attributes = &inode.attributes;
        let is_owner = self.identity.user == attributes.user;
        let sets_times = !request.is_touch && (change.accessed.is_some() || change.modified.is_some());
        let is_owner_call = change.mode.is_some() || (sets_times && change.size.is_none());
        let keeps_user = change.user.is_none_or(|user| is_owner && user == attributes.user);
        let has_group = |group| group == attributes.group || self.is_member(group);
        let keeps_groups = change.group.is_none_or(|group| is_owner && has_group(group));
        if (is_owner_call && !self.may_act_as_owner(attributes))
            || !((keeps_user && keeps_groups) || self.has_capability_for(CapabilityBit::CHOWN, attributes))
        {
            return Err(Errno::PERM);
        }
        let must_write =
            (change.size.is_some() && !request.has_handle) || (request.is_touch && !self.may_act_as_owner(attributes));
        if must_write && !self.may_access(attributes, WRITE) {
            return Err(Errno::ACCESS);
        }
        let group = change.group.unwrap_or(attributes.group);
        if let Some(mode) = change.mode.as_mut().filter(|mode| **mode & SET_GROUP_ID != 0)
            && !self.is_member(group)
            && !self.has_capability_for(CapabilityBit::FSETID, attributes)
        {
            *mode &= !SET_GROUP_ID;
        }
        Ok(change)
    }

    /// Checks that the thread may set or remove an extended attribute of an inode.
    ///
    /// # Errors
    /// EACCES; EPERM for a sticky directory of another user, and for capabilities of a file.
    pub(super) fn check_xattr(
        self,
        namespace: &VolumeNamespace,
        inode: InodeNumber,
        name: &[u8],
        change: XattrChange,
    ) -> Result<(), Errno> {
        let found = namespace.inode(inode)?;
        let attributes = &found.attributes;
        if !found.has_foreign_permissions {
            return Ok(());
        }
        if name == CAPABILITY_XATTR {
            // A thread that may write the file, or change its group, removes its capabilities by this.
            let may_drop = || self.may_act_as_owner(attributes) || self.may_access(attributes, WRITE);
            let may_change = (change == XattrChange::Remove && may_drop())
                || self.has_capability_for(CapabilityBit::SETFCAP, attributes);
            return if may_change { Ok(()) } else { Err(Errno::PERM) };
        }
        if !name.starts_with(USER_XATTRS) {
            return Ok(());
        }
        if attributes.kind == FileKind::Directory && is_sticky(attributes) && !self.may_act_as_owner(attributes) {
            return Err(Errno::PERM);
        }
        self.check_access(namespace, inode, WRITE)
    }

    /// Checks that the thread may link an inode once more, as `protected_hardlinks` in proc_sys_fs(5) says.
    ///
    /// # Errors
    /// EPERM for a thread of another user.
    pub(super) fn check_link(self, namespace: &VolumeNamespace, inode: InodeNumber) -> Result<(), Errno> {
        let inode = namespace.inode(inode)?;
        let is_checked = inode.has_foreign_permissions && are_hard_links_protected();
        if is_checked && !self.may_link(&inode.attributes) { Err(Errno::PERM) } else { Ok(()) }
    }

    /// The privileges that a file loses when the thread changes its data. `keeps_bits` is the decision of the kernel, which it
    /// reports with requests of write(2) only.
    pub(super) fn data_privilege_loss(self, attributes: &InodeAttributes, keeps_bits: Option<bool>) -> PrivilegeLoss {
        let has_bits = attributes.mode & (SET_USER_ID | SET_GROUP_ID) != 0;
        let keeps_bits = keeps_bits.unwrap_or_else(|| !has_bits || self.has_initial_capability(CapabilityBit::FSETID));
        if keeps_bits { PrivilegeLoss::Capabilities } else { self.bit_loss(attributes) }
    }

    /// The privileges that a file loses when the thread changes attributes.
    ///
    /// # Errors
    /// EPERM for chown(2) with owner and group -1 of another user's file with such bits.
    pub(super) fn attribute_privilege_loss(
        self,
        attributes: &InodeAttributes,
        change: &AttributeChange,
    ) -> Result<PrivilegeLoss, Errno> {
        if attributes.kind == FileKind::Directory {
            return Ok(PrivilegeLoss::Nothing);
        }
        if change.user.is_some() || change.group.is_some() {
            return Ok(self.bit_loss(attributes));
        }
        if change.size.is_some() {
            return Ok(self.data_privilege_loss(attributes, None));
        }
        // The kernel sends an empty change for chown(2), and also before other calls that have requests of their own.
        let has_bits = attributes.mode & (SET_USER_ID | SET_GROUP_ID) != 0;
        if !change.is_empty() || !has_bits || !self.is_in_chown() {
            return Ok(PrivilegeLoss::Nothing);
        }
        let loss = self.bit_loss(attributes);
        let may_change = loss.apply_to(attributes.mode) == attributes.mode || self.may_act_as_owner(attributes);
        if may_change { Ok(loss) } else { Err(Errno::PERM) }
    }

    fn bit_loss(self, attributes: &InodeAttributes) -> PrivilegeLoss {
        let keeps_group_bit = attributes.mode & (SET_GROUP_ID | GROUP_EXECUTE) != SET_GROUP_ID
            || self.is_member(attributes.group)
            || self.has_capability_for(CapabilityBit::FSETID, attributes);
        if keeps_group_bit { PrivilegeLoss::ProgramBits } else { PrivilegeLoss::AllBits }
    }

    fn may_link(self, attributes: &InodeAttributes) -> bool {
        self.may_act_as_owner(attributes) || (is_ordinary_file(attributes) && self.may_access(attributes, READ | WRITE))
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
        permits(attributes, is_owner, self.is_member(attributes.group), access)
            || self.has_capability_for(CapabilityBit::DAC_OVERRIDE, attributes)
    }

    fn may_act_as_owner(self, attributes: &InodeAttributes) -> bool {
        self.identity.user == attributes.user || self.has_capability_for_owner(CapabilityBit::FOWNER, attributes)
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

/// Whether a file is a regular one, and a program that executes it gets no rights of its owner or group.
fn is_ordinary_file(attributes: &InodeAttributes) -> bool {
    const GROUP_PROGRAM: u16 = SET_GROUP_ID | GROUP_EXECUTE;
    attributes.kind == FileKind::Regular
        && attributes.mode & SET_USER_ID == 0
        && attributes.mode & GROUP_PROGRAM != GROUP_PROGRAM
}

/// Whether this machine restricts hard links to files of other users, also if its setting cannot be read.
fn are_hard_links_protected() -> bool {
    let setting = std::fs::read("/proc/sys/fs/protected_hardlinks");
    setting.map_or(true, |setting| setting.trim_ascii() != b"0")
}

/// Whether only the owner of a file may remove it from a directory.
pub(super) fn is_sticky(directory: &InodeAttributes) -> bool {
    u32::from(directory.mode) & Mode::SVTX.bits() != 0
}

#[cfg(test)]
mod tests {
    use rustix::process::Uid;
    use rustix::thread::{gettid, set_thread_res_uid};

    use farfork_sys::user_namespace::IdRange;

    use super::*;
    use crate::mount::calling_thread::tests::NamespaceProcess;
    use crate::record::{EntryName, Timestamp};
    use crate::view::{CallerIdentity, Inode};

    const USER: u32 = 1000;
    /// A group that no test is a member of.
    const GROUP: u32 = 5000;
    const FILE: InodeNumber = InodeNumber(10);

    /// Calls with a thread of `USER`, who is a member of group 0 as the tests are.
    fn as_user<T: Send>(call: impl FnOnce(CallingThread) -> T + Send) -> T {
        let run = || {
            let user = Uid::from_raw(USER);
            set_thread_res_uid(user, user, user).unwrap();
            let thread = gettid().as_raw_nonzero().get().cast_unsigned();
            call(CallingThread { identity: CallerIdentity { user: USER, group: 0, now: Timestamp::default() }, thread })
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// A namespace with an inode whose owner or mode another client has changed.
    fn changed_elsewhere(attributes: InodeAttributes) -> VolumeNamespace {
        let root = Inode::new(InodeAttributes::of_root(FileKind::Directory, 0o1777));
        let mut namespace = VolumeNamespace::new(root, 0, 100);
        let inode = Inode { has_foreign_permissions: true, ..Inode::new(attributes) };
        namespace.load(InodeNumber::ROOT, EntryName::new(b"file").unwrap(), FILE, inode);
        namespace
    }

    fn request(change: AttributeChange) -> AttributeRequest {
        AttributeRequest { change, is_touch: false, has_handle: false }
    }

    /// The error of a change of attributes by `USER`.
    fn refusal(attributes: InodeAttributes, request: AttributeRequest) -> Option<Errno> {
        let namespace = changed_elsewhere(attributes);
        as_user(|caller| caller.check_attributes(&namespace, FILE, &request).err())
    }

    #[test]
    fn only_the_present_owner_changes_attributes() {
        let (time, unchanged) = (Some(Timestamp::default()), AttributeChange::default());
        let changes = [
            AttributeChange { mode: Some(0o600), ..unchanged },
            AttributeChange { group: Some(0), ..unchanged },
            AttributeChange { user: Some(USER), ..unchanged },
            AttributeChange { accessed: time, modified: time, ..unchanged },
            AttributeChange { modified: time, ..unchanged },
        ];
        for change in changes {
            assert_eq!(refusal(attributes(0o777, USER, 0), request(change)), None, "{change:?}");
            assert_eq!(refusal(attributes(0o777, 0, 0), request(change)), Some(Errno::PERM), "{change:?}");
        }
        for change in
            [AttributeChange { user: Some(0), ..unchanged }, AttributeChange { group: Some(GROUP), ..unchanged }]
        {
            assert_eq!(refusal(attributes(0o777, USER, 0), request(change)), Some(Errno::PERM), "{change:?}");
        }
        let same_group = AttributeChange { group: Some(GROUP), ..unchanged };
        assert_eq!(refusal(attributes(0o777, USER, GROUP), request(same_group)), None);
        assert_eq!(refusal(attributes(0o700, 0, 0), request(unchanged)), None, "nothing is changed");
    }

    #[test]
    fn a_permission_to_write_is_enough_for_the_present_time_and_for_a_size() {
        let time = Some(Timestamp::default());
        let change = AttributeChange { accessed: time, modified: time, ..AttributeChange::default() };
        let touch = AttributeRequest { is_touch: true, ..request(change) };
        let size = request(AttributeChange { size: Some(5), ..AttributeChange::default() });
        for request in [touch, size] {
            assert_eq!(refusal(attributes(0o020, 0, 0), request), None);
            assert_eq!(refusal(attributes(0o602, 0, 0), request), Some(Errno::ACCESS), "its group may not write");
        }
        assert_eq!(refusal(attributes(0o400, USER, 0), touch), None, "the owner needs no permission");
        assert_eq!(refusal(attributes(0o400, USER, 0), size), Some(Errno::ACCESS));
        assert_eq!(refusal(attributes(0o400, 0, 0), AttributeRequest { has_handle: true, ..size }), None);
    }

    #[test]
    fn a_mode_has_a_set_group_id_bit_only_for_a_member_of_the_group() {
        let change = AttributeChange { mode: Some(0o2755), ..AttributeChange::default() };
        for (group, mode) in [(0, 0o2755), (GROUP, 0o755)] {
            let namespace = changed_elsewhere(attributes(0o755, USER, group));
            let checked = as_user(|caller| caller.check_attributes(&namespace, FILE, &request(change)).unwrap());
            assert_eq!(checked.mode, Some(mode));
        }
    }

    #[test]
    fn an_extended_attribute_needs_the_permission_to_write() {
        let refusal = |attributes, name: &[u8]| {
            let namespace = changed_elsewhere(attributes);
            as_user(|caller| caller.check_xattr(&namespace, FILE, name, XattrChange::Set).err())
        };
        assert_eq!(refusal(attributes(0o020, 0, 0), b"user.name"), None);
        assert_eq!(refusal(attributes(0o755, 0, 0), b"user.name"), Some(Errno::ACCESS));
        assert_eq!(refusal(attributes(0o755, 0, 0), b"security.name"), None, "the kernel has checked capabilities");
        assert_eq!(refusal(attributes(0o1777, 0, 0), b"user.name"), Some(Errno::PERM), "a sticky directory");
        assert_eq!(refusal(attributes(0o1777, USER, 0), b"user.name"), None);
        let file = InodeAttributes { kind: FileKind::Regular, ..attributes(0o1777, 0, 0) };
        assert_eq!(refusal(file, b"user.name"), None, "the sticky bit of a file has no effect");
    }

    #[test]
    fn only_a_thread_that_may_drop_capabilities_of_a_file_by_a_change_removes_them() {
        for (attributes, remove) in [
            (attributes(0o400, USER, GROUP), None),
            (attributes(0o620, 0, 0), None),
            (attributes(0o644, 0, 0), Some(Errno::PERM)),
        ] {
            let namespace = changed_elsewhere(attributes);
            let refusal =
                |change| as_user(|caller| caller.check_xattr(&namespace, FILE, CAPABILITY_XATTR, change).err());
            assert_eq!(refusal(XattrChange::Remove), remove);
            assert_eq!(refusal(XattrChange::Set), Some(Errno::PERM), "without CAP_SETFCAP");
        }
    }

    #[test]
    fn a_hard_link_to_a_file_of_another_user_needs_its_permissions() {
        let file = |mode, user, group| InodeAttributes { kind: FileKind::Regular, ..attributes(mode, user, group) };
        let permitted = [file(0o000, USER, 0), file(0o006, 0, GROUP), file(0o060, 0, 0), file(0o2066, 0, 0)];
        for attributes in permitted {
            assert!(as_user(|caller| caller.may_link(&attributes)), "{attributes:?}");
        }
        let fifo = InodeAttributes { kind: FileKind::Fifo, ..file(0o666, 0, 0) };
        let refused =
            [file(0o644, 0, 0), file(0o606, 0, 0), file(0o622, 0, 0), file(0o4666, 0, 0), file(0o2676, 0, 0), fifo];
        for attributes in refused {
            assert!(!as_user(|caller| caller.may_link(&attributes)), "{attributes:?}");
        }
    }

    #[test]
    fn the_kernel_alone_checks_inodes_that_no_other_client_has_changed() {
        let mut namespace = changed_elsewhere(attributes(0o700, 0, 0));
        namespace.forget(FILE, 0);
        let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
        as_user(|caller| {
            assert!(caller.check_attributes(&namespace, FILE, &request(change)).is_ok());
            assert!(caller.check_xattr(&namespace, FILE, b"user.name", XattrChange::Set).is_ok());
            assert!(caller.check_link(&namespace, FILE).is_ok());
        });
    }

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
    }

    /// The process is root of its namespace, to which two users of the host are mapped.
    #[test]
    fn capabilities_of_a_user_namespace_do_not_count_for_the_present_owner_outside() {
        let process = NamespaceProcess::start(IdRange { first: USER, count: 2 }, 0);
        let caller = process.caller();
        let (unchanged, time) = (AttributeChange::default(), Some(Timestamp::default()));
        let changes = [
            AttributeChange { user: Some(USER), ..unchanged },
            AttributeChange { group: Some(USER), ..unchanged },
            AttributeChange { mode: Some(0o777), ..unchanged },
            AttributeChange { modified: time, ..unchanged },
        ];
        let refusals = |attributes: InodeAttributes| -> Vec<Errno> {
            let namespace = changed_elsewhere(attributes);
            let of_changes =
                changes.map(|change| caller.check_attributes(&namespace, FILE, &request(change)).map(drop));
            let others = [
                caller.check_xattr(&namespace, FILE, b"user.name", XattrChange::Set),
                caller.check_xattr(&namespace, FILE, CAPABILITY_XATTR, XattrChange::Set),
                caller.check_addition(&namespace, FILE),
                caller.check_removal(&namespace, InodeNumber::ROOT, FILE),
            ];
            of_changes.into_iter().chain(others).filter_map(Result::err).collect()
        };
        let inside = USER + 1;
        assert_eq!(refusals(attributes(0o700, inside, inside)), []);
        let (no_access, not_owner) = (Errno::ACCESS, Errno::PERM);
        let expected = [not_owner, not_owner, not_owner, not_owner, no_access, not_owner, no_access, not_owner];
        assert_eq!(refusals(attributes(0o700, 0, 0)), expected);
    }

    #[test]
    fn a_thread_with_other_credentials_has_the_permissions_of_the_request_only() {
        let namespace = changed_elsewhere(attributes(0o070, 0, GROUP));
        as_user(|caller| {
            let of_group = |group| CallingThread { identity: CallerIdentity { group, ..caller.identity }, ..caller };
            assert_eq!(of_group(GROUP).check_addition(&namespace, FILE), Ok(()));
            assert_eq!(of_group(GROUP + 1).check_addition(&namespace, FILE), Err(Errno::ACCESS));
            let removal = of_group(GROUP + 1).check_removal(&namespace, InodeNumber::ROOT, FILE);
            assert_eq!(removal, Err(Errno::PERM), "a sticky directory");
        });
    }
}
