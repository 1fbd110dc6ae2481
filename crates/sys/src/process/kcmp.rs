//! System calls that query another task: kcmp(2), get_robust_list(2), sched_getattr(2).

use std::cmp::Ordering;
use std::io;
use std::ptr;

use rustix::process::{Pid, getpriority_process};

use crate::sched_attr::sched_getattr;

/// `KCMP_FILE`: compares two open file descriptions.
const KCMP_FILE: libc::c_int = 0;

/// A file descriptor of another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskFd {
    /// The process or thread that has it open.
    pub pid: i32,
    /// The number of the descriptor in that task.
    pub fd: u32,
}

/// Whether descriptors `a` and `b` of process `pid` refer to the same open file description.
///
/// # Errors
/// EBADF if one of them is closed; EPERM if the caller may not trace both processes.
pub fn is_same_open_file(pid: i32, a: u32, b: u32) -> io::Result<bool> {
    is_same_open_file_across(TaskFd { pid, fd: a }, TaskFd { pid, fd: b })
}

/// Whether the descriptors of two tasks refer to the same open file description.
///
/// # Errors
/// As [`is_same_open_file`].
pub fn is_same_open_file_across(a: TaskFd, b: TaskFd) -> io::Result<bool> {
    kcmp_equal((a.pid, b.pid), KCMP_FILE, (u64::from(a.fd), u64::from(b.fd)))
}

/// Compares the open file descriptions of the descriptors of two tasks, in the kernel's total order; `Equal` if they are the
/// same.
///
/// # Errors
/// As [`is_same_open_file`].
pub fn compare_open_files(a: TaskFd, b: TaskFd) -> io::Result<Ordering> {
    kcmp((a.pid, b.pid), KCMP_FILE, (u64::from(a.fd), u64::from(b.fd))).map(kcmp_order)
}

fn kcmp_order(result: libc::c_long) -> Ordering {
    match result {
        0 => Ordering::Equal,
        1 => Ordering::Less,
        _ => Ordering::Greater,
    }
}

/// A registration of an epoll(7) instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpollSlot {
    /// The epoll instance.
    pub epoll: TaskFd,
    /// The number with which the file was registered.
    pub target: u32,
    /// Position among the registrations of this number, in the order of `fdinfo`.
    pub position: u32,
}

/// Compares the open file description of a descriptor with the one that a registration watches, in the order of [`compare_open_files`].
///
/// # Errors
/// EBADF if the descriptor is closed; ENOENT if there is no such registration; EPERM if the caller may not trace both
/// processes.
pub fn compare_with_epoll_target(descriptor: TaskFd, slot: EpollSlot) -> io::Result<Ordering> {
    const KCMP_EPOLL_TFD: libc::c_int = 7;
    /// `struct kcmp_epoll_slot`.
    #[repr(C)]
    struct KcmpEpollSlot {
        epoll: u32,
        target: u32,
        position: u32,
    }
    let raw = KcmpEpollSlot { epoll: slot.epoll.fd, target: slot.target, position: slot.position };
    let address = ptr::from_ref(&raw).expose_provenance() as u64;
    // The kernel reads the slot at `address`, and `raw` lives until the call returns.
    kcmp((descriptor.pid, slot.epoll.pid), KCMP_EPOLL_TFD, (u64::from(descriptor.fd), address)).map(kcmp_order)
}

/// A resource that clone(2) can share between processes. The values are the KCMP_* constants of kcmp(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedResource {
    /// The address space.
    Memory = 1,
    /// The file descriptor table.
    Files = 2,
    /// Root, current directory and umask.
    FileSystem = 3,
    /// Signal dispositions.
    Signals = 4,
}

/// Whether two processes share a resource.
///
/// # Errors
/// ESRCH if one has ended; EPERM if the caller may not trace both processes.
pub fn share_resource(a: i32, b: i32, table: SharedResource) -> io::Result<bool> {
    kcmp_equal((a, b), table as libc::c_int, (0, 0))
}

