//! Waiting for a descriptor, never longer than until a moment that the caller names.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

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
