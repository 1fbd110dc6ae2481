//! The thread that waits for the answer to a call: its ids, groups and capabilities. `permission_check` needs groups and
//! capabilities if the mode of an inode refuses the call to its user.

use std::io;

use farfork_sys::process::{ProcStatus, SystemCall};
use farfork_sys::user_namespace;
use fuser::Request;

use super::conversion::caller_of;
use crate::record::InodeAttributes;
use crate::view::CallerIdentity;

/// The user who may have capabilities although the status of the thread is unknown.
const ROOT: u32 = 0;

/// The highest user id.
const LAST_ID: u32 = u32::MAX - 1;

/// A capability, as a bit of a capability set (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CapabilityBit(u64);

impl CapabilityBit {
    pub(super) const CHOWN: Self = Self(1 << 0);
    pub(super) const DAC_OVERRIDE: Self = Self(1 << 1);
    pub(super) const FOWNER: Self = Self(1 << 3);
    pub(super) const FSETID: Self = Self(1 << 4);
    pub(super) const SETFCAP: Self = Self(1 << 31);
}

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

    /// Whether the thread executes chown(2) or a variant of it. False if the thread is not visible in `/proc`.
    pub(super) fn is_in_chown(self) -> bool {
        // chown, fchown, lchown, fchownat of <asm/unistd_64.h>.
        const CHOWN_CALLS: [u64; 4] = [92, 93, 94, 260];
        self.system_call().is_some_and(|call| CHOWN_CALLS.contains(&call.number))
    }

    /// Whether the thread changes attributes or extended attributes of the file at a path. After ESTALE, the kernel walks the
    /// path again. False for a call with a descriptor such as fchmod(2), and if the thread is not visible in `/proc`.
    pub(super) fn changes_file_at_path(self) -> bool {
        // chmod, chown, lchown, utime, setxattr, lsetxattr, removexattr, lremovexattr, utimes, fchownat, futimesat, fchmodat,
        // fchmodat2, setxattrat, removexattrat of <asm/unistd_64.h>.
        const PATH_CALLS: [u64; 15] = [90, 92, 94, 132, 188, 189, 197, 198, 235, 260, 261, 268, 452, 463, 466];
        // Without a path, it changes the file of a descriptor.
        const UTIMENSAT: u64 = 280;
        let has_path =
            |call: SystemCall| PATH_CALLS.contains(&call.number) || call.number == UTIMENSAT && call.arguments[1] != 0;
        self.system_call().is_some_and(has_path)
    }

    fn system_call(self) -> Option<SystemCall> {
        SystemCall::read(visible_id(self.thread)?).ok()?
    }

    /// Whether the thread is a member of a group. Without its status, only the group of the request counts.
    pub(super) fn is_member(self, group: u32) -> bool {
        self.identity.group == group || self.status().is_some_and(|status| status.groups.contains(&group))
    }

    /// Whether the thread has a capability that applies to the owner of an inode.
    pub(super) fn has_capability_for_owner(self, capability: CapabilityBit, attributes: &InodeAttributes) -> bool {
        self.has_capability(capability, |tid| user_namespace::maps_user(tid, attributes.user))
    }

    /// Whether the thread has a capability that applies to the owner and group of an inode.
    pub(super) fn has_capability_for(self, capability: CapabilityBit, attributes: &InodeAttributes) -> bool {
        let maps_both = |tid| {
            Ok(user_namespace::maps_user(tid, attributes.user)? && user_namespace::maps_group(tid, attributes.group)?)
        };
        self.has_capability(capability, maps_both)
    }

    /// Whether the thread has a capability of the initial user namespace, which maps all ids.
    pub(super) fn has_initial_capability(self, capability: CapabilityBit) -> bool {
        self.has_capability(capability, |tid| user_namespace::maps_user(tid, LAST_ID))
    }

    /// Whether the thread has a capability, and its user namespace maps the present ids of the inode. The kernel may have
    /// looked for the mapping of the former ids. The thread waits for the answer, so it stays in its namespace.
    ///
    /// Without status, only root has capabilities, and the check of the kernel decides: processes outside of the PID namespace
    /// and kernel threads that act for root, such as nfsd, must keep working. For another user, the kernel may have checked
    /// capabilities of a user namespace that does not map the present owner.
    fn has_capability(self, capability: CapabilityBit, maps_ids: impl FnOnce(i32) -> io::Result<bool>) -> bool {
        let Some(status) = self.status() else { return self.identity.user == ROOT };
        status.capabilities[2] & capability.0 != 0 && maps_ids(self.thread.cast_signed()).unwrap_or(false)
    }

    /// The groups and capabilities of the thread. None if they are unknown: the thread is not visible in `/proc`, or it acts
    /// with other credentials than its own, as a worker of io_uring(7) may.
    fn status(self) -> Option<ProcStatus> {
        let status = ProcStatus::read(visible_id(self.thread)?).ok()?;
        let CallerIdentity { user, group, .. } = self.identity;
        (status.uids[3] == user && status.gids[3] == group).then_some(status)
    }
}

