//! The protocol over stream sockets, of the network or of this host: [`Link`] is the requester's end, [`Server`] the
//! owner's. Both providers use them; what the frames mean is `protocol`'s business.

mod link;
mod peer;
mod server;
mod session;
mod socket;
mod trouble;
mod worker;

pub(crate) use link::Link;
pub(crate) use server::{Server, StreamKind};
