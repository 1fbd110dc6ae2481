//! The interface between protocols and the transport of their bytes: an ordered stream to one peer that never blocks.
//!
//! The memory protocol and the RPC use [`Stream`]; `tcp`, `shm` and `sim` implement it. [`Security`] wraps a stream in
//! a protected one (TLS). The user of a stream waits for its socket.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags};

use crate::Address;

//   Dialer -- dial -> ConnectAttempt -- poll -> Stream -- Security -> Stream -- continue_handshake -> protocol

/// An ordered stream of bytes to one peer. No method blocks, and every error is final for the stream.
pub trait Stream: fmt::Debug + Send {
    /// Receives into the spaces, in their order. Returns the number of bytes, `Some(0)` at the end of the stream, or
    /// `None` if nothing has arrived. A stream may buffer received bytes (the rest of a record that is longer than the
    /// spaces), so wait for its socket only after `None`.
    ///
    /// # Errors
    /// The stream broke, or its peer violated the protocol.
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>>;

    /// Sends from the slices, in their order. Returns the number of accepted bytes, or `None` if none can be accepted now.
    /// Accepted bytes may be buffered ([`Stream::has_unsent`]).
    ///
    /// # Errors
    /// The stream broke.
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>>;

    /// Whether buffered bytes wait for the socket. If so, the user waits until the socket accepts bytes, and calls
    /// [`Stream::send`] again, with no slices if there is nothing else to send.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Whether bytes may be buffered after a receive call that left space. If not, such a call has received all bytes,
    /// and needs no further call.
    fn may_have_buffered(&self) -> bool {
        true
    }

    /// Continues the handshake without waiting. Returns whether the handshake is complete. Until then, the stream
    /// receives and sends no data.
    ///
    /// # Errors
    /// The stream broke, or one side refused the other.
    fn continue_handshake(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Whether the stream protects the integrity of each byte, once the handshake is complete. Then frames need no
    /// checksum.
    fn is_integrity_protected(&self) -> bool {
        false
    }

    /// Returns the identity that the peer has proved; `None` if no proof was required.
    fn peer_identity(&self) -> Option<String> {
        None
    }

    /// Checks whether the peer is still trusted. Call it periodically while the stream is open.
    ///
    /// # Errors
    /// The peer was revoked, its certificate has expired, or its authority is no longer trusted.
    fn check_peer_trusted(&self) -> io::Result<()> {
        Ok(())
    }

    /// Sends as [`Stream::send`] does, and passes a file descriptor with the first byte.
    ///
    /// # Errors
    /// As [`Stream::send`]; also if descriptors cannot be passed.
    fn send_with_fd(&mut self, slices: &[IoSlice<'_>], descriptor: BorrowedFd<'_>) -> io::Result<Option<usize>> {
        let _ = (slices, descriptor);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes and returns the oldest received file descriptor.
    fn take_fd(&mut self) -> Option<OwnedFd> {
        None
    }

    /// Returns the socket to wait for; `None` if the stream has none (`sim`).
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// For streams without a socket: whether a receive call (if `receive`) or a send call (if `send`) would return
    /// something other than `None`. A stream that wraps another one forwards the call.
    fn is_ready(&self, receive: bool, send: bool) -> bool {
        receive || send
    }
}

/// The security of a process's connections. It wraps a stream in another one that authenticates the peer, and usually
/// encrypts.
pub trait Security: fmt::Debug + Send + Sync {
    /// Wraps a stream to the owner at `address`.
    ///
    /// # Errors
    /// This side's own credentials cannot be used.
    fn wrap_client(&self, stream: Box<dyn Stream>, address: &Address) -> io::Result<Box<dyn Stream>>;

    /// Wraps a stream that was accepted.
    ///
    /// # Errors
    /// As [`Security::wrap_client`].
    fn wrap_server(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>>;
}

/// Connects streams to one address.
pub trait Dialer: fmt::Debug + Send {
    /// Starts to connect.
    ///
    /// # Errors
    /// The attempt failed at once.
    fn dial(&mut self) -> io::Result<Box<dyn ConnectAttempt>>;
}

/// An attempt to connect.
pub trait ConnectAttempt: fmt::Debug + Send {
    /// Returns the stream once it is connected; `None` before that.
    ///
    /// # Errors
    /// The attempt failed.
    fn poll(&mut self) -> io::Result<Option<Box<dyn Stream>>>;

    /// Returns the socket of the attempt, which becomes writable when the attempt has ended; `None` if there is none.
    /// The stream uses the same socket.
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// For attempts without a socket: whether the attempt has ended.
    fn is_ready(&self) -> bool {
        true
    }
}

/// A stream over a socket, without security.
#[derive(Debug)]
pub struct PlainStream(OwnedFd);

impl PlainStream {
    /// Makes a stream from a connected, nonblocking stream socket.
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
                    let cause = "the peer passed unexpected file descriptors";
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
