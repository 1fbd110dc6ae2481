//! Where a client's connections come from.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use farfork_fabric::transport::{Plain, Stream};
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

/// Plain TCP.
#[derive(Debug)]
pub struct TcpConnector {
    to: SocketAddr,
}

impl TcpConnector {
    /// To this address.
    pub fn new(to: SocketAddr) -> Self {
        Self { to }
    }
}

impl Connector for TcpConnector {
    fn connect(&mut self) -> io::Result<Box<dyn Stream>> {
        let family = if self.to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &self.to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Box::new(Plain::new(socket))),
            Err(errno) => Err(errno.into()),
        }
    }
}
