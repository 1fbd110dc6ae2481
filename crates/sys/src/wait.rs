//! Waiting for descriptors; for one never longer than until a moment that the caller names.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Waits, for as long as it takes, until one of two descriptors is readable or has come to its end.
///
/// # Errors
/// As poll(2); a signal only interrupts the wait, which goes on.
pub fn either(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        let mut fds = [one, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits until `fd` is readable, or has come to its end, at most until `deadline`; tells whether it has.
///
/// # Errors
/// As poll(2); a signal only interrupts the wait, which goes on.
pub fn readable(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
