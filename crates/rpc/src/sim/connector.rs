//! A client's connector in a simulated world.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use farfork_fabric::Address;
use farfork_fabric::sim::World;
use farfork_fabric::sim::world::{NodeId, SimAddress, SimConnectAttempt};
use farfork_fabric::transport::{Security, Stream};

use crate::client;

/// Connects from a node to an address.
#[derive(Debug)]
pub struct SimConnector {
    world: World,
    from: NodeId,
    to: SimAddress,
    security: Option<Arc<dyn Security>>,
}

impl SimConnector {
    /// Creates a connector from this node to this address, with or without security.
    pub fn new(world: &World, from: NodeId, to: SimAddress, security: Option<Arc<dyn Security>>) -> Self {
        Self { world: world.clone(), from, to, security }
    }
}

impl client::Connector for SimConnector {
    fn connect(&mut self) -> io::Result<Box<dyn Stream>> {
        let connecting_stream = Box::new(ConnectingStream::Connecting(self.world.dial(self.from, self.to)));
        match &self.security {
            Some(security) => security.wrap_client(connecting_stream, &Address::Sim(self.to)),
            None => Ok(connecting_stream),
        }
    }
}

/// A stream that receives nothing and accepts no bytes until it is connected, like a connecting socket.
#[derive(Debug)]
enum ConnectingStream {
    Connecting(SimConnectAttempt),
    Connected(Box<dyn Stream>),
}

impl ConnectingStream {
    fn poll_stream(&mut self) -> io::Result<Option<&mut Box<dyn Stream>>> {
        if let Self::Connecting(attempt) = self {
            let Some(stream) = attempt.poll()? else { return Ok(None) };
            *self = Self::Connected(Box::new(stream));
        }
        match self {
            Self::Connected(stream) => Ok(Some(stream)),
            Self::Connecting(_) => Ok(None),
        }
    }
}

impl Stream for ConnectingStream {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        self.poll_stream()?.map_or(Ok(None), |stream| stream.receive(spaces))
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.poll_stream()?.map_or(Ok(None), |stream| stream.send(slices))
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_ready(&self, receive: bool, send: bool) -> bool {
        match self {
            Self::Connecting(attempt) => attempt.is_ready(),
            Self::Connected(stream) => stream.is_ready(receive, send),
        }
    }
}
