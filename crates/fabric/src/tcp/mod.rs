//! The provider for other hosts: everything goes through a TCP socket.

mod connection;
mod dialer;
mod server;

pub use connection::connect;
pub(crate) use connection::random_name;
pub use dialer::Dialer;
pub use server::Server;
