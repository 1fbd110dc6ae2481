//! Installs a certificate that another member issued. The sender may be wrong, and the replaced identity cannot be
//! recovered. So the certificate is first verified as any peer would verify it.

use farfork_wire::NodeName;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::MemberError;
use crate::certificate::CertificateFields;
use crate::key::UncertifiedKey;
use crate::roster::Roster;
use crate::trust_directory::{DirectoryError, TrustDirectory};
use crate::verify::TrustAnchors;
use crate::{Fingerprint, Identity, PeerError, Role};

/// Completes a join as the node `name`: verifies the certificate and the roster that the cluster sent, and installs them.
///
/// # Errors
/// [`MemberError::Roster`] if the pinned authority did not sign the roster; [`MemberError::InvalidCertificate`];
/// [`DirectoryError`].
pub fn install_join(
    into: &TrustDirectory,
    key: &UncertifiedKey,
    name: &NodeName,
    certificate: &[u8],
    roster: &[u8],
    pin: Fingerprint,
) -> Result<(), MemberError> {
    let first = Roster::verify_pinned(roster, pin)?;
    let subject = Identity { cluster: first.cluster().clone(), role: Role::Node, name: name.clone() };
    check_issued(&first, key, certificate, &subject)?;
    install_identity(into, key, certificate, roster)
}

/// Completes the renewal of a member's own certificate.
///
/// # Errors
/// [`MemberError::InvalidCertificate`]; then the present certificate stays in force. [`DirectoryError`].
pub fn install_renewal(
    directory: &TrustDirectory,
    key: &UncertifiedKey,
    certificate: &[u8],
) -> Result<(), MemberError> {
    let _lock = directory.lock()?;
    let current = CertificateDer::from_pem_slice(directory.read_identity()?.as_bytes());
    let subject =
        current.map_err(|error| error.to_string()).and_then(|current| Ok(CertificateFields::parse(&current)?.subject));
    let subject = subject.map_err(|cause| DirectoryError::InvalidContent { path: directory.identity_path(), cause })?;
    check_issued(&directory.read_roster()?.0, key, certificate, &subject)?;
    Ok(directory.write_identity(&key.to_identity_pem(certificate))?)
}

/// Installs the first identity in a directory.
pub(super) fn install_identity(
    into: &TrustDirectory,
    key: &UncertifiedKey,
    certificate: &[u8],
    roster: &[u8],
) -> Result<(), MemberError> {
    into.create()?;
    let _lock = into.lock()?;
    if into.has_identity() {
        return Err(DirectoryError::AlreadyExists { path: into.identity_path() }.into());
    }
    into.write_roster(roster)?;
    Ok(into.write_identity(&key.to_identity_pem(certificate))?)
}

/// Checks that members would accept the certificate, and that it is for this subject and key.
fn check_issued(
    roster: &Roster,
    key: &UncertifiedKey,
    certificate: &[u8],
    subject: &Identity,
) -> Result<(), PeerError> {
    let anchors = TrustAnchors::new(roster).map_err(|error| PeerError::MalformedCertificate(error.to_string()))?;
    let shown = anchors.verify(&CertificateDer::from(certificate), UnixTime::now())?.identity;
    if shown != *subject {
        return Err(PeerError::MalformedCertificate(format!("it is for {shown}, and this is {subject}")));
    }
    if !key.matches_certificate(certificate) {
        return Err(PeerError::MalformedCertificate("it is for another key".to_owned()));
    }
    Ok(())
}
