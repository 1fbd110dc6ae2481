//! The roster: the authorities that a cluster trusts, and the revoked certificates. Every member has a copy. A newer roster
//! spreads from member to member. A receiver accepts it if an authority that it already trusts has signed it.
//!
//! During a rotation there are two authorities. The first one issues certificates, and both sign.

use std::time::SystemTime;

use farfork_wire::NodeName;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use webpki::EndEntityCert;

use crate::authority::{Authority, AuthorityError};
use crate::certificate::certificate_issued_us;
use crate::{AuthenticatedPeer, Fingerprint, Identity};

/// ```text
///   0           8        12
///   ├───────────┼────────┼──────────────────────────────────────────────┤
///   │ FFROSTER  │ form 1 │ postcard: document, signatures               │
///   └───────────┴────────┴──────────────────────────────────────────────┘
///                            document = postcard: cluster, counter, authorities, revocations
/// ```
const MAGIC: [u8; 12] = *b"FFROSTER\x01\0\0\0";

/// Maximum length of a roster, in bytes: about ten thousand revocations.
pub const ROSTER_BYTES_MAX: usize = 1 << 20;

/// Maximum length of a roster after a revocation, in bytes. The rest is for the certificate and the signature of another
/// authority, so that a rotation remains possible.
const REVOCABLE_BYTES_MAX: usize = ROSTER_BYTES_MAX - (8 << 10);

/// Maximum number of authorities: the present one and the previous one.
const AUTHORITIES_MAX: usize = 2;

/// Prefix of every signed document, so that a signature is not valid for anything else.
const SIGNATURE_CONTEXT: &[u8] = b"farfork roster 1\0";

/// Why a roster is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// The roster cannot be decoded.
    #[error("the roster is damaged: {0}")]
    Damaged(String),
    /// The roster is too long.
    #[error("the roster has {bytes} bytes, {ROSTER_BYTES_MAX} at most")]
    TooLong {
        /// Length of the roster, in bytes.
        bytes: usize,
    },
    /// The roster has too many revocations.
    #[error(
        "the roster has no room for another revocation: replace the authority with `farfork cluster rotate --authority` and `--finish`, which drops the earlier ones"
    )]
    Full,
    /// An authority cannot sign.
    #[error("the roster cannot be signed: {0}")]
    Sign(String),
    /// The roster belongs to another cluster.
    #[error("the roster belongs to cluster `{theirs}`, not to `{ours}`")]
    WrongCluster {
        /// Cluster of the roster.
        theirs: NodeName,
        /// Cluster of the receiver.
        ours: NodeName,
    },
    /// The roster is not newer than the one in force.
    #[error("the roster is not newer than the one in force")]
    Stale,
    /// No trusted authority has signed the roster.
    #[error("no authority that this cluster trusts signed the roster")]
    Unsigned,
}

/// Revokes certificates of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The member, as a URI.
    pub subject: String,
    /// Certificates issued until this time are revoked, in microseconds since 1970.
    pub issued_before_us: u64,
}

