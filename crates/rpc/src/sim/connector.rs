//! A client's connections in a simulated world.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use farfork_fabric::Address;
use farfork_fabric::sim::World;
use farfork_fabric::sim::world::{Dialling, NodeId, Place};
use farfork_fabric::transport::{Security, Stream};

use crate::client;

/// Makes connections from a node to a place.
#[derive(Debug)]
pub struct Connector {
    world: World,
    from: NodeId,
    to: Place,
    security: Option<Arc<dyn Security>>,
}

impl Connector {
    /// From this node to this place, protected or in clear.
    pub fn new(world: &World, from: NodeId, to: Place, security: Option<Arc<dyn Security>>) -> Self {
        Self { world: world.clone(), from, to, security }
    }
}

impl client::Connector for Connector {
    fn connect(&mut self) -> io::Result<Box<dyn Stream>> {
        let begun = Box::new(Begun::Dialling(self.world.dial(self.from, self.to)));
        match &self.security {
            Some(security) => security.client(begun, &Address::Sim(self.to)),
            None => Ok(begun),
        }
    }
}

/// A stream that has nothing and takes nothing until it is there, as a socket that connects.
#[derive(Debug)]
enum Begun {
    Dialling(Dialling),
    There(Box<dyn Stream>),
}

impl Begun {
    fn get(&mut self) -> io::Result<Option<&mut Box<dyn Stream>>> {
        if let Self::Dialling(dialling) = self {
            let Some(stream) = dialling.finish()? else { return Ok(None) };
            *self = Self::There(Box::new(stream));
        }
        match self {
            Self::There(stream) => Ok(Some(stream)),
            Self::Dialling(_) => Ok(None),
        }
    }
}

impl Stream for Begun {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        self.get()?.map_or(Ok(None), |stream| stream.receive(spaces))
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.get()?.map_or(Ok(None), |stream| stream.send(slices))
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_ready(&self, receive: bool, send: bool) -> bool {
        match self {
            Self::Dialling(dialling) => dialling.is_ready(),
            Self::There(stream) => stream.is_ready(receive, send),
        }
    }
}
