//! The provider for other hosts: everything goes through a TCP socket.

mod connection;
mod server;

pub use connection::Connection;
pub use server::Server;
