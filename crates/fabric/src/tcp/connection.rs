//! The requester's end of `tcp`: a link over a TCP socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::ConnectionId;

use super::TcpDialer;
use crate::stream::{EpollEventSource, Link, LinkConfig};
use crate::transport::Security;
use crate::{Address, Connection};

/// Starts to connect to an owner.
///
/// # Errors
/// The process cannot create another file descriptor.
pub fn connect(to: SocketAddr, security: Option<Arc<dyn Security>>) -> io::Result<Box<dyn Connection>> {
    let (address, dialer) = (Address::Tcp(to), Box::new(TcpDialer::new(to)));
    let parts = LinkConfig {
        address,
        dialer,
        security,
        event_source: Box::new(EpollEventSource::new()?),
        connection_id: random_connection_id()?,
    };
    let mut link = Link::new(parts);
    link.connect(Instant::now());
    Ok(Box::new(link))
}

/// Draws a connection id that is unique and cannot be guessed.
pub(crate) fn random_connection_id() -> io::Result<ConnectionId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(ConnectionId::from_bytes(bytes))
}
