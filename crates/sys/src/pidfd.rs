//! Processes by pidfd, so that a reused process id is never mistaken for the old process.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};

/// Opens a pidfd of a process (pidfd_open(2)).
///
/// # Errors
/// ESRCH if there is no process with that id.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Duplicates a descriptor of the process: the same open file description, close-on-exec (pidfd_getfd(2)).
///
/// # Errors
/// EBADF if the descriptor is closed; ESRCH if the process has ended; EPERM if the caller may not trace it (ptrace(2)).
pub fn get_fd(pidfd: &OwnedFd, number: u32) -> io::Result<OwnedFd> {
    let number = i32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())?)
}

/// Waits at most `limit` until the process has ended; returns whether it has ended. An ended process may still be a zombie.
///
/// # Errors
/// As poll(2).
pub fn wait_exit(pidfd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    crate::poll::wait_readable(pidfd.as_fd(), Instant::now() + limit)
}

/// Whether the descriptor with this number is a pidfd whose process has ended.
pub fn has_exited_raw(number: RawFd) -> bool {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    text.lines().any(|line| line.starts_with("Pid:")) && wait_any_exit_raw(&[number], Duration::ZERO)
}

/// Whether the process of the pidfd with this number is alive.
///
/// Opens no descriptor, so it can be called while another process closes unknown descriptors of a shared table. If other
/// processes share the table, the number may refer to another file when this function returns. The caller must check again
/// that the number still belongs to the process.
pub fn is_alive_raw(number: RawFd) -> bool {
    const NO_SIGNAL: i32 = 0;
    let exists = match send_signal_raw(number, NO_SIGNAL) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::EPERM),
    };
    exists && !wait_any_exit_raw(&[number], Duration::ZERO)
}

/// Sends a signal to the process of the pidfd with this number (pidfd_send_signal(2)), and opens no descriptor.
///
/// # Errors
/// EBADF if the descriptor is not a pidfd; ESRCH if the process has ended and was reaped; EPERM.
pub fn send_signal_raw(number: RawFd, signal: i32) -> io::Result<()> {
    let no_details = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: pidfd_send_signal(2) accepts any number, open or not, and accesses no memory of this process.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, number, signal, no_details, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits at most `limit` until one of the processes of the pidfds with these numbers has ended. Returns whether one may have
/// ended. A number that is not open counts as ended.
pub fn wait_any_exit_raw(numbers: &[RawFd], limit: Duration) -> bool {
    // SAFETY: poll(2) accepts any number, open or not; each is used for that call alone, and never closed here.
    let borrowed =
        numbers.iter().filter(|number| **number >= 0).map(|number| unsafe { BorrowedFd::borrow_raw(*number) });
    let mut polled: Vec<PollFd<'_>> = borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    if polled.len() < numbers.len() {
        return true;
    }
    let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // A signal (EINTR) ends the wait early, as if `limit` had passed.
    poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Sends a signal by number (pidfd_send_signal(2)).
///
/// # Errors
/// ESRCH if the process has ended; `InvalidInput` for an invalid signal number.
pub fn send_signal(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_send_signal(pidfd, signal)?)
}
