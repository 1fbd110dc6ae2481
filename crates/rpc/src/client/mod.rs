//! The caller's end: sessions, and requests in flight, on a connection that mends itself.
//!
//! ```text
//!   submit ──▶ Core (pure: what to send, what came) ◀──▶ Client (streams, waiting, reconnecting) ──▶ completions
//! ```

mod blocking;
mod call;
mod connector;
mod core;
mod frames;
mod link;
mod requests;
mod session;
mod sessions;
mod silence;

pub use blocking::BlockingCallError;
pub use call::{CallError, Completion, OutgoingRequest, RequestPayload, SubmitError};
pub use connector::{Connector, TcpConnector};
pub use core::SessionHandle;
pub use link::{Client, ConnectionError};

#[cfg(test)]
pub(crate) use core::ClientProtocol;
