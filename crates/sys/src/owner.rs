//! Who is told of an open file's readiness (fcntl(2), F_GETOWN_EX and F_GETSIG).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Who is told, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Who, by an id as the caller sees it.
    pub whom: Whom,
    /// The signal; 0 for SIGIO.
    pub signal: u32,
}

/// Whom a file's readiness is told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Whom {
    Nobody,
    Thread(i32),
    Process(i32),
    Group(i32),
}

/// Asks for that of an open file.
///
/// # Errors
/// As fcntl(2).
pub fn of_file(fd: BorrowedFd<'_>) -> io::Result<Owner> {
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
    let whom = match (owner.kind, owner.id) {
        (_, 0) => Whom::Nobody,
        (0, tid) => Whom::Thread(tid),
        (1, pid) => Whom::Process(pid),
        (_, group) => Whom::Group(group),
    };
    Ok(Owner { whom, signal: signal as u32 })
}
