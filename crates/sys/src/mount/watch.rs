//! Detects that mounts were added or removed in the mount namespace of the process.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// An open `/proc/self/mountinfo`. The kernel remembers which changes it has reported through this open file.
#[derive(Debug)]
pub struct MountWatch {
    table: File,
}

impl MountWatch {
    /// Opens the mount table, and detects later changes.
    ///
    /// # Errors
    /// As open(2).
    pub fn start() -> io::Result<Self> {
        Ok(Self { table: File::open("/proc/self/mountinfo")? })
    }

    /// Waits at most `limit` for a change since the last call, or since the start. Returns `false` if `stop` is readable or
    /// its other end is closed; otherwise `true`, also after `limit`.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait_change(&self, stop: BorrowedFd<'_>, limit: Option<Duration>) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.table, PollFlags::PRI), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        let limit = limit.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))?;
        Ok(fds[1].revents().is_empty())
    }

    /// Whether anything has changed since the last call, or since the start.
    ///
    /// # Errors
    /// As poll(2).
    pub fn has_changed(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.table, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&now)))?;
        // A table is always readable. A change is reported as an exceptional condition.
        Ok(fds[0].revents().intersects(PollFlags::PRI | PollFlags::ERR))
    }
}
