//! Nonblocking attempts to connect a stream socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::transport::{ConnectAttempt, Stream};

/// Creates a socket.
pub(crate) fn create_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A connecting socket.
#[derive(Debug)]
pub(crate) struct SocketAttempt {
    /// The connecting socket; `None` once the stream was returned.
    socket: Option<OwnedFd>,
    make_stream: fn(OwnedFd) -> Box<dyn Stream>,
}

impl SocketAttempt {
    /// Creates an attempt for a socket on which connect(2) was called. `stream` makes a stream from the socket.
    pub(crate) fn new(socket: OwnedFd, stream: fn(OwnedFd) -> Box<dyn Stream>) -> Self {
        Self { socket: Some(socket), make_stream: stream }
    }
}

impl ConnectAttempt for SocketAttempt {
    fn poll(&mut self) -> io::Result<Option<Box<dyn Stream>>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        let mut fds = [PollFd::new(socket, PollFlags::OUT)];
        if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
            return Ok(None);
        }
        sockopt::socket_error(socket)??;
        Ok(self.socket.take().map(self.make_stream))
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }
}
