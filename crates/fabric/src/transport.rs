//! The seam between protocols and what carries their bytes: an ordered stream to one peer that never blocks.
//!
//! The memory protocol and the RPC above it are written against [`Stream`]; `tcp`, `shm` and `sim` give streams, and what
//! protects one (TLS) is a stream around a stream. Who waits for a stream's socket, and how, is its owner's business.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags};

/// An ordered stream of bytes to one peer. Nothing here blocks, and what an error says is final for the stream.
pub trait Stream: fmt::Debug + Send {
    /// Receives into the spaces, in their order: how many bytes came, `Some(0)` at the end of the stream, `None` when
    /// there is nothing now. A stream may keep bytes that have come already (a record that is longer than the spaces):
    /// only after `None` is it worth waiting for its socket.
    ///
    /// # Errors
    /// The stream broke, or its peer sent what it must not.
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>>;

    /// Sends from the slices, in their order: how many bytes it took, `None` when it takes none now. Bytes that it took
    /// may wait inside ([`Stream::has_unsent`]).
    ///
    /// # Errors
    /// The stream broke.
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>>;

    /// Whether bytes wait inside for the socket. Then the owner waits until the socket takes more and calls
    /// [`Stream::send`], with no slices if there is nothing else.
    fn has_unsent(&self) -> bool {
        false
    }

    /// The socket to wait for; `None` where there is none (`sim`).
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// Where there is no socket to wait for: whether receiving (if `receive`) or sending (if `send`) would give
    /// something else than `None`. A stream around another one passes the question on.
    fn is_ready(&self, receive: bool, send: bool) -> bool {
        receive || send
    }
}

/// A socket's own stream, with nothing around it.
#[derive(Debug)]
pub struct Plain(OwnedFd);

impl Plain {
    /// Of a connected, nonblocking stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl Stream for Plain {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let mut ancillary = RecvAncillaryBuffer::new(&mut []);
        loop {
            match rustix::net::recvmsg(&self.0, spaces, &mut ancillary, RecvFlags::DONTWAIT) {
                Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
                    let cause = "unexpected file descriptors came along";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, cause));
                }
                Ok(message) => return Ok(Some(message.bytes)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match rustix::net::sendmsg(&self.0, slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => return Ok(Some(sent)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
