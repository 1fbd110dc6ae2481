//! The answering end: connections, sessions that outlive them, and handlers.

mod connection;
mod desk;
mod hall;
mod handlers;
mod hub;
mod listener;
mod peer;
mod registry;
mod reply;
mod session;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

pub use handlers::Handlers;
pub use listener::{Acceptor, PlainAcceptor, SecuredAcceptor};
pub use registry::SESSION_IDLE_MAX;
pub use reply::{Deferred, Reply};

pub(crate) use hall::{Clock, Hall};
pub(crate) use hub::{Hub, Letter};

use worker::Worker;

#[cfg(test)]
pub(crate) use {
    peer::{HELD_BYTES_MAX, Peer, Service, Wish},
    registry::{Claimed, Location, Registry},
    reply::Ticket,
};

/// How a server runs.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Threads; connections are spread over them.
    pub threads: usize,
    /// Whether a thread looks again for a while before it sleeps, where that pays.
    pub spins: bool,
}

/// Serves until it is dropped, which ends its threads and connections at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    hub: Arc<Hub>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves what connects to `listener`; each thread has handlers of its own.
    ///
    /// # Errors
    /// Where this process cannot have another file descriptor or thread.
    pub fn start(
        listener: TcpListener,
        config: &Config,
        acceptor: Arc<dyn Acceptor>,
        handlers: impl Fn() -> Handlers,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let hub = Arc::new(Hub::new(config.threads.max(1))?);
        let mut server = Self { address, hub: Arc::clone(&hub), threads: Vec::new() };
        let mut listener = Some(listener);
        for number in 0..hub.workers() {
            let mut worker = Worker::new(number, Arc::clone(&hub), handlers(), config.spins)?;
            if let Some(listener) = listener.take() {
                worker.listen(listener.into(), Arc::clone(&acceptor))?;
            }
            let thread = thread::Builder::new().name(format!("rpc-{number}"));
            server.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(server)
    }

    /// Where it is reached.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.hub.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of an RPC server panicked");
            }
        }
    }
}
