//! The client: sessions and requests in flight, on a connection that reconnects by itself.

//   submit --> ClientProtocol (pure) <--> Client (streams, waiting, reconnecting) --> completions

mod blocking;
mod connection;
mod connector;
mod keepalive;
mod protocol;
mod receive;
mod request;
mod request_window;
mod session;
mod session_lifecycle;

pub use blocking::BlockingCallError;
pub use connection::{Client, ConnectionError};
pub use connector::{Connector, TcpConnector};
pub use protocol::SessionHandle;
pub use request::{CallError, Completion, OutgoingRequest, RequestPayload, SubmitError};

#[cfg(test)]
pub(crate) use protocol::ClientProtocol;
