//! Whether a certificate that a peer showed is one of the cluster's, and of somebody who may be there: chain, expiry,
//! cluster, role, name, revocation. TLS asks; what TLS itself proves (that the peer has the key) is rustls's business.

mod anchors;
mod error;
mod verifier;

pub use anchors::AuthenticatedPeer;
pub(crate) use anchors::TrustAnchors;
pub use error::PeerError;
pub(crate) use error::from_tls_error;
pub(crate) use verifier::{ClientPolicy, ClientVerifier, PinnedServerVerifier, ServerVerifier};
