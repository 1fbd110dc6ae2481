//! The requester's end of `tcp`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::ConnectionName;

use super::Dialer;
use crate::stream::{EpollRim, Link, Parts};
use crate::transport::Security;
use crate::{Address, Connection};

/// Begins to connect.
///
/// # Errors
/// Where this process cannot have another file descriptor.
pub fn connect(to: SocketAddr, security: Option<Arc<dyn Security>>) -> io::Result<Box<dyn Connection>> {
    let (address, dialer) = (Address::Tcp(to), Box::new(Dialer::new(to)));
    let parts = Parts { address, dialer, security, rim: Box::new(EpollRim::new()?), name: random_name()? };
    let mut link = Link::new(parts);
    link.connect(Instant::now());
    Ok(Box::new(link))
}

/// A name that nobody else has, or can guess.
pub(crate) fn random_name() -> io::Result<ConnectionName> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(ConnectionName::from_bytes(bytes))
}
