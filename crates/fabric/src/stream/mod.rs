//! The protocol over streams: [`Link`] is the requester's end, [`ServerConnection`] the owner's end of one connection.
//! `protocol` defines the meaning of frames; the providers move the bytes.
//!
//! Links and server connections never block. For requesters with sockets, [`EpollEventSource`] waits; for an owner's
//! sockets, a server's worker. `sim` has counterparts of both.

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
