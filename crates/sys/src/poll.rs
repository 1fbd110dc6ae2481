//! Waits until descriptors are ready. Waits for one descriptor have a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};

/// Waits without limit until one of two descriptors is readable or at its end.
///
/// # Errors
/// As poll(2), except EINTR: the wait continues after a signal.
pub fn wait_either(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        let mut fds = [one, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The readiness of a descriptor for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadReadiness {
    /// An error is pending. Reading the error clears it.
    pub has_error: bool,
    /// Urgent data is pending (MSG_OOB).
    pub is_urgent: bool,
}

/// Returns the readiness of `fd` if it is readable or at its end, or has an error or urgent data; otherwise `None`. Does not
/// wait, and reads nothing.
///
/// # Errors
/// As poll(2).
pub fn poll_read(fd: BorrowedFd<'_>) -> io::Result<Option<ReadReadiness>> {
    let events = poll_at_once(fd, PollFlags::IN | PollFlags::PRI)?;
    let has = |event| events.contains(event);
    Ok((!events.is_empty()).then(|| ReadReadiness { has_error: has(PollFlags::ERR), is_urgent: has(PollFlags::PRI) }))
}

/// Returns which of `events` have occurred, and also ERR and HUP. Does not wait.
///
/// # Errors
/// As poll(2), except EINTR.
pub fn poll_at_once(fd: BorrowedFd<'_>, events: PollFlags) -> io::Result<PollFlags> {
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(fd, events)];
    retry_on_intr(|| poll(&mut polled, Some(&AT_ONCE)))?;
    Ok(polled[0].revents())
}

/// Waits until `fd` is readable or at its end, at most until `deadline`; returns whether `fd` is readable or at its end.
///
/// # Errors
/// As poll(2), except EINTR: the wait continues after a signal.
pub fn wait_readable(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
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
