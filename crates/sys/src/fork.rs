//! Forks this process with a shared table of open files (clone3(2), CLONE_FILES without CLONE_VM). A descriptor stays
//! open as long as either process lives.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::shared_mapping::SharedMapping;

/// The place where the kernel writes the descriptor number of a copy's pidfd: 8 bytes of a mapping that the processes share.
#[derive(Debug, Clone, Copy)]
pub struct PidfdSlot<'a> {
    /// The mapping.
    pub mapping: &'a SharedMapping,
    /// The offset in the mapping, a multiple of 8. On a little-endian machine the slot reads as a `u64`.
    pub offset: usize,
}

/// Which of the two processes the caller is after the fork.
#[derive(Debug)]
pub enum ForkedSide {
    /// The original process. It must reap the copy (exit signal SIGCHLD). Until then, the copy's pid is not reused.
    Parent {
        /// The copy's pid.
        pid: i32,
    },
    /// The copy.
    Child,
}

/// Forks this process, which must have only one thread, with the same table of open files. A descriptor that either process
/// opens or closes is opened or closed for both.
///
/// With a `slot`, the kernel opens the copy's pidfd in that table and writes the pidfd's number to the slot. It does both
/// before the copy runs its first instruction. So every process that shares table and mapping can find the copy, even if the
/// forking process is killed during this call. After an error, the content of the slot has no meaning.
///
/// # Errors
/// As clone3(2); `ResourceBusy` if the process has several threads. The copy would have only the calling thread, and would
/// wait forever for locks that the other threads held.
pub fn fork_sharing_files(slot: Option<PidfdSlot<'_>>) -> io::Result<ForkedSide> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    // SAFETY: all-zero bytes are a valid clone_args: every field a number, zero for "not used".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_FILES as u64;
    if let Some(slot) = slot {
        args.flags |= libc::CLONE_PIDFD as u64;
        args.pidfd = slot.mapping.address(slot.offset, size_of::<u64>());
    }
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM the copy has its own memory and continues on its own copy of this stack. The process has one
    // thread (checked above), so no lock of libc or of the program is held by a thread that the copy lacks. `args` outlives
    // the call. The kernel stores the pidfd inside the mapping, which `address` checked and `slot` borrows.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) } {
        0 => Ok(ForkedSide::Child),
        pid if pid > 0 => Ok(ForkedSide::Parent { pid: pid as i32 }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes ownership of a descriptor in the shared table. Another process opened it and has ended. The caller must be its only
/// owner.
///
/// # Errors
/// EBADF if the number is not open.
pub fn adopt_raw_fd(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only looks up the number.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is open, as just checked, and its former owner is a process that has ended.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor of the (shared) table from 3 on, except `keep`.
///
/// The caller must have just taken over the table. It must have no `OwnedFd` with a number outside of `keep`.
///
/// # Errors
/// As close_range(2).
pub fn close_all_except(keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut first = 3;
    for number in keep {
        if first < number {
            close_range(first, number - 1)?;
        }
        first = number + 1;
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: closing is memory-safe; `close_all_except` requires that the numbers are no longer used.
    match unsafe { libc::close_range(first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
