//! A member's certificates, certificate requests, tokens and identities: no bytes panic, and no bytes are accepted as a
//! certificate of the cluster unless its authority signed them.
#![no_main]

use std::sync::LazyLock;
use std::time::SystemTime;

use farfork_fuzz::member::MEMBER;
use farfork_trust::{Credentials, Fingerprint, Identity, JoinToken, NODE_VALID, UncertifiedKey, member};
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::CertificateDer;

/// A key without a certificate.
static KEY: LazyLock<UncertifiedKey> = LazyLock::new(|| UncertifiedKey::generate().expect("a key"));

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 3 {
        0 => certificate(bytes),
        1 => request(bytes),
        _ => text(bytes),
    }
});

fn certificate(bytes: &[u8]) {
    let shown = [CertificateDer::from(bytes)];
    if let Some(peer) = Credentials::peer_from_chain(Some(&shown)) {
        assert_eq!(peer.identity.to_string().parse::<Identity>().as_ref(), Ok(&peer.identity));
        assert!(!MEMBER.credentials.is_revoked(&peer));
    }
    assert!(member::install_renewal(&MEMBER.directory, &KEY, bytes).is_err(), "no key of this process matches it");
}

/// A certificate for a valid, self-signed request has the key of the request and the given name.
fn request(bytes: &[u8]) {
    let authority = MEMBER.directory.read_authority().expect("it has one");
    let identity = MEMBER.credentials.identity();
    if let Ok(issued) = authority.issue(bytes, &identity, SystemTime::now(), NODE_VALID) {
        let peer = Credentials::peer_from_chain(Some(&[CertificateDer::from(issued)]));
        assert_eq!(peer.map(|peer| peer.identity), Some(identity));
    }
}

fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(token) = text.parse::<JoinToken>() {
        assert_eq!(*token.to_text(), text.trim());
    }
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string(), text);
    }
    if let Ok(fingerprint) = text.parse::<Fingerprint>() {
        assert_eq!(fingerprint.to_string(), text);
    }
}
