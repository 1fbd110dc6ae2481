//! TLS connections between members of a cluster. Both ends authenticate in a handshake. After it, the stream consists
//! of TLS records, or of plain bytes if both ends are configured without encryption. `farfork-trust` implements the
//! authentication.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use farfork_trust::{AuthenticatedStream, Credentials};
use farfork_wire::NodeName;

use crate::transport::{Security, Stream};
use crate::{Address, Connection};

/// Authenticates connections with a member's credentials.
#[derive(Debug, Clone)]
pub struct TlsSecurity {
    credentials: Credentials,
    /// The only node that is accepted as the peer; `None` to accept any node of the cluster.
    expected: Option<NodeName>,
}

impl TlsSecurity {
    /// Creates security with these credentials. The peer must be a node of the cluster.
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, expected: None }
    }

    /// Returns a copy that accepts only this node as the peer.
    #[must_use]
    pub fn for_node(&self, node: &NodeName) -> Arc<dyn Security> {
        Arc::new(Self { credentials: self.credentials.clone(), expected: Some(node.clone()) })
    }
}

/// Connects to a node, as [`crate::connect`]. With credentials, no other node is accepted as the peer.
///
/// # Errors
/// As [`crate::connect`].
pub fn connect_node(
    address: &Address,
    node: &NodeName,
    credentials: Option<&Credentials>,
) -> io::Result<Box<dyn Connection>> {
    crate::connect_secured(address, credentials.map(|credentials| TlsSecurity::new(credentials.clone()).for_node(node)))
}

impl Security for TlsSecurity {
    fn wrap_client(&self, stream: Box<dyn Stream>, _: &Address) -> io::Result<Box<dyn Stream>> {
        let session =
            AuthenticatedStream::connect(&self.credentials, ReadWriteAdapter(stream), self.expected.as_ref())?;
        Ok(Box::new(TlsStream { session, credentials: self.credentials.clone() }))
    }

    fn wrap_server(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        let session = AuthenticatedStream::accept(&self.credentials, ReadWriteAdapter(stream))?;
        Ok(Box::new(TlsStream { session, credentials: self.credentials.clone() }))
    }
}

/// A stream to an authenticated member.
#[derive(Debug)]
struct TlsStream {
    session: AuthenticatedStream<ReadWriteAdapter>,
    credentials: Credentials,
}

impl Stream for TlsStream {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        self.session.receive(spaces)
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.session.send(slices)
    }

    fn has_unsent(&self) -> bool {
        self.session.has_unsent()
    }

    fn may_have_buffered(&self) -> bool {
        self.session.may_have_buffered()
    }

    /// A client does not wait until the server has accepted its certificate, which saves a round trip. If the server
    /// refuses the client, it processes no bytes that the client has sent.
    fn continue_handshake(&mut self) -> io::Result<bool> {
        self.session.continue_handshake()?;
        Ok(self.session.can_send())
    }

    fn is_integrity_protected(&self) -> bool {
        self.session.can_send() && !self.session.is_clear()
    }

    fn peer_identity(&self) -> Option<String> {
        self.session.peer().map(ToString::to_string)
    }

    fn check_peer_trusted(&self) -> io::Result<()> {
        let checked = self.session.check_peer_trusted(&self.credentials);
        checked.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.session.pipe().0.socket()
    }

    fn is_ready(&self, receive: bool, send: bool) -> bool {
        self.session.pipe().0.is_ready(receive, send || self.session.has_unsent())
    }
}

/// Implements `Read` and `Write`, which `farfork-trust` uses, for a stream.
#[derive(Debug)]
struct ReadWriteAdapter(Box<dyn Stream>);

/// Converts `None` to the error `WouldBlock`.
fn or_would_block(outcome: io::Result<Option<usize>>) -> io::Result<usize> {
    outcome?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

impl Read for ReadWriteAdapter {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        or_would_block(self.0.receive(&mut [IoSliceMut::new(into)]))
    }

    fn read_vectored(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        or_would_block(self.0.receive(spaces))
    }
}

impl Write for ReadWriteAdapter {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        or_would_block(self.0.send(&[IoSlice::new(from)]))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(self.0.send(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
