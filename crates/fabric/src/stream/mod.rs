//! The protocol over streams: [`Link`] is the requester's end, [`Peer`] the owner's of one connection. What the frames
//! mean is `protocol`'s business; what carries the bytes, the providers'.
//!
//! Link and peer wait for nothing. Who waits are the rims: [`EpollRim`] for a requester with sockets, a server's worker
//! for an owner's; `sim` has rims of its own.

mod command_queue;
mod connection;
mod cpu_policy;
mod event_source;
mod framed_stream;
mod handshake_acceptor;
mod link;
mod link_failure;
mod link_setup;
mod listener;
mod rate_limited_log;
mod server;
mod server_connection;
mod socket;
mod watched_connection;
mod worker;

pub(crate) use event_source::{EpollEventSource, EventSource, Interest};
pub(crate) use link::{Link, LinkConfig};
pub(crate) use server::{ListenerConfig, StreamServer};
pub(crate) use server_connection::{ServerConnection, TurnOutcome};
pub(crate) use socket::{SocketAttempt, create_socket};
