//! Processes by descriptor, so that a number that was given to another process is never mistaken for the old one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Opens a process (pidfd_open(2)).
///
/// # Errors
/// ESRCH when there is none of that id.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
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
