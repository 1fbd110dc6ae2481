//! What is checked of every certificate, whichever side shows it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farfork_wire::NodeName;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyUsage};

use super::error::PeerError;
use crate::certificate::{Facts, expires_s};
use crate::roster::Roster;
use crate::{Identity, Role};

/// How long the outcome of checking a chain's signatures is remembered, or until the certificate expires: the arithmetic is
/// the same for the same bytes. Role, name and revocation are checked each time.
const SEEN_FOR: Duration = Duration::from_secs(60);

/// Most certificates that are remembered: the nodes of a large cluster.
const SEEN_MAX: usize = 2048;

/// Who a peer has proved to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub identity: Identity,
    /// When its certificate was made, in microseconds since 1970.
    pub issued_us: u64,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.identity, f)
    }
}

/// The roster in force, ready for use.
pub(crate) struct Anchors {
    cluster: NodeName,
    anchors: Vec<TrustAnchor<'static>>,
    /// By bearer: what was issued before counts no longer.
    revoked_before_us: HashMap<String, u64>,
    /// Certificates whose chain was checked, until when that holds.
    seen: Mutex<HashMap<Vec<u8>, (Facts, UnixTime)>>,
}

impl fmt::Debug for Anchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Anchors({}, {})", self.cluster, self.anchors.len())
    }
}

impl Anchors {
    /// Of a roster.
    ///
    /// # Errors
    /// An authority's certificate is damaged.
    pub(crate) fn new(roster: &Roster) -> Result<Self, webpki::Error> {
        let anchor = |der: &Vec<u8>| {
            let der = CertificateDer::from(der.as_slice());
            webpki::anchor_from_trusted_cert(&der).map(|anchor| anchor.to_owned())
        };
        let anchors = roster.authorities().iter().map(anchor).collect::<Result<_, _>>()?;
        let revoked = roster.revocations().iter();
        let revoked_before_us = revoked.map(|entry| (entry.bearer.clone(), entry.issued_before_us)).collect();
        Ok(Self { cluster: roster.cluster().clone(), anchors, revoked_before_us, seen: Mutex::default() })
    }

    /// Trusts one certificate of an authority, whatever its cluster, for a node that joins.
    pub(crate) fn pinned(authority: &CertificateDer<'_>, cluster: NodeName) -> Result<Self, webpki::Error> {
        let anchors = vec![webpki::anchor_from_trusted_cert(authority)?.to_owned()];
        Ok(Self { cluster, anchors, revoked_before_us: HashMap::new(), seen: Mutex::default() })
    }

    /// Checks everything but the role and the name.
    pub(crate) fn check(&self, shown: &CertificateDer<'_>, now: UnixTime) -> Result<Peer, PeerError> {
        let facts = self.check_chain(shown, now)?;
        if facts.bearer.cluster != self.cluster {
            return Err(PeerError::Cluster { bearer: facts.bearer, cluster: self.cluster.clone() });
        }
        let peer = Peer { identity: facts.bearer, issued_us: facts.issued_us };
        if self.is_revoked(&peer) {
            return Err(PeerError::Revoked { bearer: peer.identity });
        }
        Ok(peer)
    }

    /// Whether what a peer showed counts no longer.
    pub(crate) fn is_revoked(&self, peer: &Peer) -> bool {
        let before = self.revoked_before_us.get(&peer.identity.to_string());
        before.is_some_and(|before_us| peer.issued_us <= *before_us)
    }

    fn check_chain(&self, shown: &CertificateDer<'_>, now: UnixTime) -> Result<Facts, PeerError> {
        let lock = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((facts, until)) = lock().get(shown.as_ref())
            && now.as_secs() < until.as_secs()
        {
            return Ok(facts.clone());
        }
        let facts = Facts::of(shown).map_err(PeerError::Certificate)?;
        self.check_signatures(shown, &facts, now)?;
        let expires = expires_s(shown).ok_or_else(|| PeerError::Certificate("it has no end".to_owned()))?;
        let mut seen = lock();
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        // A certificate is good for the whole of its last second.
        let until_s = (now.as_secs() + SEEN_FOR.as_secs()).min(expires + 1);
        let until = UnixTime::since_unix_epoch(Duration::from_secs(until_s));
        seen.insert(shown.to_vec(), (facts.clone(), until));
        Ok(facts)
    }

    fn check_signatures(&self, shown: &CertificateDer<'_>, facts: &Facts, now: UnixTime) -> Result<(), PeerError> {
        let certificate = EndEntityCert::try_from(shown).map_err(|error| PeerError::Certificate(error.to_string()))?;
        let kinds = [webpki::ring::ECDSA_P256_SHA256];
        let usage = usage_of(facts.bearer.role);
        let checked = certificate.verify_for_usage(&kinds, &self.anchors, &[], now, usage, None, None);
        let bearer = || facts.bearer.clone();
        checked.map(drop).map_err(|error| match error {
            webpki::Error::CertExpired { .. } => PeerError::Expired { bearer: bearer() },
            webpki::Error::CertNotValidYet { .. } => PeerError::NotYetValid { bearer: bearer() },
            webpki::Error::UnknownIssuer
            | webpki::Error::InvalidSignatureForPublicKey
            | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                PeerError::UnknownAuthority { bearer: bearer().to_string(), cluster: self.cluster.clone() }
            }
            other => PeerError::Certificate(other.to_string()),
        })
    }
}

/// A node's certificate is good for both sides of a connection, the others' for one: so any TLS library would say.
fn usage_of(role: Role) -> impl ExtendedKeyUsageValidator {
    match role {
        Role::Node => KeyUsage::server_auth(),
        Role::Client | Role::ReadOnly => KeyUsage::client_auth(),
    }
}
