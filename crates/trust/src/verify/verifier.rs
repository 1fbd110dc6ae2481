//! The verifiers that rustls calls: for servers, for clients, and for the server that a joining node connects to.

use std::sync::Arc;

use rustls::DistinguishedName;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use super::error::{PeerError, to_tls_error};
use super::trust_anchors::{AuthenticatedPeer, TrustAnchors};
use crate::certificate::CertificateFields;
use crate::{Fingerprint, Role};

/// The accepted signature algorithms.
static SIGNATURE_ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[webpki::ring::ECDSA_P256_SHA256])],
};

/// The clients that a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientPolicy {
    /// Nodes only.
    NodesOnly,
    /// All members of the cluster, and peers without a certificate, which may want to join. Each request is authorized
    /// separately.
    AnyClient,
}

/// Verifies a client.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    pub(crate) anchors: Arc<TrustAnchors>,
    pub(crate) policy: ClientPolicy,
}

/// Verifies a server. The expected name is a node's, or an address to accept any node.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    pub(crate) anchors: Arc<TrustAnchors>,
}

/// Verifies the node that a joining machine connected to, by the authority that the join token pins.
#[derive(Debug)]
pub(crate) struct PinnedServerVerifier {
    pub(crate) pin: Fingerprint,
}

fn require_node(peer: AuthenticatedPeer) -> Result<AuthenticatedPeer, PeerError> {
    if peer.identity.role == Role::Node {
        return Ok(peer);
    }
    Err(PeerError::WrongRole { subject: peer.identity, needed: Role::Node })
}

fn require_name(peer: AuthenticatedPeer, name: &ServerName<'_>) -> Result<AuthenticatedPeer, PeerError> {
    match name {
        ServerName::DnsName(expected) if expected.as_ref() != peer.identity.name.as_str() => {
            Err(PeerError::WrongNode { subject: peer.identity, expected: expected.as_ref().to_owned() })
        }
        _ => Ok(peer),
    }
}

/// The methods that are the same in all verifiers: TLS 1.3 only, with these signature algorithms.
macro_rules! answers_alike {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.2 is not supported".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, shown, signed, &SIGNATURE_ALGORITHMS)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            SIGNATURE_ALGORITHMS.supported_schemes()
        }
    };
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.policy == ClientPolicy::NodesOnly
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
        let checked = self.anchors.verify(shown, now).and_then(|peer| match self.policy {
            ClientPolicy::NodesOnly => require_node(peer),
            ClientPolicy::AnyClient => Ok(peer),
        });
        checked.map(|_| ClientCertVerified::assertion()).map_err(to_tls_error)
    }

    answers_alike!();
}

/// The verifiers of servers differ in one method only.
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
                let checked = self.verify(shown, chain, name, now);
                checked.map(|_| ServerCertVerified::assertion()).map_err(to_tls_error)
            }

            answers_alike!();
        }
    };
}

impl ServerVerifier {
    fn verify(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<AuthenticatedPeer, PeerError> {
        self.anchors.verify(shown, now).and_then(require_node).and_then(|peer| require_name(peer, name))
    }
}

impl PinnedServerVerifier {
    fn verify(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<AuthenticatedPeer, PeerError> {
        let authority = chain.iter().find(|authority| Fingerprint::of_certificate(authority) == self.pin);
        let authority = authority.ok_or(PeerError::WrongPin)?;
        // The cluster's name is not known yet, and is taken from the certificate. The pin identifies the cluster.
        let cluster = CertificateFields::parse(shown).map_err(PeerError::MalformedCertificate)?.subject.cluster;
        let anchors = TrustAnchors::from_pinned(authority, cluster);
        anchors.map_err(|_| PeerError::WrongPin)?.verify(shown, now).and_then(require_node)
    }
}

verifies_servers!(ServerVerifier);
verifies_servers!(PinnedServerVerifier);
