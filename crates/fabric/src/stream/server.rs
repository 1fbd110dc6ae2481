//! The owner's end: a listening socket, and a few threads that serve what connects to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::worker::{Mailbox, Worker};
use crate::Exporter;

/// Threads of a server. Two, so that one connection's stream does not hold up another's single pages; reading memory
/// is bound by memory, so that more would gain little.
const WORKERS: usize = 2;

/// What kind of stream sockets a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// TCP.
    Tcp,
    /// Unix sockets, whose peers are on this host.
    Unix,
}

impl StreamKind {
    fn thread_name(self, number: usize) -> String {
        match self {
            Self::Tcp => format!("fabric-tcp-{number}"),
            Self::Unix => format!("fabric-shm-{number}"),
        }
    }
}

/// Serves an exporter's memory until it is dropped, which ends its threads and connections at once.
#[derive(Debug)]
pub(crate) struct Server {
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves what connects to `listener`, a nonblocking, listening socket.
    pub(crate) fn start(listener: OwnedFd, kind: StreamKind, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        let mailboxes: Vec<_> = (0..WORKERS).map(|_| Mailbox::new().map(Arc::new)).collect::<io::Result<_>>()?;
        let mut server = Self { mailboxes, threads: Vec::new() };
        let mut listener = Some(listener);
        for number in 0..WORKERS {
            let own = Arc::clone(&server.mailboxes[number]);
            let mut worker = Worker::new(kind, Arc::clone(exporter), own)?;
            if let Some(listener) = listener.take() {
                worker.listen(listener, server.mailboxes.clone())?;
            }
            let thread = thread::Builder::new().name(kind.thread_name(number));
            server.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.stop());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the fabric's server panicked");
            }
        }
    }
}
