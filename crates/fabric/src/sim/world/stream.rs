//! A node's handles on the simulated network: streams, attempts to connect, and listeners.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use super::network::{ACCEPTOR_SIDE, DIALER_SIDE};
use super::{NodeId, SimAddress, World};
use crate::transport;

/// On average, one of this many receive calls returns fewer bytes than have arrived.
const SHORT_READ_INTERVAL: u32 = 8;

/// One end of a simulated connection. Dropping it closes the connection after the sent bytes.
pub struct SimStream {
    world: World,
    connection: u64,
    side: usize,
}

impl SimStream {
    pub(super) fn new(world: &World, connection: u64, side: usize) -> Self {
        Self { world: world.clone(), connection, side }
    }

    /// Returns the connection's number in its world, as in the trace.
    pub fn connection_number(&self) -> u64 {
        self.connection
    }
}

impl fmt::Debug for SimStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}.{})", self.connection, self.side)
    }
}

impl transport::Stream for SimStream {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let mut network = self.world.network();
        let (short, mut random) = (network.random.u32(..SHORT_READ_INTERVAL) == 0, network.random.fork());
        let pipe = &mut network.connection_mut(self.connection).ok_or(ErrorKind::ConnectionReset)?.pipes[self.side];
        if pipe.is_reset() {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if pipe.is_eof() {
            return Ok(Some(0));
        }
        let waiting = pipe.readable_bytes();
        if waiting == 0 {
            return Ok(None);
        }
        let most = if short { random.usize(1..=waiting) } else { waiting };
        Ok(Some(pipe.read_into(spaces, most)))
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let mut network = self.world.network();
        let connection = network.connection_mut(self.connection).ok_or(ErrorKind::BrokenPipe)?;
        if connection.pipes[self.side].is_reset() {
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
        let Some(connection) = network.find_connection(self.connection) else { return true };
        let (own, other) = (&connection.pipes[self.side], &connection.pipes[1 - self.side]);
        own.is_reset() || (receive && own.is_readable()) || (send && other.free_bytes() > 0)
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.world.network().close(self.connection, self.side);
    }
}

/// An attempt to connect.
#[derive(Debug)]
pub struct SimConnectAttempt {
    stream: Option<SimStream>,
}

impl SimConnectAttempt {
    pub(super) fn new(world: &World, connection: u64) -> Self {
        Self { stream: Some(SimStream::new(world, connection, DIALER_SIDE)) }
    }

    /// Returns the stream once it is connected; `None` before that, and after the stream was returned.
    ///
    /// # Errors
    /// `ConnectionRefused` if there is no listener.
    pub fn poll(&mut self) -> io::Result<Option<SimStream>> {
        let Some(stream) = &self.stream else { return Ok(None) };
        let answered =
            stream.world.network().find_connection(stream.connection).and_then(|connection| connection.accepted);
        match answered {
            None => Ok(None),
            Some(true) => Ok(self.stream.take()),
            Some(false) => Err(ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Whether [`SimConnectAttempt::poll`] would return a stream or an error.
    pub fn is_ready(&self) -> bool {
        let answered = |stream: &SimStream| {
            stream
                .world
                .network()
                .find_connection(stream.connection)
                .is_none_or(|connection| connection.accepted.is_some())
        };
        self.stream.as_ref().is_some_and(answered)
    }
}

/// A listener that accepts connections until it is dropped.
pub struct SimListener {
    world: World,
    address: SimAddress,
}

impl SimListener {
    pub(super) fn new(world: &World, at: SimAddress) -> Self {
        Self { world: world.clone(), address: at }
    }

    /// Accepts the next waiting connection. Returns its stream, and the node that opened it.
    pub fn accept(&self) -> Option<(SimStream, NodeId)> {
        let mut network = self.world.network();
        let connection = network.accept(self.address)?;
        let from = network.dialer_node(connection)?;
        drop(network);
        Some((SimStream::new(&self.world, connection, ACCEPTOR_SIDE), from))
    }

    /// Whether a connection waits to be accepted.
    pub fn is_ready(&self) -> bool {
        self.world.network().can_accept(self.address)
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SimAddress {
        self.address
    }
}

impl fmt::Debug for SimListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.address)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.world.network().remove_listener(self.address);
    }
}
