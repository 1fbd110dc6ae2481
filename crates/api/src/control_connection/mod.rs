//! A connection to the control port of a node, authenticated at both ends before the first request.
//!
//! `connector` connects; `farfork-node` accepts. Both yield a `ControlStream`, which `revalidated_stream` ends when its
//! peer is no longer trusted.

mod connector;
mod revalidated_stream;
mod stream;

pub use connector::{MtlsConnector, TlsMode};
pub use revalidated_stream::RevalidatedStream;
pub use stream::{ControlStream, explain_tls_error};
