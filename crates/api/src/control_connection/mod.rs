//! A connection to the control port of a node. Both ends are authenticated before the first request, except for a request to
//! join and with `--insecure`.
//!
//! `connector` connects; `farfork-node` accepts. Both yield a [`RevalidatedStream`]: a [`ControlStream`] that ends when its
//! peer is no longer trusted.

mod connector;
mod revalidated_stream;
mod stream;

pub use connector::{MtlsConnector, TlsMode};
pub use revalidated_stream::RevalidatedStream;
pub use stream::{ControlStream, explain_tls_error};
