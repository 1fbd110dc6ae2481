//! What a node holds of the simulated network: streams, attempts to connect, and listeners.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use super::network::{ACCEPTOR, DIALLER};
use super::{NodeId, Place, World};
use crate::transport;

/// One in so many receipts brings less than there is.
const SHORT_RECEIPTS: u32 = 8;

/// One end of a simulated connection. Dropping it closes the connection behind what was sent.
pub struct Stream {
    world: World,
    connection: u64,
    side: usize,
}

impl Stream {
    pub(super) fn new(world: &World, connection: u64, side: usize) -> Self {
        Self { world: world.clone(), connection, side }
    }

    /// The connection's number in its world, which the trace names it by.
    pub fn number(&self) -> u64 {
        self.connection
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}.{})", self.connection, self.side)
    }
}

impl transport::Stream for Stream {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let mut network = self.world.network();
        let (short, mut draw) = (network.random.u32(..SHORT_RECEIPTS) == 0, network.random.fork());
        let pipe = &mut network.connection(self.connection).ok_or(ErrorKind::ConnectionReset)?.pipes[self.side];
        if pipe.is_broken() {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if pipe.is_at_end() {
            return Ok(Some(0));
        }
        let waiting = pipe.waiting_bytes();
        if waiting == 0 {
            return Ok(None);
        }
        let most = if short { draw.usize(1..=waiting) } else { waiting };
        Ok(Some(pipe.take(spaces, most)))
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let mut network = self.world.network();
        let connection = network.connection(self.connection).ok_or(ErrorKind::BrokenPipe)?;
        if connection.pipes[self.side].is_broken() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let mut sent = 0;
        for slice in slices {
            let count = network.send(self.connection, self.side, slice);
            sent += count;
            if count < slice.len() {
                break;
            }
        }
        let nothing = sent == 0 && slices.iter().any(|slice| !slice.is_empty());
        Ok(if nothing { None } else { Some(sent) })
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_ready(&self, receive: bool, send: bool) -> bool {
        let network = self.world.network();
        let Some(connection) = network.peek(self.connection) else { return true };
        let (own, other) = (&connection.pipes[self.side], &connection.pipes[1 - self.side]);
        own.is_broken() || (receive && own.is_readable()) || (send && other.room() > 0)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.world.network().close(self.connection, self.side);
    }
}

/// An attempt to connect.
#[derive(Debug)]
pub struct Dialling {
    stream: Option<Stream>,
}

impl Dialling {
    pub(super) fn new(world: &World, connection: u64) -> Self {
        Self { stream: Some(Stream::new(world, connection, DIALLER)) }
    }

    /// The connection, once it is there; `None` before, and after it was given.
    ///
    /// # Errors
    /// `ConnectionRefused` where nobody listens.
    pub fn finish(&mut self) -> io::Result<Option<Stream>> {
        let Some(stream) = &self.stream else { return Ok(None) };
        let answered = stream.world.network().peek(stream.connection).and_then(|connection| connection.answered);
        match answered {
            None => Ok(None),
            Some(true) => Ok(self.stream.take()),
            Some(false) => Err(ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Whether [`Dialling::finish`] would say something.
    pub fn is_ready(&self) -> bool {
        let answered = |stream: &Stream| {
            stream.world.network().peek(stream.connection).is_none_or(|connection| connection.answered.is_some())
        };
        self.stream.as_ref().is_some_and(answered)
    }
}

/// A place that accepts connections until it is dropped.
pub struct Listener {
    world: World,
    at: Place,
}

impl Listener {
    pub(super) fn new(world: &World, at: Place) -> Self {
        Self { world: world.clone(), at }
    }

    /// The next connection that waits, and the node that it came from.
    pub fn accept(&self) -> Option<(Stream, NodeId)> {
        let mut network = self.world.network();
        let connection = network.accept(self.at)?;
        let from = network.dialler_of(connection)?;
        drop(network);
        Some((Stream::new(&self.world, connection, ACCEPTOR), from))
    }

    /// Whether a connection waits.
    pub fn is_ready(&self) -> bool {
        self.world.network().can_accept(self.at)
    }

    /// Where it listens.
    pub fn place(&self) -> Place {
        self.at
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.at)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.world.network().unlisten(self.at);
    }
}
