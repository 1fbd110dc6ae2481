//! Verifies that a peer's certificate is one of the cluster's, and that its subject may connect: chain, expiry, cluster,
//! role, name, revocation. rustls calls the verifiers, and itself checks that the peer has the key.

mod error;
mod trust_anchors;
mod verifier;

pub use error::PeerError;
pub(crate) use error::from_tls_error;
pub use trust_anchors::AuthenticatedPeer;
pub(crate) use trust_anchors::TrustAnchors;
pub(crate) use verifier::{ClientPolicy, ClientVerifier, PinnedServerVerifier, ServerVerifier};