fn kcmp_equal(processes: (i32, i32), kind: libc::c_int, objects: (u64, u64)) -> io::Result<bool> {
    Ok(kcmp(processes, kind, objects)? == 0)
}

/// Calls kcmp(2). Returns 0 for equal, 1 for less, 2 for greater.
fn kcmp((a, b): (i32, i32), kind: libc::c_int, (first, second): (u64, u64)) -> io::Result<libc::c_long> {
    // SAFETY: kcmp takes numbers, and for KCMP_EPOLL_TFD an address that it only reads; a wrong address gives EFAULT.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, a, b, kind, first, second) };
    if order < 0 { Err(io::Error::last_os_error()) } else { Ok(order) }
}

/// Returns the head address and the registered length (in bytes) of a thread's list of robust futexes. The head is 0 if
/// there is no list.
///
/// # Errors
/// ESRCH if the thread has ended.
pub fn read_robust_list(tid: i32) -> io::Result<(u64, u64)> {
    let (mut head, mut bytes) = (0_u64, 0_u64);
    // SAFETY: the kernel writes two words, to `head` and `bytes`.
    let failed =
        unsafe { libc::syscall(libc::SYS_get_robust_list, tid, ptr::from_mut(&mut head), ptr::from_mut(&mut bytes)) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok((head, bytes)) }
}

/// The scheduling policy and parameters of a thread (sched(7)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulingAttributes {
    /// SCHED_* policy.
    pub policy: u32,
    /// Nice value, −20 to 19.
    pub nice: i32,
    /// Real-time priority, 0 to 99.
    pub priority: u32,
    /// SCHED_FLAG_RESET_ON_FORK: threads and processes that it starts get the ordinary policy.
    pub resets_on_fork: bool,
    /// The parameters of SCHED_DEADLINE; `None` for other policies.
    pub deadline: Option<DeadlineAttributes>,
}

/// The parameters of a SCHED_DEADLINE thread, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeadlineAttributes {
    /// SCHED_FLAG_*.
    pub flags: u64,
    /// The run time that it gets in each period.
    pub runtime_ns: u64,
    /// The time from the start of a period within which it gets that run time.
    pub deadline_ns: u64,
    /// The length of a period.
    pub period_ns: u64,
}

/// Reads the scheduling policy and parameters of a thread.
///
/// # Errors
/// ESRCH if the thread has ended.
pub fn read_scheduling(tid: i32) -> io::Result<SchedulingAttributes> {
    let raw = sched_getattr(tid)?;
    const RESET_ON_FORK: u64 = 1;
    const SCHED_FIFO: u32 = 1;
    const SCHED_RR: u32 = 2;
    const SCHED_DEADLINE: u32 = 6;
    let resets_on_fork = raw.flags & RESET_ON_FORK != 0;
    // sched_getattr(2) returns the nice value only for policies that use it.
    let nice = match raw.policy {
        SCHED_FIFO | SCHED_RR | SCHED_DEADLINE => getpriority_process(Pid::from_raw(tid))?,
        _ => raw.nice,
    };
    let deadline = (raw.policy == SCHED_DEADLINE).then_some(DeadlineAttributes {
        flags: raw.flags,
        runtime_ns: raw.runtime_ns,
        deadline_ns: raw.deadline_ns,
        period_ns: raw.period_ns,
    });
    Ok(SchedulingAttributes { policy: raw.policy, nice, priority: raw.priority, resets_on_fork, deadline })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_duplicate_shares_its_file_and_a_second_opening_does_not() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let (twin, other) = (file.try_clone().unwrap(), std::fs::File::open("/dev/null").unwrap());
        let same = |a: &std::fs::File, b: &std::fs::File| {
            is_same_open_file(std::process::id() as i32, a.as_raw_fd() as u32, b.as_raw_fd() as u32).unwrap()
        };
        assert!(same(&file, &twin) && !same(&file, &other));
    }

    #[test]
    fn this_thread_is_described() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!(read_robust_list(tid).unwrap().1, 24);
        assert!(read_scheduling(tid).unwrap().nice.abs() <= 20);
    }
}
