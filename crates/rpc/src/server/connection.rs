//! A client's connection with its stream: receives, lets the peer handle, sends all that is ready at once.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use farfork_fabric::transport::Stream;
use farfork_wire::rpc::FrameError;

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
    /// Whether its client did what it must not, or is nobody who may be here: such a one is named. Connections come and go
    /// otherwise.
    pub(super) fn is_violation(&self) -> bool {
        match self {
            Self::Frame(_) => true,
            Self::Broken(cause) => matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidData),
            Self::Closed => false,
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

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interest {
    /// Something to receive.
    pub(super) receive: bool,
    /// Room to send.
    pub(super) send: bool,
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
    /// What whoever waits for its socket was told; nothing yet, of a new one.
    pub(super) watched: Option<Interest>,
    /// Bytes that are counted as its own among those of the server.
    pub(super) counted_bytes: usize,
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Stream>, from: String, now: Instant) -> Self {
        Self { peer: Peer::new(now), shaken: false, name: from, turned_in: 0, watched: None, counted_bytes: 0, stream }
    }

    /// The socket to wait for, where there is one.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.socket()
    }

    /// Where there is no socket to wait for: whether a turn would find something to do.
    pub(super) fn is_ready(&self) -> bool {
        let Interest { receive, send } = self.interest();
        self.stream.is_ready(receive, send)
    }

    /// Receives once, and handles what came.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        clock: &dyn Fn() -> Instant,
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
        let handled = self.peer.handle(staging, clock, service);
        if let Err(violation) = handled {
            // It still learns what was answered before, and who is here.
            let _ = self.send(now);
            return Err(violation.into());
        }
        Ok(Turn::Received)
    }

    /// What can help it on: requests unless too many replies wait, room while any do.
    pub(super) fn interest(&self) -> Interest {
        let has_unsent = self.shaken && self.peer.unsent_bytes() > 0;
        Interest { receive: self.peer.may_receive(), send: has_unsent || self.stream.has_unsent() }
    }

    /// Whether its client may still be there.
    pub(super) fn check(&self) -> io::Result<()> {
        self.stream.check()
    }

    /// Sends what waits, as far as that goes now.
    pub(super) fn send(&mut self, now: Instant) -> Result<(), Trouble> {
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
