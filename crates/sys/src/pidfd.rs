//! Processes by pidfd, so that a reused process id is never mistaken for the old process.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};

/// Opens a process (pidfd_open(2)).
///
/// # Errors
/// ESRCH when there is none of that id.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// A copy of a descriptor of the process: the same open file, close-on-exec (pidfd_getfd(2)).
///
/// # Errors
/// EBADF when it is closed; ESRCH when the process has ended; EPERM when the caller may not.
pub fn get_fd(pidfd: &OwnedFd, number: u32) -> io::Result<OwnedFd> {
    let number = i32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())?)
}

/// Waits until the process has ended, at most `limit`; tells whether it has. It may still want to be reaped.
///
/// # Errors
/// As poll(2).
pub fn wait_exit(pidfd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    crate::poll::wait_readable(pidfd.as_fd(), Instant::now() + limit)
}

/// Whether this number is a pidfd whose process has ended.
pub fn has_exited_raw(number: RawFd) -> bool {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    text.lines().any(|line| line.starts_with("Pid:")) && wait_any_exit_raw(&[number], Duration::ZERO)
}

/// Whether the process behind the pidfd of this number has not ended. Opens no descriptor, so that it may be asked where another process closes
/// those of a common table that it does not know. The number may mean something else by the time of the answer where others share the table:
/// only a caller that looks again whether it still stands for the process may believe it.
pub fn is_alive_raw(number: RawFd) -> bool {
    const NO_SIGNAL: i32 = 0;
    let exists = match send_signal_raw(number, NO_SIGNAL) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::EPERM),
    };
    exists && !wait_any_exit_raw(&[number], Duration::ZERO)
}

/// Sends a signal to the process behind the pidfd of this number (pidfd_send_signal(2)), and opens no descriptor.
///
/// # Errors
/// EBADF where the number is no pidfd; ESRCH when the process has ended and was reaped; EPERM.
pub fn send_signal_raw(number: RawFd, signal: i32) -> io::Result<()> {
    let no_details = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: pidfd_send_signal(2) takes any number, open or not, and no memory of this process.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, number, signal, no_details, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits until one of the processes behind pidfds of these numbers has ended, at most `limit`, and tells whether one may
/// have. A number that is no open descriptor counts as one that has.
pub fn wait_any_exit_raw(numbers: &[RawFd], limit: Duration) -> bool {
    // SAFETY: poll(2) takes any number, open or not; each is used for that call alone, and never closed here.
    let borrowed =
        numbers.iter().filter(|number| **number >= 0).map(|number| unsafe { BorrowedFd::borrow_raw(*number) });
    let mut polled: Vec<PollFd<'_>> = borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    if polled.len() < numbers.len() {
        return true;
    }
    let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // An interrupted wait is a short one.
    poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Sends a signal by number (pidfd_send_signal(2)).
///
/// # Errors
/// ESRCH when the process has ended; `InvalidInput` for a number that is no signal.
pub fn send_signal(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_send_signal(pidfd, signal)?)
}
