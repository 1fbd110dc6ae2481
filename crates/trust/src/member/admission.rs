//! What the holder of the authority does for others: admits machines that join with a token, and renews nodes.
//!
//! The files decide whether they may, under the lock under which they change: a revocation takes effect wholly before
//! or wholly after.

use std::time::SystemTime;

use farfork_wire::NodeName;

use super::{MemberError, issuing_authority};
use crate::authority::NODE_VALID;
use crate::join_token::JoinProof;
use crate::trust_directory::TrustDirectory;
use crate::{AuthenticatedPeer, Identity, Role};

/// What somebody gets who becomes or stays a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// Its certificate (DER).
    pub certificate: Vec<u8>,
    /// The roster in force, as it travels.
    pub roster: Vec<u8>,
}

/// Makes a machine a node, if it has a token of this cluster. `is_free` tells whether it may have the name, and is asked
/// once the proof is known to be good: whoever has none learns no names. No two are asked at a time.
///
/// # Errors
/// [`MemberError::Token`], [`MemberError::NameTaken`], [`MemberError::Authority`] for what is no request, and as any file.
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
    directory.read_tokens()?.check_proof(proof, name, request, now)?;
    if !is_free() {
        return Err(MemberError::NameTaken);
    }
    let (roster, _) = directory.read_roster()?;
    let bearer = Identity { cluster: roster.cluster().clone(), role: Role::Node, name: name.clone() };
    issue_locked(directory, request, &bearer, now)
}

/// Gives a node that showed its certificate a new one, unless the one that it showed was revoked.
///
/// # Errors
/// [`MemberError::Revoked`], [`MemberError::Authority`] for what is no request, and as any file.
pub fn renew_certificate(
    directory: &TrustDirectory,
    bearer: &AuthenticatedPeer,
    request: &[u8],
    clock: impl FnOnce() -> SystemTime,
) -> Result<IssuedCertificate, MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let (roster, _) = directory.read_roster()?;
    if roster.is_revoked(bearer) {
        return Err(MemberError::Revoked { bearer: bearer.identity.clone() });
    }
    issue_locked(directory, request, &bearer.identity, clock())
}

/// The lock is held.
fn issue_locked(
    directory: &TrustDirectory,
    request: &[u8],
    bearer: &Identity,
    now: SystemTime,
) -> Result<IssuedCertificate, MemberError> {
    let (parsed, roster) = directory.read_roster()?;
    let certificate = issuing_authority(directory, &parsed)?.issue(request, bearer, now, NODE_VALID)?;
    Ok(IssuedCertificate { certificate, roster })
}
