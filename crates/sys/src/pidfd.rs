//! Processes by descriptor, so that a number that was given to another process is never mistaken for the old one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

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
    crate::wait::readable(pidfd.as_fd(), Instant::now() + limit)
}

/// Sends a signal by number (pidfd_send_signal(2)).
///
/// # Errors
/// ESRCH when the process has ended; `InvalidInput` for a number that is no signal.
pub fn send_signal(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_send_signal(pidfd, signal)?)
}
