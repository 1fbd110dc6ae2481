//! The owner's end: a listening socket, a thread that lets in what connects to it, and a few that serve it. One that panics
//! loses the connections that it has, and goes on.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::mailbox::{Mailbox, Order};
use super::porch::Porch;
use super::worker::Worker;
use crate::Exporter;
use crate::protocol::Shared;
use crate::transport::{Security, Stream};

/// Threads of a server that serve. Two, so that one connection's stream does not hold up another's single pages; reading memory
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
    /// The workers', then the porch's.
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
    panics: Arc<AtomicU64>,
}

/// What a thread of a server does.
trait Duty: Send + 'static {
    /// Until it is ordered to end.
    fn run(&mut self);

    /// Loses what it has in hand, which may be half done.
    fn clear(&mut self);
}

impl Duty for Worker {
    fn run(&mut self) {
        self.run();
    }

    fn clear(&mut self) {
        self.clear();
    }
}

impl Duty for Porch {
    fn run(&mut self) {
        self.run();
    }

    fn clear(&mut self) {
        self.clear();
    }
}

impl Server {
    /// Serves what connects to `listener`, a nonblocking, listening socket.
    pub(crate) fn start(listener: OwnedFd, door: &Door, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        let mailbox = || Mailbox::new().map(Arc::new);
        let workers: Vec<_> = (0..WORKERS).map(|_| mailbox()).collect::<io::Result<_>>()?;
        let mut server = Self { mailboxes: workers.clone(), threads: Vec::new(), panics: Arc::default() };
        let shared = Shared::new(exporter);
        for (number, own) in workers.iter().enumerate() {
            let worker = Worker::new(door.same_host, shared.clone(), Arc::clone(own))?;
            server.employ(format!("{}-{number}", door.name), worker)?;
        }
        let own = mailbox()?;
        server.mailboxes.push(Arc::clone(&own));
        let porch = Porch::new(door.clone(), listener, own, workers)?;
        server.employ(format!("{}-porch", door.name), porch)?;
        Ok(server)
    }

    /// Gives a thread its duty, which it keeps whatever happens.
    fn employ(&mut self, name: String, mut duty: impl Duty) -> io::Result<()> {
        let (thread, panics) = (thread::Builder::new().name(name.clone()), Arc::clone(&self.panics));
        let work = move || {
            while catch_unwind(AssertUnwindSafe(|| duty.run())).is_err() {
                let panics = panics.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::error!(
                    thread = name,
                    panics,
                    "a thread of the fabric's server panicked: its connections are lost"
                );
                duty.clear();
            }
        };
        self.threads.push(thread.spawn(work)?);
        Ok(())
    }

    /// How often its threads have panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
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
