//! The owner's end of `tcp`.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use crate::stream::{self, StreamKind};
use crate::{Address, Exporter};

/// Serves an exporter's memory over TCP until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Held for its end.
    _server: stream::Server,
}

impl Server {
    /// Serves what connects to `listener`.
    ///
    /// # Errors
    /// Where this process cannot have another file descriptor or thread.
    pub fn start(listener: TcpListener, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let server = stream::Server::start(listener.into(), StreamKind::Tcp, exporter)?;
        Ok(Self { address, _server: server })
    }

    /// Where it is reached.
    pub fn address(&self) -> Address {
        Address::Tcp(self.address)
    }
}
