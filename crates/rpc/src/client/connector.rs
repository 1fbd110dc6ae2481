//! The [`Connector`] trait, which makes a client's connections, and its implementation for TCP.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use farfork_fabric::Address;
use farfork_fabric::transport::{PlainStream, Security, Stream};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// Connects to one server.
pub trait Connector: fmt::Debug + Send {
    /// Starts a connection without waiting until it is established. Until then, the stream receives nothing and accepts
    /// no bytes to send.
    ///
    /// # Errors
    /// The connection cannot be started.
    fn connect(&mut self) -> io::Result<Box<dyn Stream>>;
}

/// Connects over TCP, with or without security.
#[derive(Debug)]
pub struct TcpConnector {
    address: SocketAddr,
    security: Option<Arc<dyn Security>>,
}

impl TcpConnector {
    /// Creates a connector to this address, without authentication.
    pub fn new(to: SocketAddr) -> Self {
        Self { address: to, security: None }
    }

    /// Creates a connector to this address. `security` wraps each stream.
    pub fn secured(to: SocketAddr, security: Arc<dyn Security>) -> Self {
        Self { address: to, security: Some(security) }
    }
}

impl Connector for TcpConnector {
    fn connect(&mut self) -> io::Result<Box<dyn Stream>> {
        let family = if self.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &self.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let plain = Box::new(PlainStream::new(socket));
        match &self.security {
            Some(security) => security.wrap_client(plain, &Address::Tcp(self.address)),
            None => Ok(plain),
        }
    }
}
