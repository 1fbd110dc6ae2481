//! The verifiers that TLS asks: of servers, of clients, and of the server that a joining node meets.

use std::sync::Arc;

use rustls::DistinguishedName;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use super::anchors::{Anchors, Peer};
use super::error::{PeerError, refuse};
use crate::certificate::Facts;
use crate::{Fingerprint, Role};

/// Signatures that count.
static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[webpki::ring::ECDSA_P256_SHA256])],
};

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepts {
    /// Nodes.
    Nodes,
    /// Whoever the cluster knows, and, to join it, whoever shows no certificate: what each may ask is decided at each
    /// request.
    Everybody,
}

/// Checks whoever connects.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    pub(crate) anchors: Arc<Anchors>,
    pub(crate) accepts: Accepts,
}

/// Checks the node that was connected to. The name that is asked for is the node's, or an address where any will do.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    pub(crate) anchors: Arc<Anchors>,
}

/// Checks the node that a joining one connected to, by the authority that the token names.
#[derive(Debug)]
pub(crate) struct PinVerifier {
    pub(crate) pin: Fingerprint,
}

fn needs_node(peer: Peer) -> Result<Peer, PeerError> {
    if peer.identity.role == Role::Node {
        return Ok(peer);
    }
    Err(PeerError::Role { bearer: peer.identity, needed: Role::Node })
}

fn needs_name(peer: Peer, name: &ServerName<'_>) -> Result<Peer, PeerError> {
    match name {
        ServerName::DnsName(expected) if expected.as_ref() != peer.identity.name.as_str() => {
            Err(PeerError::Name { bearer: peer.identity, expected: expected.as_ref().to_owned() })
        }
        _ => Ok(peer),
    }
}

/// What all verifiers answer alike: TLS 1.3, and which signatures.
macro_rules! answers_alike {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, shown, signed, &SIGNATURES)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            SIGNATURES.supported_schemes()
        }
    };
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.accepts == Accepts::Nodes
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let checked = self.anchors.check(shown, now).and_then(|peer| match self.accepts {
            Accepts::Nodes => needs_node(peer),
            Accepts::Everybody => Ok(peer),
        });
        checked.map(|_| ClientCertVerified::assertion()).map_err(refuse)
    }

    answers_alike!();
}

/// Both verifiers of servers differ in one answer only.
macro_rules! verifies_servers {
    ($verifier:ty) => {
        impl ServerCertVerifier for $verifier {
            fn verify_server_cert(
                &self,
                shown: &CertificateDer<'_>,
                chain: &[CertificateDer<'_>],
                name: &ServerName<'_>,
                _: &[u8],
                now: UnixTime,
            ) -> Result<ServerCertVerified, Error> {
                let checked = self.check(shown, chain, name, now);
                checked.map(|_| ServerCertVerified::assertion()).map_err(refuse)
            }

            answers_alike!();
        }
    };
}

impl ServerVerifier {
    fn check(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<Peer, PeerError> {
        self.anchors.check(shown, now).and_then(needs_node).and_then(|peer| needs_name(peer, name))
    }
}

impl PinVerifier {
    fn check(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<Peer, PeerError> {
        let authority = chain.iter().find(|authority| Fingerprint::of(authority) == self.pin);
        let authority = authority.ok_or(PeerError::WrongPin)?;
        // The cluster's name is learnt here; the pin, which is the cluster's own, is what is checked.
        let cluster = Facts::of(shown).map_err(PeerError::Certificate)?.bearer.cluster;
        let anchors = Anchors::pinned(authority, cluster);
        anchors.map_err(|_| PeerError::WrongPin)?.check(shown, now).and_then(needs_node)
    }
}

verifies_servers!(ServerVerifier);
verifies_servers!(PinVerifier);
