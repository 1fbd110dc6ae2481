//! The event source of a requester: one file descriptor for the lifetime of the connection, although its sockets
//! change.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The events that a stream waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) receive: bool,
    pub(crate) send: bool,
}

impl Interest {
    /// Waits until the socket accepts bytes: a connecting socket does so once it is connected.
    pub(crate) const SEND_ONLY: Self = Self { receive: false, send: true };

    pub(crate) fn to_epoll_flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.receive);
        flags.set(epoll::EventFlags::OUT, self.send);
        flags
    }
}

/// The environment of a requester: the events for which it waits, and its clock.
pub(crate) trait EventSource: fmt::Debug + Send {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Returns a descriptor that is readable when there is something to do, if the source has one.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Watches a new socket from now on. The previous socket was closed.
    fn set_socket(&mut self, socket: Option<BorrowedFd<'_>>, interest: Interest) -> io::Result<()>;

    /// Changes the events of the socket.
    fn set_interest(&mut self, socket: Option<BorrowedFd<'_>>, interest: Interest) -> io::Result<()>;

    /// Waits until there is something to do, at most until `until`. A source without a descriptor calls `is_ready`.
    fn wait(&self, until: Option<Instant>, is_ready: &dyn Fn() -> bool) -> io::Result<()>;
}

/// The event source of requesters with sockets: an epoll(7) descriptor.
#[derive(Debug)]
pub(crate) struct EpollEventSource {
    epoll: OwnedFd,
    interest: Interest,
}

impl EpollEventSource {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, interest: Interest::SEND_ONLY })
    }
}

impl EventSource for EpollEventSource {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn set_socket(&mut self, socket: Option<BorrowedFd<'_>>, interest: Interest) -> io::Result<()> {
        let Some(socket) = socket else { return Ok(()) };
        self.interest = interest;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(0), interest.to_epoll_flags())?)
    }

    fn set_interest(&mut self, socket: Option<BorrowedFd<'_>>, interest: Interest) -> io::Result<()> {
        if self.interest == interest {
            return Ok(());
        }
        let Some(socket) = socket else { return Ok(()) };
        self.interest = interest;
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(0), interest.to_epoll_flags())?)
    }

    fn wait(&self, until: Option<Instant>, _: &dyn Fn() -> bool) -> io::Result<()> {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
