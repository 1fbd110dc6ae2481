//! Unix sockets: how they connect.

use std::io;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrUnix, connect};

use super::stream::Stream;
use crate::stream::{SocketAttempt, new_socket};
use crate::transport::{self, Attempt};

/// Connects to the owner's socket.
#[derive(Debug)]
pub struct Dialer {
    to: PathBuf,
}

impl Dialer {
    /// To the socket of this path.
    pub fn new(to: PathBuf) -> Self {
        Self { to }
    }
}

impl transport::Dialer for Dialer {
    fn dial(&mut self) -> io::Result<Box<dyn Attempt>> {
        let socket = new_socket(AddressFamily::UNIX)?;
        connect(&socket, &SocketAddrUnix::new(&self.to)?)?;
        Ok(Box::new(SocketAttempt::new(socket, |socket| Box::new(Stream::of_requester(socket)))))
    }
}
