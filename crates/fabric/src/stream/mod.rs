//! The protocol over streams: [`Link`] is the requester's end, [`Peer`] the owner's of one connection. What the frames
//! mean is `protocol`'s business; what carries the bytes, the providers'.
//!
//! Link and peer wait for nothing. Who waits are the rims: [`EpollRim`] for a requester with sockets, a server's worker
//! for an owner's; `sim` has rims of its own.

mod complaints;
mod conduct;
mod connecting;
mod connection;
mod link;
mod listener;
mod mailbox;
mod peer;
mod porch;
mod rim;
mod seated;
mod server;
mod session;
mod socket;
mod trouble;
mod worker;

pub(crate) use link::{Link, LinkConfig};
pub(crate) use peer::{ServerConnection, TurnOutcome};
pub(crate) use rim::{EpollEventSource, EventSource, Interest};
pub(crate) use server::{ListenerConfig, StreamServer};
pub(crate) use socket::{SocketAttempt, create_socket};
