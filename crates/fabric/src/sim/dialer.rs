//! Connecting in a simulated world.

use std::io;
use std::os::fd::BorrowedFd;

use super::world::{Dialling, NodeId, Place, World};
use crate::transport::{self, Attempt, Stream};

/// Connects from a node to a place.
#[derive(Debug)]
pub struct Dialer {
    world: World,
    from: NodeId,
    to: Place,
}

impl Dialer {
    /// From this node to this place.
    pub fn new(world: &World, from: NodeId, to: Place) -> Self {
        Self { world: world.clone(), from, to }
    }
}

impl transport::Dialer for Dialer {
    fn dial(&mut self) -> io::Result<Box<dyn Attempt>> {
        Ok(Box::new(self.world.dial(self.from, self.to)))
    }
}

impl Attempt for Dialling {
    fn finish(&mut self) -> io::Result<Option<Box<dyn Stream>>> {
        Ok(Self::finish(self)?.map(|stream| Box::new(stream) as Box<dyn Stream>))
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }
}
