//! Whether a certificate that a peer showed is one of the cluster's, and of somebody who may be there: chain, expiry,
//! cluster, role, name, revocation. TLS asks; what TLS itself proves (that the peer has the key) is rustls's business.

mod error;
mod trust_anchors;
mod verifier;

pub use error::PeerError;
pub(crate) use error::from_tls_error;
pub use trust_anchors::AuthenticatedPeer;
pub(crate) use trust_anchors::TrustAnchors;
pub(crate) use verifier::{ClientPolicy, ClientVerifier, PinnedServerVerifier, ServerVerifier};
