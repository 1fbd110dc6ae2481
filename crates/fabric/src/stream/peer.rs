//! One requester's connection at the owner. It works in turns of bounded length, so that no requester holds up
//! another, and reads no further requests while the requester does not take its replies, so that none exhausts memory.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::socket;
use crate::buffer::Pool;
use crate::protocol::{Event, Inbound, Outbound, Owner};
use crate::{Exporter, LinkError};

/// Size of the staging area, in bytes: some hundred requests with one system call.
const STAGING_BYTES: usize = 16 << 10;

/// Reply bytes that may wait for a requester before its further requests do. One more reply may exceed it.
const OUTBOUND_BYTES_MAX: usize = 2 << 20;

/// Reply bytes of one turn. One more reply may exceed it.
const TURN_BYTES_MAX: usize = 512 << 10;

/// How long a connection may go without a greeting.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long replies may wait without any being taken. A pager that was stopped for longer connects again.
const STALL_MAX: Duration = Duration::from_secs(30);

/// What a turn leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing, until the socket has something or takes something.
    Waits,
    /// Requests that were received but not served yet.
    HasMore,
}

/// One requester's connection.
#[derive(Debug)]
pub(crate) struct Peer {
    socket: OwnedFd,
    inbound: Inbound,
    outbound: Outbound,
    owner: Owner,
    /// Whether there may be requests that were received but not served.
    backlog: bool,
    /// What the epoll waits for.
    interest: epoll::EventFlags,
    /// When it last got on: when it came, when replies were taken, or when none waited.
    progress_at: Instant,
}

impl Peer {
    /// What the epoll waits for at first.
    pub(crate) const FIRST_INTEREST: epoll::EventFlags = epoll::EventFlags::IN;

    pub(crate) fn new(socket: OwnedFd, same_host: bool, now: Instant, pool: &mut Pool) -> Self {
        let mut outbound = Outbound::default();
        let owner = Owner::new(same_host, &mut outbound, pool);
        Self {
            socket,
            inbound: Inbound::new(STAGING_BYTES),
            outbound,
            owner,
            backlog: false,
            interest: Self::FIRST_INTEREST,
            progress_at: now,
        }
    }

    /// Receives, serves, sends: as much as a turn may.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        exporter: &dyn Exporter,
        pool: &mut Pool,
        epoll: &OwnedFd,
        token: u64,
    ) -> Result<Turn, LinkError> {
        if self.outbound.queued() == 0 {
            self.progress_at = now;
        }
        let served = self.receive().and_then(|()| self.serve(exporter, pool));
        // Who violates the protocol still learns what was served before, and who is here.
        self.send(now, pool)?;
        served?;
        let has_more = self.backlog && !self.is_full();
        self.watch(epoll, token)?;
        Ok(if has_more { Turn::HasMore } else { Turn::Waits })
    }

    /// Whether it did not get on for too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.progress_at);
        (!self.inbound.greeted() && since >= HELLO_WAIT_MAX) || (self.outbound.queued() > 0 && since >= STALL_MAX)
    }

    fn is_full(&self) -> bool {
        self.outbound.queued() >= OUTBOUND_BYTES_MAX
    }

    fn receive(&mut self) -> Result<(), LinkError> {
        if self.backlog || self.is_full() {
            return Ok(());
        }
        let mut spaces = self.inbound.spaces();
        match socket::receive(&self.socket, &mut spaces, None).map_err(LinkError::Broken)? {
            Some(0) => Err(LinkError::Closed),
            Some(count) => {
                self.inbound.received(count);
                self.backlog = true;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn serve(&mut self, exporter: &dyn Exporter, pool: &mut Pool) -> Result<(), LinkError> {
        let queued_before = self.outbound.queued();
        while self.backlog && !self.is_full() && self.outbound.queued() - queued_before < TURN_BYTES_MAX {
            match self.inbound.next(pool)? {
                Some(Event::Frame(header, body)) => {
                    self.owner.serve(&header, &body, exporter, &mut self.outbound, pool)?;
                    pool.put(body);
                }
                Some(Event::Hello) => {}
                None => self.backlog = false,
            }
        }
        Ok(())
    }

    fn send(&mut self, now: Instant, pool: &mut Pool) -> Result<(), LinkError> {
        while self.outbound.queued() > 0 {
            let Some(sent) = socket::send(&self.socket, &self.outbound).map_err(LinkError::Broken)? else {
                break;
            };
            self.outbound.sent(sent, pool);
            self.progress_at = now;
        }
        Ok(())
    }

    /// Waits for what can help: requests unless too many replies wait, room while any do.
    fn watch(&mut self, epoll: &OwnedFd, token: u64) -> Result<(), LinkError> {
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, !self.backlog && !self.is_full());
        interest.set(epoll::EventFlags::OUT, self.outbound.queued() > 0);
        if interest != self.interest {
            epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(token), interest)
                .map_err(|errno| LinkError::Broken(errno.into()))?;
            self.interest = interest;
        }
        Ok(())
    }
}
