//! The descriptors for which the server's loop waits (epoll(7)), each identified by an `EventSource`.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::pager::journal::AddressSpaceId;
use crate::pager::owner_connections::{Lane, OwnerKey};

/// Maximum number of descriptors that one wait reports. Others are reported in the next round. None starves, since
/// epoll reports them in turn.
const EVENTS_MAX: usize = 64;

/// The object to which a watched descriptor belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::pager) enum EventSource {
    /// The control socket.
    Listener,
    /// The keeper's pidfd.
    Keeper,
    /// A client of the control socket.
    Client(u64),
    /// The socket on which a child's userfaultfd will arrive.
    UffdSocket(u64),
    /// A child's address space.
    Space(u64, AddressSpaceId),
    /// A connection to an owner.
    Owner(OwnerKey, Lane),
}

/// The sources that are watched for input, level-triggered.
pub(in crate::pager) struct EventPoller {
    epoll: OwnedFd,
    sources: HashMap<u64, EventSource>,
    tokens: HashMap<EventSource, u64>,
    next_token: u64,
    events: Vec<epoll::Event>,
}

impl EventPoller {
    /// Creates a poller that watches nothing.
    ///
    /// # Errors
    /// As epoll_create1(2).
    pub(in crate::pager) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sources: HashMap::new(),
            tokens: HashMap::new(),
            next_token: 0,
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    /// Returns the epoll descriptor, which is readable while a source is ready.
    pub(in crate::pager) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches a source.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub(in crate::pager) fn add(&mut self, source: EventSource, fd: impl AsFd) -> io::Result<()> {
        let token = self.next_token;
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        self.next_token += 1;
        self.sources.insert(token, source);
        self.tokens.insert(source, token);
        Ok(())
    }

    /// Stops watching a source. Must be called before its descriptor is closed: if other processes hold the same open
    /// file description, a close does not end the watch.
    pub(in crate::pager) fn remove(&mut self, source: EventSource, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
        if let Some(token) = self.tokens.remove(&source) {
            self.sources.remove(&token);
        }
    }

    /// Forgets a source whose descriptor is already closed.
    pub(in crate::pager) fn remove_closed(&mut self, source: EventSource) {
        if let Some(token) = self.tokens.remove(&source) {
            self.sources.remove(&token);
        }
    }

    /// Waits until a source is ready, at most `limit`.
    ///
    /// # Errors
    /// As epoll_wait(2), except EINTR.
    pub(in crate::pager) fn wait(&mut self, limit: Duration, ready: &mut Vec<EventSource>) -> io::Result<()> {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        ready.extend(self.events.iter().filter_map(|event| self.sources.get(&event.data.u64())));
        Ok(())
    }
}
