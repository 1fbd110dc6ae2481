//! The TCP control port: accepts connections, and authenticates the peer before its first request.
//!
//! `farfork_api::control_connection` has the connection type and the client side. `auth` decides for each request
//! whether the peer may make it.

mod acceptor;
mod rate_limited_log;

pub(crate) use acceptor::{ConnectionInfo, accept_connections};
pub(crate) use rate_limited_log::RateLimitedLog;
