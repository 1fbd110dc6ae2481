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

pub(crate) use link::{Link, Parts};
pub(crate) use peer::{Peer, Turn};
pub(crate) use rim::{EpollRim, Interest, Rim};
pub(crate) use server::{Door, Server};
pub(crate) use socket::{SocketAttempt, new_socket};
