//! The owner's server: a listening socket, one thread that accepts connections, and worker threads that serve them. A
//! thread that panics loses its connections and continues.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::command_queue::{CommandQueue, ServerCommand};
use super::handshake_acceptor::HandshakeAcceptor;
use super::worker::Worker;
use crate::Exporter;
use crate::protocol::OwnerContext;
use crate::transport::{Security, Stream};

/// Threads of a server that serve. Two, so that one connection's stream does not hold up another's single pages; reading memory
/// is bound by memory, so that more would gain little.
const WORKERS: usize = 2;

/// Makes a stream of an accepted socket; gives also who it comes from, as the log names it.
pub(crate) type StreamFactory = fn(OwnedFd) -> io::Result<(Box<dyn Stream>, String)>;

/// How connections come in.
#[derive(Clone)]
pub(crate) struct ListenerConfig {
    /// What the threads are called by.
    pub(crate) thread_name: &'static str,
    /// Whether all that connects is on this host.
    pub(crate) same_host: bool,
    /// What becomes of a socket.
    pub(crate) make_stream: StreamFactory,
    /// What protects the streams, if anything does.
    pub(crate) security: Option<Arc<dyn Security>>,
}

impl ListenerConfig {
    /// Lets a socket in.
    pub(crate) fn wrap_socket(&self, socket: OwnedFd) -> io::Result<(Box<dyn Stream>, String)> {
        let (stream, from) = (self.make_stream)(socket)?;
        let stream = match &self.security {
            Some(security) => security.wrap_server(stream)?,
            None => stream,
        };
        Ok((stream, from))
    }
}

/// Serves an exporter's memory until it is dropped, which ends its threads and connections at once.
pub(crate) struct StreamServer {
    /// The workers, then the thread that authenticates connections.
    command_queues: Vec<Arc<CommandQueue>>,
    threads: Vec<JoinHandle<()>>,
    panics: Arc<AtomicU64>,
}

/// What a thread of a server does.
trait ServerTask: Send + 'static {
    /// Until it is ordered to end.
    fn run(&mut self);

    /// Loses what it has in hand, which may be half done.
    fn drop_connections(&mut self);
}

impl ServerTask for Worker {
    fn run(&mut self) {
        self.run();
    }

    fn drop_connections(&mut self) {
        self.drop_connections();
    }
}

impl ServerTask for HandshakeAcceptor {
    fn run(&mut self) {
        self.run();
    }

    fn drop_connections(&mut self) {
        self.drop_connections();
    }
}

impl StreamServer {
    /// Serves what connects to `listener`, a nonblocking, listening socket.
    pub(crate) fn start(listener: OwnedFd, config: &ListenerConfig, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        let new_queue = || CommandQueue::new().map(Arc::new);
        let workers: Vec<_> = (0..WORKERS).map(|_| new_queue()).collect::<io::Result<_>>()?;
        let mut server = Self { command_queues: workers.clone(), threads: Vec::new(), panics: Arc::default() };
        let shared = OwnerContext::new(exporter);
        for (number, own) in workers.iter().enumerate() {
            let worker = Worker::new(config.same_host, shared.clone(), Arc::clone(own))?;
            server.spawn_task(format!("{}-{number}", config.thread_name), worker)?;
        }
        let own = new_queue()?;
        server.command_queues.push(Arc::clone(&own));
        let handshake_acceptor = HandshakeAcceptor::new(config.clone(), listener, own, workers)?;
        server.spawn_task(format!("{}-auth", config.thread_name), handshake_acceptor)?;
        Ok(server)
    }

    /// Gives a thread its duty, which it keeps whatever happens.
    fn spawn_task(&mut self, name: String, mut task: impl ServerTask) -> io::Result<()> {
        let (thread, panics) = (thread::Builder::new().name(name.clone()), Arc::clone(&self.panics));
        let work = move || {
            while catch_unwind(AssertUnwindSafe(|| task.run())).is_err() {
                let panics = panics.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::error!(
                    thread = name,
                    panics,
                    "a thread of the fabric's server panicked: its connections are lost"
                );
                task.drop_connections();
            }
        };
        self.threads.push(thread.spawn(work)?);
        Ok(())
    }

    /// How often its threads have panicked.
    pub(crate) fn panic_count(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Accepts and receives nothing more, serves what was received, sends what waits, until all is sent or `timeout` is
    /// over; then ends.
    pub(crate) fn close(mut self, timeout: Duration) {
        self.stop_threads(ServerCommand::Drain(Instant::now() + timeout));
    }

    fn stop_threads(&mut self, order: ServerCommand) {
        self.command_queues.iter().for_each(|new_queue| new_queue.set_command(order));
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the fabric's server panicked");
            }
        }
    }
}

impl Drop for StreamServer {
    fn drop(&mut self) {
        self.stop_threads(ServerCommand::Stop);
    }
}

impl fmt::Debug for StreamServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({} threads)", self.threads.len())
    }
}
