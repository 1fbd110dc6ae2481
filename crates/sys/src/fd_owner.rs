//! The process or thread that is signalled when an open file becomes ready (fcntl(2), F_GETOWN_EX and F_GETSIG).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The target and the number of the signal of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdOwner {
    /// The target, with its id in the caller's pid namespace.
    pub target: SignalTarget,
    /// The signal; 0 for SIGIO.
    pub signal: u32,
}

/// The target of an open file's signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum SignalTarget {
    Nobody,
    Thread(i32),
    Process(i32),
    Group(i32),
}

/// Reads the owner of an open file.
///
/// # Errors
/// As fcntl(2).
pub fn read_fd_owner(fd: BorrowedFd<'_>) -> io::Result<FdOwner> {
    const F_GETSIG: libc::c_int = 11;
    const F_GETOWN_EX: libc::c_int = 16;
    #[repr(C)]
    struct OwnerEx {
        kind: libc::c_int,
        id: libc::pid_t,
    }
    let mut owner = OwnerEx { kind: 0, id: 0 };
    // SAFETY: F_GETOWN_EX writes one struct f_owner_ex, whose layout this is; it outlives the call.
    let failed = unsafe { libc::fcntl(fd.as_raw_fd(), F_GETOWN_EX, &raw mut owner) };
    // SAFETY: F_GETSIG takes no argument.
    let signal = unsafe { libc::fcntl(fd.as_raw_fd(), F_GETSIG) };
    if failed < 0 || signal < 0 {
        return Err(io::Error::last_os_error());
    }
    let signal_target = match (owner.kind, owner.id) {
        (_, 0) => SignalTarget::Nobody,
        (0, tid) => SignalTarget::Thread(tid),
        (1, pid) => SignalTarget::Process(pid),
        (_, group) => SignalTarget::Group(group),
    };
    Ok(FdOwner { target: signal_target, signal: signal as u32 })
}
