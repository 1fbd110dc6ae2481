//! Connects Unix sockets for `shm`.

use std::io;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrUnix, connect};

use super::stream::ShmStream;
use crate::stream::{SocketAttempt, create_socket};
use crate::transport::{self, ConnectAttempt};

/// Connects to the owner's socket.
#[derive(Debug)]
pub struct ShmDialer {
    path: PathBuf,
}

impl ShmDialer {
    /// Creates a dialer for the socket with this path.
    pub fn new(to: PathBuf) -> Self {
        Self { path: to }
    }
}

impl transport::Dialer for ShmDialer {
    fn dial(&mut self) -> io::Result<Box<dyn ConnectAttempt>> {
        let socket = create_socket(AddressFamily::UNIX)?;
        connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        Ok(Box::new(SocketAttempt::new(socket, |socket| Box::new(ShmStream::for_requester(socket)))))
    }
}
