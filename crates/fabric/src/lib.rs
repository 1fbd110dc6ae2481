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
mod inbox;
mod memory;
mod protocol;
mod registry;
mod secured;
pub mod shm;
pub mod sim;
mod spin;
mod stream;
pub mod tcp;
mod template;
pub mod transport;

use std::io;
use std::sync::Arc;

pub use address::{Address, AddressError};
pub use blocking::{BlockingError, fetch, read_blocking};
pub use buffer::Buffer;
pub use connection::{
    CHANGE_BYTES_MAX, Completion, Connection, MessageRequest, REQUESTS_MAX, ReadRequest, Reply, SeedKey, SubmitError,
    WriteRequest,
};
pub use error::{FabricError, LinkError};
pub use export::{Exporter, Region, SameHost};
pub use farfork_wire::frame::change::{MESSAGE_BYTES_MAX, WRITE_BYTES_MAX};
pub use farfork_wire::frame::reply::Refusal;
pub use farfork_wire::frame::request::{ReadMode, Span};
pub use farfork_wire::frame::{READ_BYTES_MAX, SPANS_MAX};
pub use inbox::{INBOX_BYTES_MAX, INBOX_MESSAGES_MAX, Inbox, Message};
pub use memory::SharedMemory;
pub use registry::{RegisterError, Registration, Registry};
pub use secured::{Secured, connect_node};
pub use spin::Spin;
pub use template::TemplateMemory;
pub use transport::Security;

/// Makes a connection to the owner at `address`. It does not wait: who cannot be reached is tried until the deadlines
/// of what is asked of it.
///
/// # Errors
/// Where this process cannot have another file descriptor; `Unsupported` for an address in a simulated world, which
/// [`sim::connect`] reaches from one of its nodes.
pub fn connect(address: &Address) -> io::Result<Box<dyn Connection>> {
    connect_secured(address, None)
}

/// The same, through something that protects connections. `shm` needs no such thing: the kernel says who is there.
///
/// # Errors
/// As [`connect`].
pub fn connect_secured(address: &Address, security: Option<Arc<dyn Security>>) -> io::Result<Box<dyn Connection>> {
    match address {
        Address::Tcp(to) => tcp::connect(*to, security),
        Address::Shm(path) => shm::connect(path),
        Address::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}
