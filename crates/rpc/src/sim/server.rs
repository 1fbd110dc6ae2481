//! A server in a simulated world: what its threads are to sockets, actors are there.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use farfork_fabric::sim::World;
use farfork_fabric::sim::world::{Actor, ActorId, Listener, Place};
use farfork_fabric::transport::{Security, Stream};

use crate::server::{Clock, Hall, Handlers, Hub, Letter};

/// Serves until it is dropped, which ends all connections at once, and forgets all sessions.
pub struct Server {
    world: World,
    place: Place,
    actors: Vec<ActorId>,
}

impl Server {
    /// Serves what connects to a place, with so many actors in the place of threads; each has handlers of its own.
    ///
    /// # Errors
    /// `AddrInUse`; where this process cannot have another file descriptor.
    pub fn start(
        world: &World,
        place: Place,
        threads: usize,
        security: Option<Arc<dyn Security>>,
        handlers: impl Fn() -> Handlers,
    ) -> io::Result<Self> {
        let hub = Arc::new(Hub::new(threads.max(1))?);
        let mut listener = Some(world.listen(place)?);
        let mut server = Self { world: world.clone(), place, actors: Vec::new() };
        for number in 0..hub.workers() {
            let (hub, of_world) = (Arc::clone(&hub), world.clone());
            let clock: Clock = Box::new(move || of_world.now_at(place.node));
            let hall = Hall::new(number, Arc::clone(&hub), handlers(), clock);
            let door = listener.take().map(|listener| Door { listener, security: security.clone(), accepted: 0 });
            let thread = Thread { number, world: world.clone(), hub, hall, door };
            server.actors.push(world.add_actor(place.node, Box::new(thread)));
        }
        Ok(server)
    }

    /// Where it is reached.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for actor in self.actors.drain(..) {
            self.world.remove_actor(actor);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.place)
    }
}

/// Where connections come in; one actor has it.
struct Door {
    listener: Listener,
    security: Option<Arc<dyn Security>>,
    accepted: usize,
}

/// The actor.
struct Thread {
    number: usize,
    world: World,
    hub: Arc<Hub>,
    hall: Hall,
    door: Option<Door>,
}

impl Thread {
    fn accept(&mut self) {
        let Some(door) = &mut self.door else { return };
        while let Some((stream, from)) = door.listener.accept() {
            let stream: Box<dyn Stream> = Box::new(stream);
            let secured = match &door.security {
                Some(security) => security.server(stream),
                None => Ok(stream),
            };
            if let Ok(stream) = secured {
                self.hub.post(door.accepted % self.hub.workers(), Letter::Adopt(stream, self.world.name(from)));
            }
            door.accepted += 1;
        }
    }
}

impl Actor for Thread {
    fn turn(&mut self, now: Instant) {
        self.accept();
        let again = self.hall.begin_round();
        self.hall.read_letters(now);
        for token in again.into_iter().chain(self.hall.ready()) {
            self.hall.turn(token, now);
        }
        self.hall.sweep(now);
        // Nobody waits for sockets here.
        self.hall.take_changed();
    }

    fn is_ready(&self) -> bool {
        self.door.as_ref().is_some_and(|door| door.listener.is_ready())
            || self.hub.has_letters(self.number)
            || self.hall.has_more()
            || self.hall.has_ready()
    }

    fn next_timeout(&self) -> Option<Instant> {
        (!self.hall.is_idle()).then(|| self.hall.next_timeout())
    }
}
