//! The fabric: connections between nodes, and one-sided reads of the memory that a node exports.
//!
//! A requester names (seed, extent, offset), never an address; the owner of the seed looks up seed, token and bounds
//! at each read, without involving the seed's process. A read that got no answer may be asked again: it changes
//! nothing. So a connection mends itself, and an error is either final (the owner refused) or says since when the
//! owner cannot be reached.
//!
//! ```text
//!   requester                                            owner
//!   Connection ── submit, poll ── completions            Exporter ── open ── Region ── read
//!       │                                                    ▲
//!   protocol::Requester   pure: what to send, what came  protocol::Owner
//!       │                                                    │
//!   stream::Link          sockets, epoll, reconnect      stream::Server
//!       └──────────────────── bytes of wire::frame ──────────┘
//! ```
//!
//! Providers differ in how the bytes travel: [`tcp`] sends them through a socket; [`shm`], for requesters on the
//! owner's host, asks through a Unix socket once and then reads the template's memory for itself.
//!
//! What memory there is to export is `farfork-fork`'s business; who may connect, `farfork-node`'s.
#![forbid(unsafe_code)]

mod address;
mod blocking;
mod buffer;
mod connection;
mod error;
mod export;
mod protocol;
pub mod shm;
pub mod sim;
mod spin;
mod stream;
pub mod tcp;
mod template;
pub mod transport;

use std::io;

pub use address::{Address, AddressError};
pub use blocking::{BlockingError, fetch, read_blocking};
pub use buffer::Buffer;
pub use connection::{Completion, Connection, REQUESTS_MAX, ReadRequest, Reply, SeedKey, SubmitError};
pub use error::{FabricError, LinkError};
pub use export::{Exporter, Region, SameHost};
pub use farfork_wire::frame::reply::Refusal;
pub use farfork_wire::frame::request::{ReadMode, Span};
pub use farfork_wire::frame::{READ_BYTES_MAX, SPANS_MAX};
pub use spin::Spin;
pub use template::TemplateMemory;

/// Makes a connection to the owner at `address`. It does not wait: who cannot be reached is tried until the deadlines
/// of what is asked of it.
///
/// # Errors
/// Where this process cannot have another file descriptor.
pub fn connect(address: &Address) -> io::Result<Box<dyn Connection>> {
    Ok(match address {
        Address::Tcp(_) => Box::new(tcp::Connection::new(address.clone())?),
        Address::Shm(_) => Box::new(shm::Connection::new(address.clone())?),
    })
}
