//! The owner's server: a listening socket, one thread that accepts connections, and worker threads that serve them. A thread
//! that panics loses its connections and continues.

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

/// Number of worker threads. With two, a long stream on one connection does not delay single pages on another. More
/// would gain little, because memory bandwidth limits reads.
const WORKERS: usize = 2;

/// Makes a stream from an accepted socket. Also returns the peer's name for the log.
pub(crate) type StreamFactory = fn(OwnedFd) -> io::Result<(Box<dyn Stream>, String)>;

/// The way in which a server accepts connections.
#[derive(Clone)]
pub(crate) struct ListenerConfig {
    /// Name of the threads.
    pub(crate) thread_name: &'static str,
    /// Whether all peers are on this host.
    pub(crate) same_host: bool,
    /// Makes a stream from a socket.
    pub(crate) make_stream: StreamFactory,
    /// Wraps the streams; `None` for streams without security.
    pub(crate) security: Option<Arc<dyn Security>>,
}

impl ListenerConfig {
    /// Makes a stream from an accepted socket, and wraps it with `security` if that is set.
    pub(crate) fn wrap_socket(&self, socket: OwnedFd) -> io::Result<(Box<dyn Stream>, String)> {
        let (stream, from) = (self.make_stream)(socket)?;
        let stream = match &self.security {
            Some(security) => security.wrap_server(stream)?,
            None => stream,
        };
        Ok((stream, from))
    }
}

/// Serves an exporter's memory. Dropping the server ends its threads and connections at once.
pub(crate) struct StreamServer {
    /// The queues of the workers, then of the thread that authenticates connections.
    command_queues: Vec<Arc<CommandQueue>>,
    threads: Vec<JoinHandle<()>>,
    panics: Arc<AtomicU64>,
}

/// The task of a server's thread.
trait ServerTask: Send + 'static {
    /// Runs until a command ends it.
    fn run(&mut self);

    /// Drops all connections after a panic, because any of them may be in an inconsistent state.
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
    /// Starts to serve connections to `listener`, a nonblocking, listening socket.
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

    /// Starts a thread that runs a task, and runs it again after a panic.
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

    /// Number of panics of the server's threads.
    pub(crate) fn panic_count(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Stops accepting and receiving, serves received requests, and sends their replies. Ends once all are sent or after
    /// `timeout`.
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
