//! The provider for other hosts: TCP sockets carry all requests and replies.

mod connection;
mod dialer;
mod server;

pub use connection::connect;
pub(crate) use connection::random_connection_id;
pub use dialer::TcpDialer;
pub use server::TcpServer;