impl Revocation {
    /// Whether all certificates that it covers have expired. They were issued before the revocation, and their lifetime is
    /// limited by the member's role.
    fn is_expired(&self, now_us: u64) -> bool {
        let Ok(subject) = self.subject.parse::<Identity>() else { return false };
        let valid_us = u64::try_from(subject.role.validity_max().as_micros()).unwrap_or(u64::MAX);
        self.issued_before_us.saturating_add(valid_us) < now_us
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RosterDocument {
    cluster: NodeName,
    counter: u64,
    authorities: Vec<Vec<u8>>,
    revocations: Vec<Revocation>,
}

impl RosterDocument {
    fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a roster serialises")
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct RosterSignature {
    authority: Fingerprint,
    bytes: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SignedRoster {
    document: Vec<u8>,
    signatures: Vec<RosterSignature>,
}

/// A roster that this member has created or verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    document: RosterDocument,
}

impl Roster {
    /// The first roster of a cluster.
    pub fn new(cluster: &NodeName, authority: &Authority) -> Self {
        let authorities = vec![authority.certificate().to_vec()];
        Self { document: RosterDocument { cluster: cluster.clone(), counter: 1, authorities, revocations: Vec::new() } }
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &NodeName {
        &self.document.cluster
    }

    /// The number of the roster. It rises with each change.
    pub fn counter(&self) -> u64 {
        self.document.counter
    }

    /// The certificates of the authorities (DER). The first one issues certificates.
    pub fn authorities(&self) -> &[Vec<u8>] {
        &self.document.authorities
    }

    /// The revocations.
    pub fn revocations(&self) -> &[Revocation] {
        &self.document.revocations
    }

    /// Revokes all certificates that were issued to a member until now. Drops earlier revocations whose certificates have
    /// all expired by now.
    ///
    /// # Errors
    /// [`RosterError::Full`]; the roster is unchanged then.
    pub fn revoke(&mut self, subject: &Identity, now: SystemTime) -> Result<(), RosterError> {
        let subject = subject.to_string();
        let issued_before_us = crate::timestamp::unix_us(now);
        let counts = |earlier: &Revocation| earlier.subject != subject && !earlier.is_expired(issued_before_us);
        let mut next = self.document.clone();
        next.revocations.retain(counts);
        next.revocations.push(Revocation { subject, issued_before_us });
        next.counter += 1;
        if next.encode().len() > REVOCABLE_BYTES_MAX {
            return Err(RosterError::Full);
        }
        self.document = next;
        Ok(())
    }

    /// Whether a peer's certificate is revoked.
    pub fn is_revoked(&self, peer: &AuthenticatedPeer) -> bool {
        let subject = peer.identity.to_string();
        self.document
            .revocations
            .iter()
            .any(|entry| entry.subject == subject && peer.issued_us <= entry.issued_before_us)
    }

    /// Begins a rotation: the new authority issues certificates from now on, and the previous one is still trusted.
    pub fn begin_rotation(&mut self, new: &Authority) {
        self.document.authorities.truncate(AUTHORITIES_MAX - 1);
        self.document.authorities.insert(0, new.certificate().to_vec());
        self.document.counter += 1;
    }

    /// Ends a rotation: only the present authority is trusted. Revocations of certificates of the previous one are dropped.
    pub fn end_rotation(&mut self) {
        self.document.authorities.truncate(1);
        if let Some(made_us) = self.document.authorities.first().and_then(|authority| certificate_issued_us(authority))
        {
            self.document.revocations.retain(|entry| entry.issued_before_us >= made_us);
        }
        self.document.counter += 1;
    }

    /// Signs the roster with all these authorities.
    ///
    /// # Errors
    /// [`RosterError::Sign`], [`RosterError::TooLong`].
    ///
    /// # Panics
    /// Never in practice: the types have no state that postcard refuses.
    pub fn sign(&self, authorities: &[&Authority]) -> Result<Vec<u8>, RosterError> {
        let document = self.document.encode();
        let message = message_to_sign(&document);
        let sign = |authority: &&Authority| -> Result<RosterSignature, AuthorityError> {
            Ok(RosterSignature { authority: authority.fingerprint(), bytes: authority.sign(&message)? })
        };
        let signatures = authorities.iter().map(sign).collect::<Result<_, _>>();
        let signatures = signatures.map_err(|error| RosterError::Sign(error.to_string()))?;
        let signed = postcard::to_stdvec(&SignedRoster { document, signatures }).expect("a roster serialises");
        let bytes = [&MAGIC[..], &signed].concat();
        check_length(&bytes)?;
        Ok(bytes)
    }

    /// Decodes the roster of this member's own trust directory. It is trusted without a check of signatures, like the keys
    /// next to it.
    ///
    /// # Errors
    /// [`RosterError::Damaged`], [`RosterError::TooLong`].
    pub fn decode_trusted(bytes: &[u8]) -> Result<Self, RosterError> {
        Ok(decode(bytes)?.0)
    }

    /// Verifies a received roster against the one in force.
    ///
    /// # Errors
    /// [`RosterError`].
    pub fn verify_successor(&self, bytes: &[u8]) -> Result<Self, RosterError> {
        let (next, signed) = decode(bytes)?;
        if next.cluster() != self.cluster() {
            return Err(RosterError::WrongCluster { theirs: next.cluster().clone(), ours: self.cluster().clone() });
        }
        if next.counter() <= self.counter() {
            return Err(RosterError::Stale);
        }
        let trusted = self.authorities().iter().any(|authority| is_signed_by(&signed, authority));
        if trusted { Ok(next) } else { Err(RosterError::Unsigned) }
    }

    /// Verifies the first roster that a joining node gets. It must contain the authority that the token pins, and that
    /// authority must have signed it.
    ///
    /// # Errors
    /// [`RosterError`].
    pub fn verify_pinned(bytes: &[u8], pinned: Fingerprint) -> Result<Self, RosterError> {
        let (roster, signed) = decode(bytes)?;
        let pinned = roster.authorities().iter().find(|authority| Fingerprint::of_certificate(authority) == pinned);
        match pinned {
            Some(authority) if is_signed_by(&signed, authority) => Ok(roster),
            _ => Err(RosterError::Unsigned),
        }
    }
}

fn check_length(bytes: &[u8]) -> Result<(), RosterError> {
    let bytes = bytes.len();
    if bytes > ROSTER_BYTES_MAX { Err(RosterError::TooLong { bytes }) } else { Ok(()) }
}

fn message_to_sign(document: &[u8]) -> Vec<u8> {
    [SIGNATURE_CONTEXT, document].concat()
}

fn decode(bytes: &[u8]) -> Result<(Roster, SignedRoster), RosterError> {
    let damaged = |cause: &dyn std::fmt::Display| RosterError::Damaged(cause.to_string());
    check_length(bytes)?;
    let body = bytes.strip_prefix(&MAGIC).ok_or_else(|| damaged(&"it does not begin with the magic of this format"))?;
    let signed: SignedRoster = postcard::from_bytes(body).map_err(|error| damaged(&error))?;
    let document: RosterDocument = postcard::from_bytes(&signed.document).map_err(|error| damaged(&error))?;
    if !(1..=AUTHORITIES_MAX).contains(&document.authorities.len()) {
        return Err(damaged(&"it has no authority, or too many"));
    }
    Ok((Roster { document }, signed))
}

fn is_signed_by(signed: &SignedRoster, authority: &[u8]) -> bool {
    let fingerprint = Fingerprint::of_certificate(authority);
    let message = message_to_sign(&signed.document);
    let certificate = CertificateDer::from(authority);
    let Ok(certificate) = EndEntityCert::try_from(&certificate) else { return false };
    let kind = webpki::ring::ECDSA_P256_SHA256;
    let mut signatures = signed.signatures.iter().filter(|signature| signature.authority == fingerprint);
    signatures.any(|signature| certificate.verify_signature(kind, &message, &signature.bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::Role;

    fn authority(name: &str) -> (NodeName, Authority) {
        let cluster = NodeName::new(name).unwrap();
        let authority = Authority::create(&cluster, SystemTime::now()).unwrap();
        (cluster, authority)
    }

    #[test]
    fn a_successor_roster_needs_a_signature_of_a_trusted_authority() {
        let (cluster, old) = authority("blue");
        let (_, new) = authority("blue");
        let first = Roster::new(&cluster, &old);
        let mut next = first.clone();
        next.begin_rotation(&new);
        next.revoke(&Identity { cluster, role: Role::Client, name: NodeName::new("x").unwrap() }, SystemTime::now())
            .unwrap();
        assert_eq!(first.verify_successor(&next.sign(&[&old, &new]).unwrap()).unwrap(), next);
        assert_eq!(first.verify_successor(&next.sign(&[&new]).unwrap()), Err(RosterError::Unsigned));
        // A successor of the second roster may trust the new authority alone.
        let mut last = next.clone();
        last.end_rotation();
        assert_eq!(next.verify_successor(&last.sign(&[&new]).unwrap()).unwrap().authorities(), [new.certificate()]);
        assert_eq!(last.verify_successor(&next.sign(&[&old]).unwrap()), Err(RosterError::Stale));
        let mut forged = last.clone();
        forged.begin_rotation(&old);
        assert_eq!(last.verify_successor(&forged.sign(&[&old]).unwrap()), Err(RosterError::Unsigned));
    }

    #[test]
    fn a_first_roster_needs_the_pinned_authority() {
        let (cluster, ours) = authority("blue");
        let (_, others) = authority("blue");
        let bytes = Roster::new(&cluster, &ours).sign(&[&ours]).unwrap();
        assert!(Roster::verify_pinned(&bytes, ours.fingerprint()).is_ok());
        assert_eq!(Roster::verify_pinned(&bytes, others.fingerprint()), Err(RosterError::Unsigned));
        let forged = Roster::new(&cluster, &ours).sign(&[&others]).unwrap();
        assert_eq!(Roster::verify_pinned(&forged, ours.fingerprint()), Err(RosterError::Unsigned));
    }

    #[test]
    fn a_changed_byte_of_a_roster_is_noticed() {
        let (cluster, ours) = authority("blue");
        let roster = Roster::new(&cluster, &ours);
        let bytes = roster.sign(&[&ours]).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(roster.verify_successor(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn revocations_without_a_valid_certificate_are_removed() {
        let (cluster, old) = authority("blue");
        let mut roster = Roster::new(&cluster, &old);
        let bearer = |role, text: &str| Identity { cluster: cluster.clone(), role, name: NodeName::new(text).unwrap() };
        let bearers = |roster: &Roster| -> Vec<String> {
            roster.revocations().iter().map(|entry| entry.subject.rsplit('/').next().unwrap().to_owned()).collect()
        };
        let now = SystemTime::now();
        roster.revoke(&bearer(Role::Node, "node"), now).unwrap();
        roster.revoke(&bearer(Role::Client, "client"), now).unwrap();
        roster.revoke(&bearer(Role::Node, "early"), now + Role::Node.validity_max() - Duration::from_secs(1)).unwrap();
        assert_eq!(bearers(&roster), ["node", "client", "early"], "certificates that it covers may still be valid");
        roster.revoke(&bearer(Role::Node, "late"), now + Role::Node.validity_max() + Duration::from_secs(1)).unwrap();
        assert_eq!(bearers(&roster), ["client", "early", "late"]);
        // Members no longer accept certificates of the old authority, so their revocations are dropped.
        let (_, new) = authority("blue");
        let mut roster = Roster::new(&cluster, &old);
        roster.revoke(&bearer(Role::Client, "before"), now - Duration::from_secs(60)).unwrap();
        roster.begin_rotation(&new);
        roster.revoke(&bearer(Role::Client, "after"), SystemTime::now()).unwrap();
        assert_eq!(bearers(&roster), ["before", "after"], "the old authority is still trusted");
        roster.end_rotation();
        assert_eq!(bearers(&roster), ["after"]);
    }

    #[test]
    fn a_full_roster_refuses_revocations_and_can_be_rotated() {
        let (cluster, old) = authority("blue");
        let (_, new) = authority("blue");
        let mut roster = Roster::new(&cluster, &old);
        let issued_before_us = crate::timestamp::unix_us(SystemTime::now() - Duration::from_secs(60));
        let revoked = |number: u32| Revocation { subject: format!("blue/client/{number}"), issued_before_us };
        while roster.document.encode().len() <= REVOCABLE_BYTES_MAX - 64 {
            let known = roster.revocations().len() as u32;
            roster.document.revocations.extend((known..known + 1000).map(revoked));
        }
        while roster.document.encode().len() > REVOCABLE_BYTES_MAX {
            roster.document.revocations.pop();
        }
        let name = NodeName::new("a-client-whose-name-has-some-length").unwrap();
        let client = Identity { cluster: cluster.clone(), role: Role::Client, name };
        let full = roster.clone();
        assert_eq!(roster.revoke(&client, SystemTime::now()), Err(RosterError::Full));
        assert_eq!(roster, full);
        assert!(RosterError::Full.to_string().contains("farfork cluster rotate --authority"));
        roster.begin_rotation(&new);
        let rotated = full.verify_successor(&roster.sign(&[&new, &old]).unwrap()).unwrap();
        assert_eq!(rotated, roster);
        roster.end_rotation();
        assert_eq!(roster.revocations(), []);
        roster.revoke(&client, SystemTime::now()).unwrap();
        assert!(rotated.verify_successor(&roster.sign(&[&new]).unwrap()).is_ok());
    }

    #[test]
    fn a_roster_that_is_too_long_is_not_signed() {
        let (cluster, ours) = authority("blue");
        let mut roster = Roster::new(&cluster, &ours);
        roster.document.revocations.push(Revocation { subject: "x".repeat(ROSTER_BYTES_MAX), issued_before_us: 0 });
        let refused = roster.sign(&[&ours]).unwrap_err();
        assert!(matches!(refused, RosterError::TooLong { bytes } if bytes > ROSTER_BYTES_MAX), "{refused}");
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Roster::decode_trusted(&[&MAGIC[..], &bytes].concat());
            let _ = Roster::decode_trusted(&bytes);
        }
    }
}
