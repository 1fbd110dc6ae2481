//! The requester's end of `sim`.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::ConnectionName;

use super::Dialer;
use super::world::{NodeId, Place, World};
use crate::stream::{Interest, Link, Parts, Rim};
use crate::transport::Security;
use crate::{Address, Connection};

/// Begins to connect, from a node to a place. While the connection is waited for, the world goes on.
pub fn connect(world: &World, from: NodeId, to: Place, security: Option<Arc<dyn Security>>) -> Box<dyn Connection> {
    let (address, dialer) = (Address::Sim(to), Box::new(Dialer::new(world, from, to)));
    let rim = Box::new(WorldRim { world: world.clone(), node: from });
    let parts = Parts { address, dialer, security, rim, name: name_from(world) };
    let mut link = Link::new(parts);
    link.connect(world.now_at(from));
    Box::new(link)
}

fn name_from(world: &World) -> ConnectionName {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&world.random_below(u64::MAX).to_le_bytes());
    bytes[8..].copy_from_slice(&world.random_below(u64::MAX).to_le_bytes());
    ConnectionName::from_bytes(bytes)
}

/// Where a requester meets its world.
#[derive(Debug)]
struct WorldRim {
    world: World,
    node: NodeId,
}

impl Rim for WorldRim {
    fn clock(&self) -> Instant {
        self.world.now_at(self.node)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn attach(&mut self, _: Option<BorrowedFd<'_>>, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn watch(&mut self, _: Option<BorrowedFd<'_>>, _: Interest) -> io::Result<()> {
        Ok(())
    }

    /// # Errors
    /// `TimedOut` where nothing can happen any more that ends the wait.
    fn wait(&self, until: Option<Instant>, is_ready: &dyn Fn() -> bool) -> io::Result<()> {
        let until = until.map_or_else(|| self.world.end(), |until| self.world.right_time(self.node, until));
        let ended = self.world.run_until(until, || self.world.is_awake(self.node) && is_ready());
        if !ended && until == self.world.end() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}
