//! The interface between protocols and the transport of their bytes: an ordered stream to one peer that never blocks.
//!
//! The memory protocol and the RPC use [`Stream`]; `tcp`, `shm` and `sim` implement it. [`Security`] wraps a stream in
//! one that protects it (TLS). The owner of a stream waits for its socket.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags};

use crate::Address;

//   Dialer -- dial -> ConnectAttempt -- poll -> Stream -- Security -> Stream -- continue_handshake -> protocol

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

    /// Whether bytes may wait inside after a receipt that left room. Where that cannot be, the end of what there is now
    /// is known without asking once more.
    fn may_have_buffered(&self) -> bool {
        true
    }

    /// Does of the handshake what can be done now; tells whether it is over. Before that, nothing is received or sent.
    ///
    /// # Errors
    /// The stream broke, or peer and this side do not come to trust each other.
    fn continue_handshake(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Whether what is received is proved to be what was sent, once [`Stream::continue_handshake`] is over: nobody has to look again.
    fn is_integrity_protected(&self) -> bool {
        false
    }

    /// Who the peer has proved to be; `None` where nothing was to be proved.
    fn peer_identity(&self) -> Option<String> {
        None
    }

    /// Whether the peer may still be there, asked now and then while the stream stands.
    ///
    /// # Errors
    /// It may not: it was revoked, its certificate has expired, or nobody trusts that one's authority any more.
    fn check_peer_trusted(&self) -> io::Result<()> {
        Ok(())
    }

    /// Sends as [`Stream::send`] does, and a file descriptor along with the first byte.
    ///
    /// # Errors
    /// Also where descriptors cannot be passed.
    fn send_with_fd(&mut self, slices: &[IoSlice<'_>], descriptor: BorrowedFd<'_>) -> io::Result<Option<usize>> {
        let _ = (slices, descriptor);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The next file descriptor that came along with bytes.
    fn take_fd(&mut self) -> Option<OwnedFd> {
        None
    }

    /// The socket to wait for; `None` where there is none (`sim`).
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// Where there is no socket to wait for: whether receiving (if `receive`) or sending (if `send`) would give
    /// something else than `None`. A stream around another one passes the question on.
    fn is_ready(&self, receive: bool, send: bool) -> bool {
        receive || send
    }
}

/// What protects the connections of a process: it puts a stream that encrypts, or only asks who is there, around another.
pub trait Security: fmt::Debug + Send + Sync {
    /// Around a stream to the owner at `address`.
    ///
    /// # Errors
    /// Where this side's own credentials cannot be used.
    fn wrap_client(&self, stream: Box<dyn Stream>, address: &Address) -> io::Result<Box<dyn Stream>>;

    /// Around a stream that was accepted.
    ///
    /// # Errors
    /// As [`Security::wrap_client`].
    fn wrap_server(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>>;
}

/// What makes streams to one place.
pub trait Dialer: fmt::Debug + Send {
    /// Begins to connect.
    ///
    /// # Errors
    /// Where that fails at once.
    fn dial(&mut self) -> io::Result<Box<dyn ConnectAttempt>>;
}

/// An attempt to connect.
pub trait ConnectAttempt: fmt::Debug + Send {
    /// The stream, once it is there; `None` before.
    ///
    /// # Errors
    /// The attempt failed.
    fn poll(&mut self) -> io::Result<Option<Box<dyn Stream>>>;

    /// The socket that takes bytes once the attempt has ended, and is then the stream's; `None` where there is none.
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// Where there is no socket to wait for: whether the attempt has ended.
    fn is_ready(&self) -> bool {
        true
    }
}

/// A socket's own stream, with nothing around it.
#[derive(Debug)]
pub struct PlainStream(OwnedFd);

impl PlainStream {
    /// Of a connected, nonblocking stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl Stream for PlainStream {
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

    fn may_have_buffered(&self) -> bool {
        false
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
