//! Putting a certificate in force that somebody issued. Whoever sent it may err, and the identity that it replaces cannot
//! be had back: it is checked first as any peer would check it.

use farfork_wire::NodeName;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::MemberError;
use crate::certificate::Facts;
use crate::directory::{Directory, DirectoryError};
use crate::key::NewKey;
use crate::roster::Roster;
use crate::verify::Anchors;
use crate::{Fingerprint, Identity, PeerError, Role};

/// Ends a joining as a node of this name: checks what the cluster answered, and puts it in force.
///
/// # Errors
/// [`MemberError::Roster`] where the pinned authority did not sign the roster; [`MemberError::Answer`]; as any file.
pub fn install_joined(
    into: &Directory,
    key: &NewKey,
    name: &NodeName,
    certificate: &[u8],
    roster: &[u8],
    pin: Fingerprint,
) -> Result<(), MemberError> {
    let first = Roster::check_first(roster, pin)?;
    let bearer = Identity { cluster: first.cluster().clone(), role: Role::Node, name: name.clone() };
    check(&first, key, certificate, &bearer)?;
    install(into, key, certificate, roster)
}

/// Ends a renewal of a member's own key.
///
/// # Errors
/// [`MemberError::Answer`], and the certificate that was in force stays; as any file.
pub fn install_renewed(directory: &Directory, key: &NewKey, certificate: &[u8]) -> Result<(), MemberError> {
    let _lock = directory.lock()?;
    let current = CertificateDer::from_pem_slice(directory.read_identity()?.as_bytes());
    let bearer = current.map_err(|error| error.to_string()).and_then(|current| Ok(Facts::of(&current)?.bearer));
    let bearer = bearer.map_err(|cause| DirectoryError::Content { path: directory.identity(), cause })?;
    check(&directory.read_roster()?.0, key, certificate, &bearer)?;
    Ok(directory.write_identity(&key.with_certificate(certificate))?)
}

/// Puts a first identity into a directory.
pub(super) fn install(into: &Directory, key: &NewKey, certificate: &[u8], roster: &[u8]) -> Result<(), MemberError> {
    into.make()?;
    let _lock = into.lock()?;
    if into.has_identity() {
        return Err(DirectoryError::Exists { path: into.identity() }.into());
    }
    into.write_roster(roster)?;
    Ok(into.write_identity(&key.with_certificate(certificate))?)
}

/// Whether members would accept it, and it is for this bearer and key.
fn check(roster: &Roster, key: &NewKey, certificate: &[u8], bearer: &Identity) -> Result<(), PeerError> {
    let anchors = Anchors::new(roster).map_err(|error| PeerError::Certificate(error.to_string()))?;
    let shown = anchors.check(&CertificateDer::from(certificate), UnixTime::now())?.identity;
    if shown != *bearer {
        return Err(PeerError::Certificate(format!("it is for {shown}, and this is {bearer}")));
    }
    if !key.is_of(certificate) {
        return Err(PeerError::Certificate("it is for another key".to_owned()));
    }
    Ok(())
}
