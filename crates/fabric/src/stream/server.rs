//! The owner's end: a listening socket, and a few threads that serve what connects to it.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::mailbox::{Mailbox, Order};
use super::worker::Worker;
use crate::Exporter;
use crate::protocol::Shared;
use crate::transport::{Security, Stream};

/// Threads of a server. Two, so that one connection's stream does not hold up another's single pages; reading memory
/// is bound by memory, so that more would gain little.
const WORKERS: usize = 2;

/// Makes a stream of an accepted socket; gives also who it comes from, as the log names it.
pub(crate) type Adopt = fn(OwnedFd) -> io::Result<(Box<dyn Stream>, String)>;

/// How connections come in.
#[derive(Clone)]
pub(crate) struct Door {
    /// What the threads are called by.
    pub(crate) name: &'static str,
    /// Whether all that connects is on this host.
    pub(crate) same_host: bool,
    /// What becomes of a socket.
    pub(crate) adopt: Adopt,
    /// What protects the streams, if anything does.
    pub(crate) security: Option<Arc<dyn Security>>,
}

impl Door {
    /// Lets a socket in.
    pub(crate) fn enter(&self, socket: OwnedFd) -> io::Result<(Box<dyn Stream>, String)> {
        let (stream, from) = (self.adopt)(socket)?;
        let stream = match &self.security {
            Some(security) => security.server(stream)?,
            None => stream,
        };
        Ok((stream, from))
    }
}

/// Serves an exporter's memory until it is dropped, which ends its threads and connections at once.
pub(crate) struct Server {
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves what connects to `listener`, a nonblocking, listening socket.
    pub(crate) fn start(listener: OwnedFd, door: &Door, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        let mailboxes: Vec<_> = (0..WORKERS).map(|_| Mailbox::new().map(Arc::new)).collect::<io::Result<_>>()?;
        let mut server = Self { mailboxes, threads: Vec::new() };
        let mut listener = Some(listener);
        let shared = Shared::new(exporter);
        for number in 0..WORKERS {
            let own = Arc::clone(&server.mailboxes[number]);
            let mut worker = Worker::new(door.clone(), shared.clone(), own)?;
            if let Some(listener) = listener.take() {
                worker.listen(listener, server.mailboxes.clone())?;
            }
            let thread = thread::Builder::new().name(format!("{}-{number}", door.name));
            server.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(server)
    }

    /// Accepts and receives nothing more, serves what was received, sends what waits, until all is sent or `patience` is
    /// over; then ends.
    pub(crate) fn close(mut self, patience: Duration) {
        self.end(Order::Finish(Instant::now() + patience));
    }

    fn end(&mut self, order: Order) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.order(order));
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the fabric's server panicked");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Order::Stop);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({} threads)", self.threads.len())
    }
}
