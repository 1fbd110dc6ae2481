//! Connections of the control port: both ends authenticate before the first request.
//!
//! `acceptor` accepts, `connector` connects. Both yield a `ControlStream`, which `revalidated_stream` ends when its
//! peer is no longer trusted. `auth` decides for each request whether the peer may make it.

mod acceptor;
mod connector;
mod rate_limited_log;
mod revalidated_stream;
mod stream;

pub(crate) use acceptor::{ConnectionInfo, accept_connections};
pub(crate) use connector::{MtlsConnector, TlsMode};
pub(crate) use rate_limited_log::RateLimitedLog;
