//! The owner's end of `sim`: an actor of the world takes the place of a real server's threads.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::world::{Actor, ActorId, NodeId, SimAddress, SimListener, World};
use crate::buffer::BufferPool;
use crate::protocol::OwnerContext;
use crate::stream::{ServerConnection, TurnOutcome};
use crate::transport::{Security, Stream};
use crate::{Address, Exporter};

/// Interval between checks for stalled connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Serves an exporter's memory in a world. Dropping the server ends all connections at once.
pub struct SimServer {
    world: World,
    address: SimAddress,
    actor_id: ActorId,
    stage: Arc<Mutex<ServerStage>>,
}

/// The stage of a server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerStage {
    Serving,
    Draining,
    Drained,
}

impl SimServer {
    /// Starts to serve connections to an address.
    ///
    /// # Errors
    /// `AddrInUse`.
    pub fn start(world: &World, address: SimAddress, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        Self::start_secured(world, address, exporter, None)
    }

    /// As [`SimServer::start`], with `security` around each stream.
    ///
    /// # Errors
    /// As [`SimServer::start`].
    pub fn start_secured(
        world: &World,
        address: SimAddress,
        exporter: &Arc<dyn Exporter>,
        security: Option<Arc<dyn Security>>,
    ) -> io::Result<Self> {
        let stage = Arc::new(Mutex::new(ServerStage::Serving));
        let server_actor = ServerActor {
            world: world.clone(),
            listener: Some(world.listen(address)?),
            security,
            shared: OwnerContext::new(exporter),
            connections: BTreeMap::new(),
            next_token: 0,
            pool: BufferPool::default(),
            swept_at: world.local_time(address.node),
            stage: Arc::clone(&stage),
        };
        let actor = world.add_actor(address.node, Box::new(server_actor));
        Ok(Self { world: world.clone(), address, actor_id: actor, stage })
    }

    /// Stops accepting and receiving, serves received requests, and ends once all replies are sent or after `timeout`.
    pub fn close(self, timeout: Duration) {
        let stage = || *self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = ServerStage::Draining;
        self.world.run_until(self.world.now() + timeout, || stage() == ServerStage::Drained);
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> Address {
        Address::Sim(self.address)
    }
}

impl Drop for SimServer {
    fn drop(&mut self) {
        self.world.remove_actor(self.actor_id);
    }
}

impl fmt::Debug for SimServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

/// The actor that runs a server.
struct ServerActor {
    world: World,
    /// The listener; `None` once the server is draining.
    listener: Option<SimListener>,
    security: Option<Arc<dyn Security>>,
    shared: OwnerContext,
    connections: BTreeMap<u64, (ServerConnection, TurnOutcome)>,
    next_token: u64,
    pool: BufferPool,
    swept_at: Instant,
    stage: Arc<Mutex<ServerStage>>,
}

impl ServerActor {
    fn stage(&self) -> ServerStage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&mut self, now: Instant) {
        while let Some((stream, from)) = self.listener.as_ref().and_then(SimListener::accept) {
            let stream: Box<dyn Stream> = Box::new(stream);
            let secured = match &self.security {
                Some(security) => security.wrap_server(stream),
                None => Ok(stream),
            };
            let Ok(stream) = secured else { continue };
            let peer = ServerConnection::new(stream, self.node_name(from), false, now, &mut self.pool);
            self.connections.insert(self.next_token, (peer, TurnOutcome::HasMore));
            self.next_token += 1;
        }
    }

    fn node_name(&self, node: NodeId) -> String {
        self.world.node_name(node)
    }

    fn serve(&mut self, now: Instant) {
        let (shared, pool) = (&self.shared, &mut self.pool);
        self.connections.retain(|_, (peer, left)| {
            if !is_runnable(peer, *left) {
                return true;
            }
            match peer.run_turn(now, shared, pool) {
                Ok(turn_outcome) => {
                    *left = turn_outcome;
                    true
                }
                Err(_) => false,
            }
        });
    }

    fn drain(&mut self, now: Instant) {
        self.listener = None;
        self.connections.values_mut().for_each(|(peer, left)| {
            peer.stop_receiving();
            *left = TurnOutcome::HasMore;
        });
        self.serve(now);
        self.connections.retain(|_, (peer, _)| !peer.is_drained());
        if self.connections.is_empty() {
            *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = ServerStage::Drained;
        }
    }
}

fn is_runnable(peer: &ServerConnection, left: TurnOutcome) -> bool {
    let interest = peer.interest();
    left == TurnOutcome::HasMore || peer.stream().is_ready(interest.receive, interest.send)
}

impl Actor for ServerActor {
    fn run_turn(&mut self, now: Instant) {
        if self.stage() != ServerStage::Serving {
            return self.drain(now);
        }
        self.accept(now);
        self.serve(now);
        if now.saturating_duration_since(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            self.connections.retain(|_, (peer, _)| !peer.is_stalled(now) && peer.stream().check_peer_trusted().is_ok());
        }
    }

    fn is_ready(&self) -> bool {
        let finishing = self.stage() == ServerStage::Draining;
        finishing
            || self.listener.as_ref().is_some_and(SimListener::is_ready)
            || self.connections.values().any(|(peer, left)| is_runnable(peer, *left))
    }

    fn next_timeout(&self) -> Option<Instant> {
        (!self.connections.is_empty()).then(|| self.swept_at + SWEEP_INTERVAL)
    }
}
