//! A server in a simulated world. Actors of the world take the place of its threads.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use farfork_fabric::sim::World;
use farfork_fabric::sim::world::{Actor, ActorId, SimAddress, SimListener};
use farfork_fabric::transport::{Security, Stream};

use crate::server::{Clock, ConnectionTable, HandlerTable, SharedState, WorkerMessage};

/// Serves until it is dropped. Dropping it ends all connections at once, and drops all sessions.
pub struct SimServer {
    world: World,
    address: SimAddress,
    actors: Vec<ActorId>,
}

impl SimServer {
    /// Starts to serve connections to an address, with `threads` actors instead of threads. Each actor has its own
    /// handlers.
    ///
    /// # Errors
    /// `AddrInUse`; or the process cannot create another file descriptor.
    pub fn start(
        world: &World,
        address: SimAddress,
        threads: usize,
        security: Option<Arc<dyn Security>>,
        handlers: impl Fn() -> HandlerTable,
    ) -> io::Result<Self> {
        let shared_state = Arc::new(SharedState::new(threads.max(1))?);
        let mut listener = Some(world.listen(address)?);
        let mut server = Self { world: world.clone(), address, actors: Vec::new() };
        for number in 0..shared_state.worker_count() {
            let (shared, of_world) = (Arc::clone(&shared_state), world.clone());
            let clock: Clock = Box::new(move || of_world.local_time(address.node));
            let connection_table = ConnectionTable::new(number, Arc::clone(&shared), handlers(), clock);
            let acceptor =
                listener.take().map(|listener| SimAcceptor { listener, security: security.clone(), accepted_count: 0 });
            let thread = WorkerActor { number, world: world.clone(), shared, connections: connection_table, acceptor };
            server.actors.push(world.add_actor(address.node, Box::new(thread)));
        }
        Ok(server)
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SimAddress {
        self.address
    }
}

impl Drop for SimServer {
    fn drop(&mut self) {
        for actor in self.actors.drain(..) {
            self.world.remove_actor(actor);
        }
    }
}

impl fmt::Debug for SimServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

/// The listener of a server. One of the actors has it.
struct SimAcceptor {
    listener: SimListener,
    security: Option<Arc<dyn Security>>,
    accepted_count: usize,
}

/// The actor that runs a connection table.
struct WorkerActor {
    number: usize,
    world: World,
    shared: Arc<SharedState>,
    connections: ConnectionTable,
    acceptor: Option<SimAcceptor>,
}

impl WorkerActor {
    fn accept(&mut self) {
        let Some(acceptor) = &mut self.acceptor else { return };
        while let Some((stream, from)) = acceptor.listener.accept() {
            let stream: Box<dyn Stream> = Box::new(stream);
            let secured = match &acceptor.security {
                Some(security) => security.wrap_server(stream),
                None => Ok(stream),
            };
            if let Ok(stream) = secured {
                self.shared.send_message(
                    acceptor.accepted_count % self.shared.worker_count(),
                    WorkerMessage::NewConnection(stream, self.world.node_name(from)),
                );
            }
            acceptor.accepted_count += 1;
        }
    }
}

impl Actor for WorkerActor {
    fn run_turn(&mut self, now: Instant) {
        self.accept();
        let again = self.connections.begin_round();
        self.connections.handle_messages(now);
        for token in again.into_iter().chain(self.connections.ready_connections()) {
            self.connections.run_turn(token, now);
        }
        self.connections.sweep(now);
        // There are no sockets to register.
        self.connections.take_interest_changed();
    }

    fn is_ready(&self) -> bool {
        self.acceptor.as_ref().is_some_and(|acceptor| acceptor.listener.is_ready())
            || self.shared.has_messages(self.number)
            || self.connections.has_requeued()
            || self.connections.has_ready_connection()
    }

    fn next_timeout(&self) -> Option<Instant> {
        (!self.connections.is_idle()).then(|| self.connections.next_timeout())
    }
}
