//! The owner's end of `sim`: what a server's threads are to sockets, an actor is to a world.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::world::{Actor, ActorId, Listener, NodeId, Place, World};
use crate::buffer::Pool;
use crate::protocol::Shared;
use crate::stream::{Peer, Turn};
use crate::transport::{Security, Stream};
use crate::{Address, Exporter};

/// How often stalled connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Serves an exporter's memory in a world until it is dropped, which ends all connections at once.
pub struct Server {
    world: World,
    place: Place,
    actor: ActorId,
    stage: Arc<Mutex<Stage>>,
}

/// How far a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Working,
    Finishing,
    Finished,
}

impl Server {
    /// Serves what connects to a place.
    ///
    /// # Errors
    /// `AddrInUse`.
    pub fn start(world: &World, place: Place, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        Self::start_secured(world, place, exporter, None)
    }

    /// The same, with connections that something protects.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_secured(
        world: &World,
        place: Place,
        exporter: &Arc<dyn Exporter>,
        security: Option<Arc<dyn Security>>,
    ) -> io::Result<Self> {
        let stage = Arc::new(Mutex::new(Stage::Working));
        let desk = Desk {
            world: world.clone(),
            listener: Some(world.listen(place)?),
            security,
            shared: Shared::new(exporter),
            peers: BTreeMap::new(),
            next_peer: 0,
            pool: Pool::default(),
            swept_at: world.now_at(place.node),
            stage: Arc::clone(&stage),
        };
        let actor = world.add_actor(place.node, Box::new(desk));
        Ok(Self { world: world.clone(), place, actor, stage })
    }

    /// Accepts and receives nothing more, answers what was received, and ends once that is sent, within `patience`.
    pub fn close(self, patience: Duration) {
        let stage = || *self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage::Finishing;
        self.world.run_until(self.world.now() + patience, || stage() == Stage::Finished);
    }

    /// Where it is reached.
    pub fn address(&self) -> Address {
        Address::Sim(self.place)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.world.remove_actor(self.actor);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.place)
    }
}

/// The actor.
struct Desk {
    world: World,
    /// Absent once it finishes.
    listener: Option<Listener>,
    security: Option<Arc<dyn Security>>,
    shared: Shared,
    peers: BTreeMap<u64, (Peer, Turn)>,
    next_peer: u64,
    pool: Pool,
    swept_at: Instant,
    stage: Arc<Mutex<Stage>>,
}

impl Desk {
    fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&mut self, now: Instant) {
        while let Some((stream, from)) = self.listener.as_ref().and_then(Listener::accept) {
            let stream: Box<dyn Stream> = Box::new(stream);
            let secured = match &self.security {
                Some(security) => security.server(stream),
                None => Ok(stream),
            };
            let Ok(stream) = secured else { continue };
            let peer = Peer::new(stream, self.name_of(from), false, now, &mut self.pool);
            self.peers.insert(self.next_peer, (peer, Turn::HasMore));
            self.next_peer += 1;
        }
    }

    fn name_of(&self, node: NodeId) -> String {
        self.world.name(node)
    }

    fn serve(&mut self, now: Instant) {
        let (shared, pool) = (&self.shared, &mut self.pool);
        self.peers.retain(|_, (peer, left)| {
            if !wants_turn(peer, *left) {
                return true;
            }
            match peer.turn(now, shared, pool) {
                Ok(turn) => {
                    *left = turn;
                    true
                }
                Err(_) => false,
            }
        });
    }

    fn finish(&mut self, now: Instant) {
        self.listener = None;
        self.peers.values_mut().for_each(|(peer, left)| {
            peer.finish();
            *left = Turn::HasMore;
        });
        self.serve(now);
        self.peers.retain(|_, (peer, _)| !peer.is_done());
        if self.peers.is_empty() {
            *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage::Finished;
        }
    }
}

fn wants_turn(peer: &Peer, left: Turn) -> bool {
    let interest = peer.interest();
    left == Turn::HasMore || peer.stream().is_ready(interest.receive, interest.send)
}

impl Actor for Desk {
    fn turn(&mut self, now: Instant) {
        if self.stage() != Stage::Working {
            return self.finish(now);
        }
        self.accept(now);
        self.serve(now);
        if now.saturating_duration_since(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            self.peers.retain(|_, (peer, _)| !peer.is_stalled(now) && peer.stream().check().is_ok());
        }
    }

    fn is_ready(&self) -> bool {
        let finishing = self.stage() == Stage::Finishing;
        finishing
            || self.listener.as_ref().is_some_and(Listener::is_ready)
            || self.peers.values().any(|(peer, left)| wants_turn(peer, *left))
    }

    fn next_timeout(&self) -> Option<Instant> {
        (!self.peers.is_empty()).then(|| self.swept_at + SWEEP_INTERVAL)
    }
}
