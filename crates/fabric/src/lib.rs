//! The fabric: connections between nodes; registered memory, read and written one-sidedly; messages.
//!
//! A requester names (seed, extent, offset), never an address; the owner of the seed looks up seed, token and bounds
//! at each request, without involving the seed's process. A connection mends itself: reads that got no answer are asked
//! again, for they change nothing; writes and messages are made once at most. An error is final (the owner refused), or
//! says since when the owner cannot be reached, and whether something may have been done all the same.
//!
//! ```text
//!   requester                                            owner
//!   Connection ── submit, poll ── completions            Exporter ── open ── Region ── read, write
//!       │                                                    ▲ (a Registry, or one's own)
//!   protocol::Requester   pure: what to send, what came  protocol::Owner
//!       │                                                    │
//!   stream::Link          connect, secure, reconnect     stream::Peer
//!       │                                                    │
//!   transport::Stream ─────── bytes of wire::frame ── transport::Stream
//! ```
//!
//! Providers differ in how the bytes travel, and have the same set of files: [`tcp`] sends them through a socket; [`shm`],
//! for requesters on the owner's host, asks through a Unix socket once and then reads the template's memory for itself;
//! [`sim`] is a world of its own, with faults and time from a seed, for tests of all that stands above streams.
//!
//! What memory there is to export is `farfork-fork`'s business; what proves who connects, `farfork-trust`'s.
#![forbid(unsafe_code)]

mod address;
mod blocking;
mod buffer;
mod connection;
mod error;
mod export;
mod message_queue;
mod protocol;
mod region_registry;
mod shared_memory;
pub mod shm;
pub mod sim;
mod spin;
mod stream;
pub mod tcp;
mod template_memory;
mod tls_security;
pub mod transport;

use std::io;
use std::sync::Arc;

pub use address::{Address, AddressError};
pub use blocking::{BlockingError, fetch_extent, read_blocking};
pub use buffer::Buffer;
pub use connection::{
    CHANGE_BYTES_MAX, Completion, Connection, MessageRequest, REQUESTS_MAX, ReadRequest, Reply, SeedKey, SubmitError,
    WriteRequest,
};
pub use error::{FabricError, LinkError};
pub use export::{Exporter, LocalTemplate, Region};
pub use farfork_wire::frame::change::{MESSAGE_BYTES_MAX, WRITE_BYTES_MAX};
pub use farfork_wire::frame::reply::Refusal;
pub use farfork_wire::frame::request::{ReadMode, Span};
pub use farfork_wire::frame::{READ_BYTES_MAX, SPANS_MAX};
pub use message_queue::{Message, MessageQueue, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX};
pub use region_registry::{RegionRegistry, RegisterError, Registration};
pub use shared_memory::SharedMemory;
pub use spin::AdaptiveSpin;
pub use template_memory::TemplateMemory;
pub use tls_security::{TlsSecurity, connect_node};
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
