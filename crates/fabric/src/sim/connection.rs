//! The requester's end of `sim`: a link whose event source is a simulated world.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::ConnectionId;

use super::SimDialer;
use super::world::{NodeId, SimAddress, World};
use crate::stream::{EventSource, Interest, Link, LinkConfig};
use crate::transport::Security;
use crate::{Address, Connection};

/// Starts to connect from a node to an address. [`Connection::wait`] runs the world.
pub fn connect(
    world: &World,
    from: NodeId,
    to: SimAddress,
    security: Option<Arc<dyn Security>>,
) -> Box<dyn Connection> {
    let (address, dialer) = (Address::Sim(to), Box::new(SimDialer::new(world, from, to)));
    let event_source = Box::new(SimEventSource { world: world.clone(), node: from });
    let parts = LinkConfig { address, dialer, security, event_source, connection_id: connection_id_from(world) };
    let mut link = Link::new(parts);
    link.connect(world.local_time(from));
    Box::new(link)
}

fn connection_id_from(world: &World) -> ConnectionId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&world.random_below(u64::MAX).to_le_bytes());
    bytes[8..].copy_from_slice(&world.random_below(u64::MAX).to_le_bytes());
    ConnectionId::from_bytes(bytes)
}

/// The event source of a requester in a world.
#[derive(Debug)]
struct SimEventSource {
    world: World,
    node: NodeId,
}

impl EventSource for SimEventSource {
    fn now(&self) -> Instant {
        self.world.local_time(self.node)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_socket(&mut self, _: Option<BorrowedFd<'_>>, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn set_interest(&mut self, _: Option<BorrowedFd<'_>>, _: Interest) -> io::Result<()> {
        Ok(())
    }

    /// # Errors
    /// `TimedOut` if no event is left that could end the wait.
    fn wait(&self, until: Option<Instant>, is_ready: &dyn Fn() -> bool) -> io::Result<()> {
        let until = until.map_or_else(|| self.world.end_of_time(), |until| self.world.to_world_time(self.node, until));
        let ended = self.world.run_until(until, || self.world.is_running(self.node) && is_ready());
        if !ended && until == self.world.end_of_time() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}
