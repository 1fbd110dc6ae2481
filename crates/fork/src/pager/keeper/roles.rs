//! `RoleTable`: a page that keeper, pager and holder share. It has the number of each one's pidfd in their common
//! descriptor table. Only the keeper clones processes. Only a pager closes the pidfds of ended processes. A starting
//! pager closes every descriptor that it does not know. So no other process may open a descriptor, even briefly: the
//! pager would close it, and the opener would later close a newer descriptor of that number. Queries of this table open
//! none.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;

use farfork_sys::fork::PidfdSlot;
use farfork_sys::pidfd;
use farfork_sys::shared_mapping::SharedMapping;
use rustix::fs::MemfdFlags;

/// Bytes of the page that are used.
const TABLE_BYTES: usize = 48;

/// Offset of the stop flag. It is set when a client has stopped the pager: then no process starts another.
const STOPPED_AT: usize = 24;

/// Offset of the pid of the pager that has closed the descriptors of its predecessor. Until the pager writes it, the
/// keeper clones no process: the pager would close the new pidfd, too.
const READY_PAGER_PID_AT: usize = 32;

/// Offset of the holder's pid. The holder writes it as its first step.
const HOLDER_PID_AT: usize = 40;

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessRole {
    /// Clones pager and holder.
    Keeper,
    /// Serves the children.
    Pager,
    /// Only holds the shared descriptor table open.
    FdHolder,
}

impl ProcessRole {
    fn offset(self) -> usize {
        match self {
            Self::Keeper => 0,
            Self::Pager => 8,
            Self::FdHolder => 16,
        }
    }
}

/// The table.
///
/// ```text
///  0        8       16       24        32                40           48
///  │ keeper │ pager │ holder │ stopped │ ready pager pid │ holder pid │      u64 each; 0: none
/// ```
///
/// The kernel itself stores the numbers of pager and holder before they run (`farfork_sys::fork::PidfdSlot`). Only the
/// keeper clones. So once the keeper has ended, no pager can start after the one in this page. A pidfd stays open while
/// its number is in this page.
#[derive(Debug)]
pub(super) struct RoleTable {
    mapping: SharedMapping,
}

impl RoleTable {
    /// Creates a table without any process.
    ///
    /// # Errors
    /// As memfd_create(2), mmap(2).
    pub(super) fn new() -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("farfork-roles", MemfdFlags::CLOEXEC)?);
        file.set_len(TABLE_BYTES as u64)?;
        Ok(Self { mapping: SharedMapping::map_file(&file, TABLE_BYTES)? })
    }

    /// Returns the place in the table where the kernel stores the pidfd of a process with this role.
    pub(super) fn pidfd_slot(&self, role: ProcessRole) -> Option<PidfdSlot<'_>> {
        Some(PidfdSlot { mapping: &self.mapping, offset: role.offset() })
    }

    /// Returns the number of the pidfd of the process with this role; 0 for none.
    pub(super) fn pidfd_number(&self, role: ProcessRole) -> RawFd {
        self.mapping.load_u64(role.offset()) as u32 as RawFd
    }

    /// Assigns a role to the process with this pidfd; 0 for none.
    pub(super) fn assign(&self, role: ProcessRole, number: RawFd) {
        self.mapping.store_u64(role.offset(), u64::from(number as u32));
    }

    /// Whether the process with this role lives.
    pub(super) fn is_alive(&self, role: ProcessRole) -> bool {
        self.first_alive(&[role]).is_some()
    }

    /// Returns the pidfd number of the first of these roles whose process lives.
    pub(super) fn first_alive(&self, roles: &[ProcessRole]) -> Option<RawFd> {
        let numbers = || roles.iter().map(|role| self.pidfd_number(*role)).collect::<Vec<_>>();
        loop {
            let seen = numbers();
            let living = seen.iter().copied().find(|number| *number != 0 && pidfd::is_alive_raw(*number));
            // Unchanged numbers refer to pidfds that were open during the whole check. Only a living keeper can add
            // one.
            if numbers() == seen {
                return living;
            }
        }
    }

    /// Marks this process, which was just cloned, as the holder.
    pub(super) fn set_fd_holder(&self) {
        self.mapping.store_u64(HOLDER_PID_AT, u64::from(std::process::id()));
    }

    /// Whether this process is the holder.
    pub(super) fn is_fd_holder(&self) -> bool {
        self.pidfd_number(ProcessRole::FdHolder) != 0
            && self.mapping.load_u64(HOLDER_PID_AT) == u64::from(std::process::id())
    }

    /// Records that this pager has closed the unknown descriptors, and will close no more of them.
    pub(super) fn set_pager_ready(&self) {
        self.mapping.store_u64(READY_PAGER_PID_AT, u64::from(std::process::id()));
    }

    /// Whether the pager with this pid has closed the unknown descriptors.
    pub(super) fn is_pager_ready(&self, pager: i32) -> bool {
        self.mapping.load_u64(READY_PAGER_PID_AT) == u64::from(pager.unsigned_abs())
    }

    /// Records that a client has stopped the pager, so that no process starts another.
    pub(super) fn set_stopped(&self) {
        self.mapping.store_u64(STOPPED_AT, 1);
    }

    /// Whether a client has stopped the pager.
    pub(super) fn is_stopped(&self) -> bool {
        self.mapping.load_u64(STOPPED_AT) != 0
    }

    /// Returns the pidfd numbers in the table.
    pub(super) fn descriptors(&self) -> [RawFd; 3] {
        [ProcessRole::Keeper, ProcessRole::Pager, ProcessRole::FdHolder].map(|role| self.pidfd_number(role))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_running_processes_are_alive() {
        let table = RoleTable::new().unwrap();
        assert_eq!(table.first_alive(&[ProcessRole::Keeper, ProcessRole::Pager]), None);
        let own = pidfd::open(std::process::id() as i32).unwrap();
        table.assign(ProcessRole::Pager, own.as_raw_fd());
        assert_eq!(table.first_alive(&[ProcessRole::Keeper, ProcessRole::Pager]), Some(own.as_raw_fd()));
        let mut other = Command::new("true").spawn().unwrap();
        let others = pidfd::open(other.id() as i32).unwrap();
        table.assign(ProcessRole::Keeper, others.as_raw_fd());
        // A zombie counts as ended.
        assert!(pidfd::wait_exit(&others, std::time::Duration::from_secs(60)).unwrap());
        assert!(!table.is_alive(ProcessRole::Keeper));
        other.wait().unwrap();
        assert!(!table.is_alive(ProcessRole::Keeper) && table.is_alive(ProcessRole::Pager));
    }

    #[test]
    fn a_descriptor_of_another_kind_is_not_a_running_process() {
        let table = RoleTable::new().unwrap();
        let file = tempfile::tempfile().unwrap();
        table.assign(ProcessRole::FdHolder, file.as_raw_fd());
        assert!(!table.is_alive(ProcessRole::FdHolder));
    }

    #[test]
    fn this_process_is_the_holder_while_that_role_is_assigned() {
        let table = RoleTable::new().unwrap();
        table.set_fd_holder();
        assert!(!table.is_fd_holder(), "the page is empty");
        let own = pidfd::open(std::process::id() as i32).unwrap();
        table.assign(ProcessRole::FdHolder, own.as_raw_fd());
        assert!(table.is_fd_holder());
        table.assign(ProcessRole::FdHolder, 0);
        assert!(!table.is_fd_holder());
    }
}
