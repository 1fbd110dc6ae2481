//! The owner's end of `tcp`.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::dialer::set_options;
use crate::stream::{self, Door};
use crate::transport::{Plain, Security, Stream};
use crate::{Address, Exporter};

/// Serves an exporter's memory over TCP until it is dropped, which ends all connections at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    server: stream::Server,
}

impl Server {
    /// Serves what connects to `listener`.
    ///
    /// # Errors
    /// Where this process cannot have another file descriptor or thread.
    pub fn start(listener: TcpListener, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        Self::start_secured(listener, exporter, None)
    }

    /// The same, with connections that something protects.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_secured(
        listener: TcpListener,
        exporter: &Arc<dyn Exporter>,
        security: Option<Arc<dyn Security>>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let door = Door { name: "fabric-tcp", same_host: false, adopt, security };
        Ok(Self { address, server: stream::Server::start(listener.into(), &door, exporter)? })
    }

    /// Accepts and receives nothing more, answers what was received, and ends once that is sent, within `patience`.
    pub fn close(self, patience: Duration) {
        self.server.close(patience);
    }

    /// How often its threads have panicked: each time, connections were lost, and the thread went on.
    pub fn panics(&self) -> u64 {
        self.server.panics()
    }

    /// Where it is reached.
    pub fn address(&self) -> Address {
        Address::Tcp(self.address)
    }
}

fn adopt(socket: OwnedFd) -> io::Result<(Box<dyn Stream>, String)> {
    set_options(&socket)?;
    let from = rustix::net::getpeername(&socket)?;
    let from = from.and_then(|any| SocketAddr::try_from(any).ok()).map_or_else(String::new, |from| from.to_string());
    Ok((Box::new(Plain::new(socket)), from))
}
