//! The [`Connector`] trait, which makes a client's connections, and its implementation for TCP.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use farfork_fabric::Address;
use farfork_fabric::transport::{PlainStream, Security, Stream};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// Makes connections to one server.
pub trait Connector: fmt::Debug + Send {
    /// Begins a connection, without waiting for it: until it is there, the stream has nothing and takes nothing.
    ///
    /// # Errors
    /// It cannot even begin.
    fn connect(&mut self) -> io::Result<Box<dyn Stream>>;
}

/// TCP, protected or in clear.
#[derive(Debug)]
pub struct TcpConnector {
    address: SocketAddr,
    security: Option<Arc<dyn Security>>,
}

impl TcpConnector {
    /// To this address, whoever answers there.
    pub fn new(to: SocketAddr) -> Self {
        Self { address: to, security: None }
    }

    /// To this address, through something that protects the connection.
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
