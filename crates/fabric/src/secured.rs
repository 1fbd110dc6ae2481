//! Connections between members of a cluster: a TLS handshake in which both ends prove who they are, then records, or the
//! same stream in clear where both ends were told so. What is proved, and how, is `farfork-trust`'s business.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use farfork_trust::{Credentials, Session};
use farfork_wire::NodeName;

use crate::transport::{Security, Stream};
use crate::{Address, Connection};

/// Protects connections with a member's credentials.
#[derive(Debug, Clone)]
pub struct Secured {
    credentials: Credentials,
    /// The node that must be at the other end; any of the cluster where it is not known.
    expected: Option<NodeName>,
}

impl Secured {
    /// With these credentials; whoever answers has to be a node of the cluster.
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, expected: None }
    }

    /// For connections to one node.
    #[must_use]
    pub fn to(&self, node: &NodeName) -> Arc<dyn Security> {
        Arc::new(Self { credentials: self.credentials.clone(), expected: Some(node.clone()) })
    }
}

/// Makes a connection to a node, as [`crate::connect`] does: to no other one, where there are credentials to tell.
///
/// # Errors
/// As [`crate::connect`].
pub fn connect_node(
    address: &Address,
    node: &NodeName,
    credentials: Option<&Credentials>,
) -> io::Result<Box<dyn Connection>> {
    crate::connect_secured(address, credentials.map(|credentials| Secured::new(credentials.clone()).to(node)))
}

impl Security for Secured {
    fn client(&self, stream: Box<dyn Stream>, _: &Address) -> io::Result<Box<dyn Stream>> {
        let session = Session::connect(&self.credentials, Pipe(stream), self.expected.as_ref())?;
        Ok(Box::new(Member { session, credentials: self.credentials.clone() }))
    }

    fn server(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        let session = Session::accept(&self.credentials, Pipe(stream))?;
        Ok(Box::new(Member { session, credentials: self.credentials.clone() }))
    }
}

/// A stream to a member.
#[derive(Debug)]
struct Member {
    session: Session<Pipe>,
    credentials: Credentials,
}

impl Stream for Member {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        self.session.receive(spaces)
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.session.send(slices)
    }

    fn has_unsent(&self) -> bool {
        self.session.has_unsent()
    }

    fn keeps_received(&self) -> bool {
        self.session.keeps_received()
    }

    /// A client need not wait for the server's word of welcome: nobody processes what it sends meanwhile unless that
    /// comes. So a connection costs no round trip beyond the handshake's.
    fn shake(&mut self) -> io::Result<bool> {
        self.session.shake()?;
        Ok(self.session.may_send())
    }

    fn proves_bytes(&self) -> bool {
        self.session.may_send() && !self.session.is_clear()
    }

    fn peer(&self) -> Option<String> {
        self.session.peer().map(ToString::to_string)
    }

    fn check(&self) -> io::Result<()> {
        let standing = self.session.check_standing(&self.credentials);
        standing.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.session.pipe().0.socket()
    }

    fn is_ready(&self, receive: bool, send: bool) -> bool {
        self.session.pipe().0.is_ready(receive, send || self.session.has_unsent())
    }
}

/// A stream as `farfork-trust` uses it.
#[derive(Debug)]
struct Pipe(Box<dyn Stream>);

/// As the standard library says it.
fn or_blocked(outcome: io::Result<Option<usize>>) -> io::Result<usize> {
    outcome?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        or_blocked(self.0.receive(&mut [IoSliceMut::new(into)]))
    }

    fn read_vectored(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        or_blocked(self.0.receive(spaces))
    }
}

impl Write for Pipe {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        or_blocked(self.0.send(&[IoSlice::new(from)]))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_blocked(self.0.send(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
