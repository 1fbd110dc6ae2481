//! Whether a certificate that a peer showed is one of the cluster's, and of somebody who may be there: chain, expiry,
//! cluster, role, name, revocation. TLS asks; what TLS itself proves (that the peer has the key) is rustls's business.

mod anchors;
mod error;
mod verifier;

pub(crate) use anchors::Anchors;
pub use anchors::Peer;
pub use error::PeerError;
pub(crate) use error::explain;
pub(crate) use verifier::{Accepts, ClientVerifier, PinVerifier, ServerVerifier};
