//! sched_getattr(2) and sched_setattr(2): the scheduling policy and parameters of a thread. `process`, `sched_slice` and
//! `fd_query` call them and interpret the fields.

use std::io;
use std::mem;

/// The thread id that means the calling thread.
pub(crate) const CALLING_THREAD: libc::pid_t = 0;

/// `struct sched_attr`, version 1: with utilization clamps (Linux 5.3).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SchedAttr {
    /// Size of the structure that the kernel wrote, in bytes.
    pub(crate) size: u32,
    /// SCHED_*.
    pub(crate) policy: u32,
    /// SCHED_FLAG_*.
    pub(crate) flags: u64,
    pub(crate) nice: i32,
    /// Priority, for SCHED_FIFO and SCHED_RR.
    pub(crate) priority: u32,
    /// For SCHED_DEADLINE the run time per period; otherwise the length of a time slice (Linux 6.12).
    pub(crate) runtime_ns: u64,
    /// Deadline from the start of a period, for SCHED_DEADLINE.
    pub(crate) deadline_ns: u64,
    /// Length of a period, for SCHED_DEADLINE.
    pub(crate) period_ns: u64,
    /// Utilization clamps, in units of 1/1024.
    pub(crate) utilization_min: u32,
    pub(crate) utilization_max: u32,
}

impl SchedAttr {
    /// Encodes the structure in the kernel's layout.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(mem::size_of::<Self>());
        bytes.extend(self.size.to_ne_bytes());
        bytes.extend(self.policy.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(self.nice.to_ne_bytes());
        bytes.extend(self.priority.to_ne_bytes());
        for time in [self.runtime_ns, self.deadline_ns, self.period_ns] {
            bytes.extend(time.to_ne_bytes());
        }
        bytes.extend(self.utilization_min.to_ne_bytes());
        bytes.extend(self.utilization_max.to_ne_bytes());
        bytes
    }
}

/// Reads the scheduling attributes of a thread.
///
/// # Errors
/// ESRCH if the thread has ended.
pub(crate) fn sched_getattr(tid: libc::pid_t) -> io::Result<SchedAttr> {
    let mut attributes = SchedAttr::default();
    let bytes = mem::size_of_val(&attributes);
    // SAFETY: the kernel writes at most `bytes` bytes to `attributes`, for which every value is valid.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attributes, bytes, 0) };
    if outcome == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

/// Sets the scheduling attributes of a thread.
///
/// # Errors
/// As sched_setattr(2): EPERM without CAP_SYS_NICE, EINVAL for values that contradict each other.
pub(crate) fn sched_setattr(tid: libc::pid_t, attributes: &SchedAttr) -> io::Result<()> {
    // SAFETY: the kernel reads `attributes`, whose first field is its size.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const *attributes, 0) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_attributes_are_read_with_their_size() {
        let attributes = sched_getattr(CALLING_THREAD).unwrap();
        assert_eq!(attributes.size as usize, mem::size_of::<SchedAttr>());
        assert_eq!(attributes.to_bytes().len(), mem::size_of::<SchedAttr>());
        assert_eq!(attributes.to_bytes()[..4], attributes.size.to_ne_bytes());
    }
}