/// The id of a thread as `/proc` has it; none if this process cannot see the thread.
pub(super) fn visible_id(thread: u32) -> Option<i32> {
    i32::try_from(thread).ok().filter(|id| *id > 0)
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};

    use farfork_sys::user_namespace::IdRange;

    use super::*;
    use crate::record::{FileKind, Timestamp};

    const USER: u32 = 1000;

    /// A process in a user namespace of its own, with all capabilities in this namespace. Dropping the value ends it.
    pub(in crate::mount) struct NamespaceProcess {
        process: Child,
        host_id: u32,
    }

    impl NamespaceProcess {
        /// Starts a process with user and group `inside` of a namespace to which these ids of the host are mapped.
        pub(in crate::mount) fn start(numbers: IdRange, inside: u32) -> Self {
            let id = inside.to_string();
            let script = "echo; read -r _; exec setpriv --reuid $0 --regid $0 --clear-groups sh -c 'echo; exec cat'";
            let mut command = Command::new("unshare");
            command.args(["--user", "--keep-caps", "sh", "-c", script, &id]);
            let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
            lines.next().unwrap().unwrap();
            user_namespace::write_id_maps(process.id().cast_signed(), numbers).unwrap();
            process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            lines.next().unwrap().unwrap();
            Self { process, host_id: numbers.to_host(inside).unwrap() }
        }

        pub(in crate::mount) fn caller(&self) -> CallingThread {
            let identity = CallerIdentity { user: self.host_id, group: self.host_id, now: Timestamp::default() };
            CallingThread { identity, thread: self.process.id() }
        }
    }

    impl Drop for NamespaceProcess {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    fn owned_by(user: u32, group: u32) -> InodeAttributes {
        InodeAttributes { user, group, ..InodeAttributes::of_root(FileKind::Regular, 0o600) }
    }

    #[test]
    fn capabilities_of_a_user_namespace_apply_to_mapped_ids_only() {
        const FIRST: u32 = 100_000;
        let process = NamespaceProcess::start(IdRange { first: FIRST, count: 100 }, 5);
        let caller = process.caller();
        assert!(caller.status().is_some_and(|status| status.capabilities[2] & CapabilityBit::FOWNER.0 != 0));
        for (user, group, expected) in [
            (FIRST, FIRST, [true, true]),
            (FIRST + 99, FIRST + 99, [true, true]),
            (FIRST, 0, [true, false]),
            (0, FIRST, [false, false]),
            (FIRST + 100, FIRST, [false, false]),
        ] {
            let attributes = owned_by(user, group);
            let found = [
                caller.has_capability_for_owner(CapabilityBit::FOWNER, &attributes),
                caller.has_capability_for(CapabilityBit::DAC_OVERRIDE, &attributes),
            ];
            assert_eq!(found, expected, "{user} {group}");
        }
        assert!(!caller.has_initial_capability(CapabilityBit::FSETID));
    }

    #[test]
    fn without_status_only_root_has_capabilities() {
        let identity = CallerIdentity { user: 0, group: 0, now: Timestamp::default() };
        // Tests run as root.
        let own = CallingThread { identity, thread: std::process::id() };
        let attributes = owned_by(USER, USER);
        let has_capability = |caller: CallingThread| caller.has_capability_for(CapabilityBit::CHOWN, &attributes);
        assert!(own.status().is_some() && has_capability(own) && own.has_initial_capability(CapabilityBit::FSETID));
        let other_group = CallingThread { identity: CallerIdentity { group: USER, ..identity }, ..own };
        let unseen = CallingThread { thread: 0, ..own };
        for root in [other_group, unseen] {
            assert!(root.status().is_none() && has_capability(root));
        }
        for caller in [other_group, unseen] {
            let user = CallingThread { identity: CallerIdentity { user: USER, ..caller.identity }, ..caller };
            assert!(user.status().is_none() && !has_capability(user));
            assert!(user.is_member(user.identity.group) && !user.is_member(7));
        }
    }
}
