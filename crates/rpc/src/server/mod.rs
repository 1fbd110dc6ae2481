//! The server: connections, sessions that outlive them, and handlers.

mod connection;
mod connection_table;
mod handlers;
mod listener;
mod protocol;
mod reply;
mod session;
mod session_registry;
mod session_table;
mod shared_state;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

pub use handlers::HandlerTable;
pub use listener::{Acceptor, PlainAcceptor, SecuredAcceptor};
pub use reply::{DeferredReply, ReplyWriter};
pub use session_registry::SESSION_IDLE_MAX;

pub(crate) use connection_table::{Clock, ConnectionTable};
pub(crate) use shared_state::{SharedState, WorkerMessage};

use worker::Worker;

#[cfg(test)]
pub(crate) use {
    protocol::{HELD_BYTES_MAX, RequestExecutor, ServerProtocol, SessionRequest},
    reply::RequestKey,
    session_registry::{ClaimOutcome, ConnectionLocation, SessionRegistry},
};

/// Configuration of a server.
#[derive(Debug, Clone, Copy)]
pub struct ServerConfig {
    /// Number of threads. Connections are distributed over them.
    pub threads: usize,
    /// Whether a thread spins for a while before it sleeps, as long as spinning finds events.
    pub should_spin: bool,
}

/// Serves until it is dropped. Dropping it ends its threads and connections at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<SharedState>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve connections to `listener`. Each thread has its own handlers.
    ///
    /// # Errors
    /// The process cannot create another file descriptor or thread.
    pub fn start(
        listener: TcpListener,
        config: &ServerConfig,
        acceptor: Arc<dyn Acceptor>,
        handlers: impl Fn() -> HandlerTable,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let shared_state = Arc::new(SharedState::new(config.threads.max(1))?);
        let mut server = Self { address, shared: Arc::clone(&shared_state), threads: Vec::new() };
        let mut listener = Some(listener);
        for number in 0..shared_state.worker_count() {
            let mut worker = Worker::new(number, Arc::clone(&shared_state), handlers(), config.should_spin)?;
            if let Some(listener) = listener.take() {
                worker.listen(listener.into(), Arc::clone(&acceptor))?;
            }
            let thread = thread::Builder::new().name(format!("rpc-{number}"));
            server.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(server)
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of an RPC server panicked");
            }
        }
    }
}
