//! The checks that apply to every certificate, of a server or a client.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farfork_wire::NodeName;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyUsage};

use super::error::PeerError;
use crate::certificate::{CertificateFields, certificate_expires_s};
use crate::roster::Roster;
use crate::{Identity, Role};

/// How long a verified chain is cached, if the certificate does not expire earlier. The same bytes always have the same
/// signatures. Role, name and revocation are checked each time.
const CHAIN_CACHE_TTL: Duration = Duration::from_secs(60);

/// Maximum number of cached certificates: enough for the nodes of a large cluster.
const CHAIN_CACHE_MAX: usize = 2048;

/// An authenticated peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticatedPeer {
    /// Its identity.
    pub identity: Identity,
    /// The time of issue of its certificate, in microseconds since 1970.
    pub issued_us: u64,
}

impl fmt::Display for AuthenticatedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.identity, f)
    }
}

/// The roster in force, prepared for verification.
pub(crate) struct TrustAnchors {
    cluster: NodeName,
    anchors: Vec<TrustAnchor<'static>>,
    /// For each revoked member: certificates issued until this time are revoked.
    revoked_before_us: HashMap<String, u64>,
    /// Certificates with a verified chain, and the time until which the result is valid.
    verified_chains: Mutex<HashMap<Vec<u8>, (CertificateFields, UnixTime)>>,
}

impl fmt::Debug for TrustAnchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Anchors({}, {})", self.cluster, self.anchors.len())
    }
}

impl TrustAnchors {
    /// Prepares a roster.
    ///
    /// # Errors
    /// If an authority's certificate is damaged.
    pub(crate) fn new(roster: &Roster) -> Result<Self, webpki::Error> {
        let anchor = |der: &Vec<u8>| {
            let der = CertificateDer::from(der.as_slice());
            webpki::anchor_from_trusted_cert(&der).map(|anchor| anchor.to_owned())
        };
        let anchors = roster.authorities().iter().map(anchor).collect::<Result<_, _>>()?;
        let revoked = roster.revocations().iter();
        let revoked_before_us = revoked.map(|entry| (entry.subject.clone(), entry.issued_before_us)).collect();
        Ok(Self { cluster: roster.cluster().clone(), anchors, revoked_before_us, verified_chains: Mutex::default() })
    }

    /// Trusts one authority, of any cluster, for a node that joins.
    pub(crate) fn from_pinned(authority: &CertificateDer<'_>, cluster: NodeName) -> Result<Self, webpki::Error> {
        let anchors = vec![webpki::anchor_from_trusted_cert(authority)?.to_owned()];
        Ok(Self { cluster, anchors, revoked_before_us: HashMap::new(), verified_chains: Mutex::default() })
    }

    /// Checks everything except role and name.
    pub(crate) fn verify(&self, shown: &CertificateDer<'_>, now: UnixTime) -> Result<AuthenticatedPeer, PeerError> {
        let facts = self.verify_chain(shown, now)?;
        if facts.subject.cluster != self.cluster {
            return Err(PeerError::WrongCluster { subject: facts.subject, cluster: self.cluster.clone() });
        }
        let peer = AuthenticatedPeer { identity: facts.subject, issued_us: facts.issued_us };
        if self.is_revoked(&peer) {
            return Err(PeerError::Revoked { subject: peer.identity });
        }
        Ok(peer)
    }

    /// Whether the peer's certificate is revoked.
    pub(crate) fn is_revoked(&self, peer: &AuthenticatedPeer) -> bool {
        let before = self.revoked_before_us.get(&peer.identity.to_string());
        before.is_some_and(|before_us| peer.issued_us <= *before_us)
    }

    fn verify_chain(&self, shown: &CertificateDer<'_>, now: UnixTime) -> Result<CertificateFields, PeerError> {
        let lock = || self.verified_chains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((facts, until)) = lock().get(shown.as_ref())
            && now.as_secs() < until.as_secs()
        {
            return Ok(facts.clone());
        }
        let facts = CertificateFields::parse(shown).map_err(PeerError::MalformedCertificate)?;
        self.verify_signatures(shown, &facts, now)?;
        let expires = certificate_expires_s(shown)
            .ok_or_else(|| PeerError::MalformedCertificate("it has no expiry time".to_owned()))?;
        let mut seen = lock();
        if seen.len() >= CHAIN_CACHE_MAX {
            seen.clear();
        }
        // A certificate is valid until the end of its last second.
        let until_s = (now.as_secs() + CHAIN_CACHE_TTL.as_secs()).min(expires + 1);
        let until = UnixTime::since_unix_epoch(Duration::from_secs(until_s));
        seen.insert(shown.to_vec(), (facts.clone(), until));
        Ok(facts)
    }

    fn verify_signatures(
        &self,
        shown: &CertificateDer<'_>,
        facts: &CertificateFields,
        now: UnixTime,
    ) -> Result<(), PeerError> {
        let certificate =
            EndEntityCert::try_from(shown).map_err(|error| PeerError::MalformedCertificate(error.to_string()))?;
        let kinds = [webpki::ring::ECDSA_P256_SHA256];
        let usage = required_key_usage(facts.subject.role);
        let checked = certificate.verify_for_usage(&kinds, &self.anchors, &[], now, usage, None, None);
        let subject = || facts.subject.clone();
        checked.map(drop).map_err(|error| match error {
            webpki::Error::CertExpired { .. } => PeerError::Expired { subject: subject() },
            webpki::Error::CertNotValidYet { .. } => PeerError::NotYetValid { subject: subject() },
            webpki::Error::UnknownIssuer
            | webpki::Error::InvalidSignatureForPublicKey
            | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                PeerError::UnknownAuthority { subject: subject().to_string(), cluster: self.cluster.clone() }
            }
            other => PeerError::MalformedCertificate(other.to_string()),
        })
    }
}

/// The extended key usage that a role needs. A node's certificate is valid for both sides of a connection, any other only
/// for the client side. Every TLS library checks the same.
fn required_key_usage(role: Role) -> impl ExtendedKeyUsageValidator {
    match role {
        Role::Node => KeyUsage::server_auth(),
        Role::Client | Role::ReadOnly => KeyUsage::client_auth(),
    }
}
