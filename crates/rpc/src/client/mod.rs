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

pub use blocking::CallFailure;
pub use call::{Body, CallError, Completion, Outgoing, SubmitError};
pub use connector::{Connector, TcpConnector};
pub use core::SessionKey;
pub use link::{Client, ConnectionError};

#[cfg(test)]
pub(crate) use core::Core;
