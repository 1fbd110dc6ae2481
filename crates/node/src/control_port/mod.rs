//! Connections of the control port: both ends show who they are before the first request.
//!
//! `entry` takes what connects, `exit` connects, `stream` is what both have then, for as long as `standing` says. What each
//! peer may ask for is decided request by request (`auth`).

mod acceptor;
mod connector;
mod rate_limited_log;
mod revalidated_stream;
mod stream;

pub(crate) use acceptor::{ConnectionInfo, accept_connections};
pub(crate) use connector::{MtlsConnector, TlsMode};
pub(crate) use rate_limited_log::RateLimitedLog;
