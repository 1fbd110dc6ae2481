//! The fabric: connections between nodes, one-sided reads and writes of registered memory, and messages.
//!
//! A requester names (seed, extent, offset), never an address. The owner checks seed, token and bounds of every
//! request; the seed's process is not involved. A connection reconnects by itself. It repeats unanswered reads, because
//! reads change nothing; it makes a write or a message at most once. `farfork-fork` decides which memory is exported,
//! and `farfork-trust` authenticates the peers.
#![forbid(unsafe_code)]

//   requester                                            owner
//   Connection -- submit_*, poll -- completions          Exporter -- open_region -- Region -- read, write
//       |                                                    ^ (RegionRegistry, or the caller's own)
//   protocol::Requester   pure: requests and replies     protocol::Responder
//       |                                                    |
//   stream::Link          connect, secure, reconnect     stream::ServerConnection
//       |                                                    |
//   transport::Stream ------- bytes of wire::frame -- transport::Stream
//
// Providers differ in how they transport bytes, and have the same set of files. `tcp` sends them through a socket.
// `shm` is for requesters on the owner's host: it requests access once through a Unix socket, then reads the template's
// memory directly. `sim` is a simulated world with faults and time from a random seed, for tests of all code above
// streams.
//
// An error is final if the owner refused the request. Otherwise it contains the time for which the owner has been
// unreachable, and whether the change may have been made.

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

/// Starts to connect to the owner at `address`. If the owner cannot be reached, the connection retries until the
/// deadlines of its requests.
///
/// # Errors
/// The process cannot create another file descriptor. `Unsupported` for an address in a simulated world: use
/// [`sim::connect`].
pub fn connect(address: &Address) -> io::Result<Box<dyn Connection>> {
    connect_secured(address, None)
}

/// As [`connect`], with `security` around the stream. `shm` ignores `security`, because the kernel identifies the peer.
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
