//! One socket's life at the requester: what waits to be sent through it, what has come.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use farfork_wire::frame::{FrameError, Header, encode_hello};
use rustix::event::epoll;

use super::socket;
use crate::LinkError;
use crate::buffer::{Buffer, Pool};
use crate::protocol::{Event, Inbound, Outbound, brings_descriptor};

/// Size of the staging area, in bytes: a burst of seven single pages with one system call; of a longer reply, the part
/// that is copied once more.
const STAGING_BYTES: usize = 32 << 10;

/// Most request bytes that are put together before they are sent: thousands of requests.
const OUTBOUND_BYTES_MAX: usize = 256 << 10;

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Session {
    socket: OwnedFd,
    inbound: Inbound,
    outbound: Outbound,
    /// Descriptors that came, for the frames that they belong to.
    descriptors: VecDeque<OwnedFd>,
    /// What the epoll waits for.
    interest: epoll::EventFlags,
    scratch: Vec<u8>,
}

/// What one system call brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// Whether there was more room, so that the socket has no more for now.
    pub(crate) drained: bool,
}

impl Session {
    /// What the epoll waits for until the socket is connected.
    pub(crate) const FIRST_INTEREST: epoll::EventFlags = epoll::EventFlags::OUT;

    /// Begins with the greeting.
    pub(crate) fn new(socket: OwnedFd, pool: &mut Pool) -> Self {
        let mut outbound = Outbound::default();
        outbound.append(&encode_hello(), pool);
        Self {
            socket,
            inbound: Inbound::new(STAGING_BYTES),
            outbound,
            descriptors: VecDeque::new(),
            interest: Self::FIRST_INTEREST,
            scratch: Vec::new(),
        }
    }

    /// Sends what waits and what `encode` appends, until that is nothing or the socket takes no more; in the latter
    /// case `epoll` waits for room.
    pub(crate) fn transmit(
        &mut self,
        epoll: &OwnedFd,
        pool: &mut Pool,
        mut encode: impl FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<(), LinkError> {
        let blocked = loop {
            while self.outbound.queued() < OUTBOUND_BYTES_MAX {
                self.scratch.clear();
                if !encode(&mut self.scratch) {
                    break;
                }
                self.outbound.append(&self.scratch, pool);
            }
            if self.outbound.queued() == 0 {
                break false;
            }
            match socket::send(&self.socket, &self.outbound).map_err(LinkError::Broken)? {
                Some(sent) => self.outbound.sent(sent, pool),
                None => break true,
            }
        };
        self.watch(epoll, blocked)
    }

    fn watch(&mut self, epoll: &OwnedFd, blocked: bool) -> Result<(), LinkError> {
        let mut interest = epoll::EventFlags::IN;
        interest.set(epoll::EventFlags::OUT, blocked);
        if interest != self.interest {
            epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(0), interest)
                .map_err(|errno| LinkError::Broken(errno.into()))?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Receives with one system call; `None` when there is nothing now.
    pub(crate) fn receive(&mut self) -> Result<Option<Received>, LinkError> {
        let mut spaces = self.inbound.spaces();
        let room: usize = spaces.iter().map(|space| space.len()).sum();
        let received = socket::receive(&self.socket, &mut spaces, Some(&mut self.descriptors));
        match received.map_err(LinkError::Broken)? {
            None => Ok(None),
            Some(0) => Err(LinkError::Closed),
            Some(bytes) => {
                self.inbound.received(bytes);
                Ok(Some(Received { bytes, drained: bytes < room }))
            }
        }
    }

    /// The next frame that is complete, with the descriptor that belongs to it.
    pub(crate) fn next_frame(
        &mut self,
        pool: &mut Pool,
    ) -> Result<Option<(Header, Buffer, Option<OwnedFd>)>, LinkError> {
        let (header, body) = loop {
            match self.inbound.next(pool)? {
                None => return Ok(None),
                Some(Event::Hello) => {}
                Some(Event::Frame(header, body)) => break (header, body),
            }
        };
        if !brings_descriptor(&header) {
            return Ok(Some((header, body, None)));
        }
        let missing = FrameError::Body { kind: header.kind, what: "its file descriptor is missing" };
        let descriptor = self.descriptors.pop_front().ok_or(missing)?;
        Ok(Some((header, body, Some(descriptor))))
    }
}
