//! The owner's end of `tcp`: serves an exporter on a listening TCP socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::dialer::set_socket_options;
use crate::stream::{self, ListenerConfig};
use crate::transport::{PlainStream, Security, Stream};
use crate::{Address, Exporter};

/// Serves an exporter's memory over TCP. Dropping the server ends all connections at once.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    server: stream::StreamServer,
}

impl TcpServer {
    /// Starts to serve connections to `listener`.
    ///
    /// # Errors
    /// The process cannot create another file descriptor or thread.
    pub fn start(listener: TcpListener, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        Self::start_secured(listener, exporter, None)
    }

    /// As [`TcpServer::start`], with `security` around each stream.
    ///
    /// # Errors
    /// As [`TcpServer::start`].
    pub fn start_secured(
        listener: TcpListener,
        exporter: &Arc<dyn Exporter>,
        security: Option<Arc<dyn Security>>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let config =
            ListenerConfig { thread_name: "fabric-tcp", same_host: false, make_stream: stream_from_socket, security };
        Ok(Self { address, server: stream::StreamServer::start(listener.into(), &config, exporter)? })
    }

    /// Stops accepting and receiving, serves received requests, and ends once all replies are sent or after `timeout`.
    pub fn close(self, timeout: Duration) {
        self.server.close(timeout);
    }

    /// Number of panics of the server's threads. Each panic closed the thread's connections, and the thread continued.
    pub fn panic_count(&self) -> u64 {
        self.server.panic_count()
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> Address {
        Address::Tcp(self.address)
    }
}

fn stream_from_socket(socket: OwnedFd) -> io::Result<(Box<dyn Stream>, String)> {
    set_socket_options(&socket)?;
    let from = rustix::net::getpeername(&socket)?;
    let from = from.and_then(|any| SocketAddr::try_from(any).ok()).map_or_else(String::new, |from| from.to_string());
    Ok((Box::new(PlainStream::new(socket)), from))
}
