//! Connections of the control port: both ends show who they are before the first request.
//!
//! `entry` takes what connects, `exit` connects, `stream` is what both have then, for as long as `standing` says. What each
//! peer may ask for is decided request by request (`auth`).

mod complaints;
mod entry;
mod exit;
mod standing;
mod stream;

pub(crate) use complaints::RateLimitedLog;
pub(crate) use entry::{ConnectionInfo, accept_connections};
pub(crate) use exit::{MtlsConnector, TlsMode};
