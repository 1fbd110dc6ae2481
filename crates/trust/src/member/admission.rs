//! The requests that other machines send to the member with the authority: joining with a token, and renewing a certificate.
//!
//! The files decide whether a request is granted. They are read under the lock under which they change, so that a revocation
//! takes effect wholly before or wholly after a request.

use std::time::SystemTime;

use farfork_wire::NodeName;

use super::{MemberError, issuing_authority};
use crate::authority::NODE_VALID;
use crate::join_token::JoinProof;
use crate::trust_directory::TrustDirectory;
use crate::{AuthenticatedPeer, Identity, Role};

/// The reply to a machine that joins, or to a node that renews its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate (DER).
    pub certificate: Vec<u8>,
    /// The roster in force, encoded.
    pub roster: Vec<u8>,
}

/// Admits a machine as a node, if it has a token of this cluster. `is_free` returns whether the name is available. It is
/// called after the proof was verified, so that a machine without a token learns no names. The directory's lock serializes
/// its calls.
///
/// # Errors
/// [`MemberError::Token`], [`MemberError::NameTaken`]; [`MemberError::Authority`] for an invalid request; errors of the
/// files.
pub fn admit_node(
    directory: &TrustDirectory,
    proof: &JoinProof,
    request: &[u8],
    name: &NodeName,
    is_free: impl FnOnce() -> bool,
    clock: impl FnOnce() -> SystemTime,
) -> Result<IssuedCertificate, MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let now = clock();
    let mut tokens = directory.read_tokens()?;
    tokens.check_proof(proof, name, request, now)?;
    if !is_free() {
        return Err(MemberError::NameTaken);
    }
    let (roster, _) = directory.read_roster()?;
    let subject = Identity { cluster: roster.cluster().clone(), role: Role::Node, name: name.clone() };
    let issued = issue_locked(directory, request, &subject, now)?;
    if tokens.remove_used(proof, name, request) {
        directory.write_tokens(&tokens)?;
    }
    Ok(issued)
}

/// Issues a new certificate to a node that showed its present one, unless that was revoked.
///
/// # Errors
/// [`MemberError::Revoked`]; [`MemberError::Authority`] for an invalid request; errors of the files.
pub fn renew_certificate(
    directory: &TrustDirectory,
    peer: &AuthenticatedPeer,
    request: &[u8],
    clock: impl FnOnce() -> SystemTime,
) -> Result<IssuedCertificate, MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let (roster, _) = directory.read_roster()?;
    if roster.is_revoked(peer) {
        return Err(MemberError::Revoked { subject: peer.identity.clone() });
    }
    issue_locked(directory, request, &peer.identity, clock())
}

/// Issues a certificate. The caller holds the lock.
fn issue_locked(
    directory: &TrustDirectory,
    request: &[u8],
    subject: &Identity,
    now: SystemTime,
) -> Result<IssuedCertificate, MemberError> {
    let (parsed, roster) = directory.read_roster()?;
    let certificate = issuing_authority(directory, &parsed)?.issue(request, subject, now, NODE_VALID)?;
    Ok(IssuedCertificate { certificate, roster })
}
