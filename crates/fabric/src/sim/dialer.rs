//! Connects streams in a simulated world.

use std::io;
use std::os::fd::BorrowedFd;

use super::world::{NodeId, SimAddress, SimConnectAttempt, World};
use crate::transport::{self, ConnectAttempt, Stream};

/// Connects from a node to an address.
#[derive(Debug)]
pub struct SimDialer {
    world: World,
    from: NodeId,
    to: SimAddress,
}

impl SimDialer {
    /// Creates a dialer from this node to this address.
    pub fn new(world: &World, from: NodeId, to: SimAddress) -> Self {
        Self { world: world.clone(), from, to }
    }
}

impl transport::Dialer for SimDialer {
    fn dial(&mut self) -> io::Result<Box<dyn ConnectAttempt>> {
        Ok(Box::new(self.world.dial(self.from, self.to)))
    }
}

impl ConnectAttempt for SimConnectAttempt {
    fn poll(&mut self) -> io::Result<Option<Box<dyn Stream>>> {
        Ok(Self::poll(self)?.map(|stream| Box::new(stream) as Box<dyn Stream>))
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }
}
