//! A client's connection with its stream: receives, lets the peer handle, sends all that is ready at once.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::Instant;

use farfork_fabric::transport::Stream;
use farfork_wire::rpc::FrameError;
use rustix::event::epoll;

use super::peer::{Peer, Service};
use super::session::Session;
use crate::inbound::Staging;
use crate::spool::SLICES_MAX;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("it broke: {0}")]
    Broken(#[from] io::Error),
    #[error("its client closed it")]
    Closed,
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl Trouble {
    /// Who violates the protocol is named; connections come and go otherwise.
    pub(super) fn log(&self, peer: &str) {
        match self {
            Self::Frame(_) => tracing::warn!(peer, cause = %self, "an RPC connection ends"),
            _ => tracing::debug!(peer, cause = %self, "an RPC connection ends"),
        }
    }
}

/// What a turn leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing came.
    Idle,
    /// Something came; there may be more.
    Received,
}

/// One client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    pub(super) peer: Peer,
    /// Whether both ends have come to trust each other, where they have to.
    shaken: bool,
    /// Who it is, for the log.
    pub(super) name: String,
    /// The last round that it had a turn in.
    pub(super) turned_in: u64,
    interest: epoll::EventFlags,
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Stream>, epoll: &OwnedFd, token: u64, now: Instant) -> io::Result<Self> {
        let interest = epoll::EventFlags::IN;
        let socket = stream.socket().ok_or(io::ErrorKind::Unsupported)?;
        let name = rustix::net::getpeername(socket)?.and_then(|address| std::net::SocketAddr::try_from(address).ok());
        let name = name.map_or_else(|| "unnamed".to_owned(), |address| address.to_string());
        epoll::add(epoll, socket, epoll::EventData::new_u64(token), interest)?;
        Ok(Self { peer: Peer::new(now), shaken: false, name, turned_in: 0, interest, stream })
    }

    /// Receives once, and handles what came.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        staging: &mut Staging,
        service: &mut impl Service,
    ) -> Result<Turn, Trouble> {
        if !self.shaken {
            self.shaken = self.stream.shake()?;
            if !self.shaken {
                return Ok(Turn::Idle);
            }
            if let Some(proved) = self.stream.peer() {
                self.name = format!("{proved} at {}", self.name);
            }
        }
        let had_work = self.peer.has_work();
        if !had_work && !self.peer.may_receive() {
            return Ok(Turn::Idle);
        }
        self.peer.load(staging);
        if !had_work {
            match self.stream.receive(&mut self.peer.spaces(staging)) {
                Ok(Some(count)) if count > 0 => self.peer.received(staging, count, now),
                other => {
                    self.peer.keep(staging);
                    return if other?.is_some() { Err(Trouble::Closed) } else { Ok(Turn::Idle) };
                }
            }
        }
        let handled = self.peer.handle(staging, &Instant::now, service);
        if let Err(violation) = handled {
            // It still learns what was answered before, and who is here.
            let _ = self.send(now);
            return Err(violation.into());
        }
        Ok(Turn::Received)
    }

    /// Sends what waits, and waits for what can help: requests unless too many replies wait, room while any do.
    pub(super) fn flush(&mut self, now: Instant, epoll: &OwnedFd, token: u64) -> Result<(), Trouble> {
        self.send(now)?;
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, self.peer.may_receive());
        let has_unsent = self.shaken && self.peer.unsent_bytes() > 0;
        interest.set(epoll::EventFlags::OUT, has_unsent || self.stream.has_unsent());
        if interest != self.interest {
            let socket = self.stream.socket().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
            epoll::modify(epoll, socket, epoll::EventData::new_u64(token), interest).map_err(io::Error::from)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Whether its client may still be there.
    pub(super) fn check(&self) -> Result<(), Trouble> {
        Ok(self.stream.check()?)
    }

    fn send(&mut self, now: Instant) -> Result<(), Trouble> {
        if !self.shaken {
            return Ok(());
        }
        while self.peer.unsent_bytes() > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.peer.slices(&mut slices);
            let Some(sent) = self.stream.send(&slices[..count])? else { return Ok(()) };
            self.peer.sent(sent, now);
        }
        if self.stream.has_unsent() {
            self.stream.send(&[])?;
        }
        Ok(())
    }

    pub(super) fn into_sessions(self) -> impl Iterator<Item = Box<Session>> {
        self.peer.into_sessions()
    }
}
