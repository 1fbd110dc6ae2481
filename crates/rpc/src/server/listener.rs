//! Accepts new connections. One thread accepts all connections, and distributes them over all threads.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::transport::{PlainStream, Security, Stream};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with, sockopt};

/// Maximum number of connections that are accepted in one round, so that a flood of them does not delay existing
/// connections.
const ACCEPTS_MAX: usize = 64;

/// Pause of accepting after accept(2) has failed, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Idle time before the first TCP keepalive probe. A client whose machine has failed is detected within half a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// Interval between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Number of unanswered probes after which the connection ends.
const KEEPALIVE_PROBES: u32 = 4;

/// Makes a stream from an accepted socket.
pub trait Acceptor: fmt::Debug + Send + Sync {
    /// Makes a stream from a connected, nonblocking socket.
    ///
    /// # Errors
    /// The connection must not be served.
    fn accept(&self, socket: OwnedFd) -> io::Result<Box<dyn Stream>>;
}

/// Serves all clients, over plain TCP.
#[derive(Debug)]
pub struct PlainAcceptor;

impl Acceptor for PlainAcceptor {
    fn accept(&self, socket: OwnedFd) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(PlainStream::new(socket)))
    }
}

/// Serves the clients that a [`Security`] admits.
#[derive(Debug)]
pub struct SecuredAcceptor(pub Arc<dyn Security>);

impl Acceptor for SecuredAcceptor {
    fn accept(&self, socket: OwnedFd) -> io::Result<Box<dyn Stream>> {
        self.0.wrap_server(Box::new(PlainStream::new(socket)))
    }
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) acceptor: Arc<dyn Acceptor>,
    pub(super) accepted_count: usize,
    pub(super) paused_until: Option<Instant>,
}

impl Listener {
    pub(super) fn new(socket: OwnedFd, acceptor: Arc<dyn Acceptor>) -> Self {
        Self { socket, acceptor, accepted_count: 0, paused_until: None }
    }

    /// Accepts no connections for a while.
    pub(super) fn pause(&mut self, now: Instant) {
        self.paused_until = Some(now + ACCEPT_PAUSE);
    }

    /// Accepts waiting connections, at most [`ACCEPTS_MAX`]. `on_accept` gets each connection with its number and the
    /// peer's address.
    ///
    /// # Errors
    /// The error of accept4(2): no connection can be accepted for now.
    pub(super) fn accept(&mut self, mut on_accept: impl FnMut(usize, Box<dyn Stream>, String)) -> Result<(), Errno> {
        for _ in 0..ACCEPTS_MAX {
            let (socket, from) = match acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => return Ok(()),
                // The client has disconnected, or a signal interrupted the call. Try the next connection.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let stream = set_socket_options(&socket).and_then(|()| self.acceptor.accept(socket));
            match stream {
                Ok(stream) => on_accept(self.accepted_count, stream, format_peer_address(from)),
                Err(cause) => tracing::debug!(%cause, "cannot serve a connection"),
            }
            self.accepted_count += 1;
        }
        Ok(())
    }
}

fn format_peer_address(from: Option<SocketAddrAny>) -> String {
    let address = from.and_then(|address| SocketAddr::try_from(address).ok());
    address.map_or_else(|| "unnamed".to_owned(), |address| address.to_string())
}

fn set_socket_options(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}
