//! The rights of a process: user, groups, capabilities, limits and a seccomp filter. A program that is started for another
//! process gets the rights of that process.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::fs::Mode;
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::process::{self, ProcStatus};

/// Indices of [`ProcStatus::capabilities`].
const INHERITABLE: usize = 0;
const PERMITTED: usize = 1;
const EFFECTIVE: usize = 2;
const BOUNDING: usize = 3;
const AMBIENT: usize = 4;

/// The rights of a process, as the ids of its own user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessRights {
    /// Real, effective and saved ids.
    uids: [u32; 3],
    gids: [u32; 3],
    groups: Vec<u32>,
    /// As [`ProcStatus::capabilities`].
    capabilities: [u64; 5],
    has_no_new_privileges: bool,
    umask: u32,
    /// Soft and hard limits by RLIMIT number.
    limits: Vec<(u64, u64)>,
}

impl ProcessRights {
    /// Reads the rights of a process of another user namespace or of this one.
    ///
    /// # Errors
    /// NotFound if it has ended. InvalidData if an id has no number in its user namespace.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        let status = ProcStatus::read(pid)?;
        let uid_map = IdMap::read(pid, "uid_map")?;
        let gid_map = IdMap::read(pid, "gid_map")?;
        let inner = |map: &IdMap, [real, effective, saved, _]: [u32; 4]| -> io::Result<[u32; 3]> {
            Ok([map.inner_id(real)?, map.inner_id(effective)?, map.inner_id(saved)?])
        };
        Ok(Self {
            uids: inner(&uid_map, status.uids)?,
            gids: inner(&gid_map, status.gids)?,
            groups: status.groups.iter().map(|group| gid_map.inner_id(*group)).collect::<io::Result<_>>()?,
            capabilities: status.capabilities,
            has_no_new_privileges: status.no_new_privileges,
            umask: status.umask,
            limits: process::read_limits(pid)?,
        })
    }

    /// Makes a program start with these rights, which must not exceed the caller's. SIGKILL ends the program when the calling
    /// thread ends. `filter` is one more seccomp filter, an array of `struct sock_filter`.
    pub fn apply_to(self, command: &mut Command, filter: Option<Vec<u8>>) {
        let apply = move || {
            self.apply_to_this_process()?;
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            close_on_exec()?;
            filter.as_deref().map_or(Ok(()), install_seccomp_filter)
        };
        // SAFETY: after fork(2), the function only makes system calls. It allocates nothing and takes no lock.
        unsafe { command.pre_exec(apply) };
    }

    /// Sets the ids last for which capabilities are needed: a process of another user than root loses them with its ids.
    fn apply_to_this_process(&self) -> io::Result<()> {
        rustix::process::umask(Mode::from_raw_mode(self.umask));
        for (resource, (soft, hard)) in RESOURCES.into_iter().zip(&self.limits) {
            let limit = |value: u64| (value != u64::MAX).then_some(value);
            rustix::process::setrlimit(resource, Rlimit { current: limit(*soft), maximum: limit(*hard) })?;
        }
        for number in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            let is_kept = self.capabilities[BOUNDING] & 1 << number != 0;
            if !is_kept && rustix::thread::capability_is_in_bounding_set(capability).is_ok_and(|is_in| is_in) {
                rustix::thread::remove_capability_from_bounding_set(capability)?;
            }
        }
        self.set_ids()?;
        if self.has_no_new_privileges {
            rustix::thread::set_no_new_privs(true)?;
        }
        Ok(())
    }

    fn set_ids(&self) -> io::Result<()> {
        set_groups(&self.groups)?;
        let [real, effective, saved] = self.gids.map(Gid::from_raw);
        rustix::thread::set_thread_res_gid(real, effective, saved)?;
        rustix::thread::set_keep_capabilities(true)?;
        let [real, effective, saved] = self.uids.map(Uid::from_raw);
        rustix::thread::set_thread_res_uid(real, effective, saved)?;
        let set = |index: usize| CapabilitySet::from_bits_retain(self.capabilities[index]);
        let sets =
            CapabilitySets { effective: set(EFFECTIVE), permitted: set(PERMITTED), inheritable: set(INHERITABLE) };
        rustix::thread::set_capabilities(None, sets)?;
        for capability in set(AMBIENT).iter() {
            rustix::thread::configure_capability_in_ambient_set(capability, true)?;
        }
        Ok(rustix::thread::set_keep_capabilities(false)?)
    }
}

/// The limits in the order of their RLIMIT numbers.
const RESOURCES: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

/// `rustix::thread::set_thread_groups` takes other types: this call allocates nothing.
fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: setgroups(2) reads `groups.len()` ids.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes execve(2) close all descriptors except the standard streams: this process may have inherited others.
fn close_on_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call only sets flags of descriptors.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Adds a seccomp filter to the calling thread: an array of `struct sock_filter`. Without CAP_SYS_ADMIN, the thread needs
/// `no_new_privs` (seccomp(2)).
fn install_seccomp_filter(instructions: &[u8]) -> io::Result<()> {
    let count = instructions.len() / size_of::<libc::sock_filter>();
    let program = libc::sock_fprog { len: count as u16, filter: instructions.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel copies `len` instructions, and keeps no pointer.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, std::ptr::from_ref(&program)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The ids of a user namespace, as `/proc/PID/uid_map` or `gid_map` shows them: first id in the namespace, first id in the
/// reader's namespace, and number of ids.
#[derive(Debug)]
struct IdMap(Vec<[u32; 3]>);

impl IdMap {
    fn read(pid: i32, file: &str) -> io::Result<Self> {
        let text = process::read_text(&format!("/proc/{pid}/{file}"))?;
        let line = |line: &str| {
            let numbers: Vec<u32> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
            numbers.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
        };
        text.lines().map(line).collect::<io::Result<_>>().map(Self)
    }

    fn inner_id(&self, outer: u32) -> io::Result<u32> {
        let within = |[inner, first, count]: &[u32; 3]| {
            let offset = outer.checked_sub(*first).filter(|offset| offset < count)?;
            inner.checked_add(offset)
        };
        self.0.iter().find_map(within).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("id {outer} is not one of its user namespace"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_user_namespace() {
        let map = IdMap(vec![[0, 100_000, 10], [1000, 5, 1]]);
        assert_eq!((map.inner_id(100_003).unwrap(), map.inner_id(5).unwrap()), (3, 1000));
        assert!(map.inner_id(100_010).is_err() && map.inner_id(4).is_err());
    }

    #[test]
    fn a_program_gets_rights_and_filter() {
        let mut rights = ProcessRights::of_process(std::process::id().cast_signed()).unwrap();
        rights.has_no_new_privileges = true;
        rights.umask = 0o27;
        rights.capabilities[BOUNDING] &= !1;
        // BPF_RET | BPF_K with SECCOMP_RET_ALLOW.
        let filter = [0x06, 0, 0, 0, 0, 0, 0xff, 0x7f].to_vec();
        let mut command = Command::new("cat");
        rights.clone().apply_to(command.arg("/proc/self/status"), Some(filter));
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        assert_eq!((field("Umask:"), field("NoNewPrivs:"), field("Seccomp:")), ("0027".into(), "1".into(), "2".into()));
        assert_eq!(u64::from_str_radix(&field("CapBnd:"), 16).unwrap(), rights.capabilities[BOUNDING]);
    }
}
