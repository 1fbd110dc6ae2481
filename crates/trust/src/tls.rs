//! Configuration of TLS: version 1.3 only, one key exchange, one signature algorithm, no resumption, no tickets.
//!
//! The protocol name (ALPN) identifies the purpose of a connection: control port or fabric. So a connection cannot be
//! redirected to the other port. The handshake also protects the agreement on whether the fabric continues in clear.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig};
use webpki::EndEntityCert;

use crate::certificate::CertificateFields;
use crate::credentials::Encryption;
use crate::roster::Roster;
use crate::trust_directory::{DirectoryError, TrustDirectory};
use crate::verify::{
    AuthenticatedPeer, ClientPolicy, ClientVerifier, PinnedServerVerifier, ServerVerifier, TrustAnchors,
};
use crate::{Fingerprint, PeerError};

/// Protocol name of the control port: HTTP/2.
const ALPN_CONTROL: &[u8] = b"h2";

/// Protocol name of the fabric, with all data in TLS records.
const ALPN_FABRIC: &[u8] = b"farfork-fabric-1";

/// Protocol name of the fabric, in clear after the handshake.
pub(crate) const ALPN_FABRIC_CLEAR: &[u8] = b"farfork-fabric-1-clear";

/// This member's certificate and key.
pub(crate) struct OwnCertificate {
    pub(crate) peer: AuthenticatedPeer,
    certificate: CertificateDer<'static>,
    /// Certificate of the authority that issued `certificate`.
    issuer: CertificateDer<'static>,
    key: Arc<dyn rustls::sign::SigningKey>,
}

impl OwnCertificate {
    /// Reads `identity.pem`.
    ///
    /// # Errors
    /// The problem, as a clause.
    pub(crate) fn from_pem(pem: &str, roster: &Roster) -> Result<Self, String> {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
        let key = ring::sign::any_ecdsa_type(&key).map_err(|error| error.to_string())?;
        let facts = CertificateFields::parse(&certificate)?;
        let authorities = roster.authorities().iter();
        let issuer = authorities.map(|der| CertificateDer::from(der.clone())).find(|der| is_issuer(&certificate, der));
        let issuer = issuer.ok_or("no authority that the cluster still trusts issued this certificate")?;
        let peer = AuthenticatedPeer { identity: facts.subject, issued_us: facts.issued_us };
        Ok(Self { peer, certificate, issuer, key })
    }
}

fn is_issuer(certificate: &CertificateDer<'_>, authority: &CertificateDer<'_>) -> bool {
    let parsed = (EndEntityCert::try_from(certificate), EndEntityCert::try_from(authority));
    matches!(parsed, (Ok(certificate), Ok(authority)) if certificate.issuer() == authority.subject())
}

/// Whether `authority` (DER) issued the certificate in a directory. Compares names only, not signatures.
pub(crate) fn is_issued_by(directory: &TrustDirectory, authority: &[u8]) -> Result<bool, DirectoryError> {
    let pem = directory.read_identity()?;
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes());
    Ok(certificate.is_ok_and(|certificate| is_issuer(&certificate, &CertificateDer::from(authority))))
}

/// The configurations for all kinds of connections.
pub(crate) struct TlsConfigs {
    pub(crate) control_client: Arc<ClientConfig>,
    pub(crate) control_server: Arc<ServerConfig>,
    pub(crate) fabric_client: Arc<ClientConfig>,
    pub(crate) fabric_server: Arc<ServerConfig>,
}

impl TlsConfigs {
    pub(crate) fn new(
        own: &OwnCertificate,
        anchors: &Arc<TrustAnchors>,
        encryption: Encryption,
    ) -> Result<Self, rustls::Error> {
        let fabric: &[&[u8]] = match encryption {
            Encryption::On => &[ALPN_FABRIC],
            Encryption::Off => &[ALPN_FABRIC_CLEAR, ALPN_FABRIC],
        };
        let short = vec![own.certificate.clone()];
        // A joining node looks in the chain for the authority that its token pins.
        let long = vec![own.certificate.clone(), own.issuer.clone()];
        Ok(Self {
            control_client: Arc::new(client_config(own, anchors, &[ALPN_CONTROL])?),
            control_server: Arc::new(server_config(own, long, anchors, ClientPolicy::AnyClient, &[ALPN_CONTROL])?),
            fabric_client: Arc::new(client_config(own, anchors, fabric)?),
            fabric_server: Arc::new(server_config(own, short, anchors, ClientPolicy::NodesOnly, fabric)?),
        })
    }
}

/// The TLS configuration for a machine without a certificate that joins the cluster that its token pins.
///
/// # Errors
/// [`PeerError::Protocol`]. It does not occur in practice, because the configuration is constant except for the pin.
pub fn joining_client_config(pin: Fingerprint) -> Result<Arc<ClientConfig>, PeerError> {
    let builder =
        ClientConfig::builder_with_provider(crypto_provider()).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(|error| PeerError::Protocol(error.to_string()))?;
    let verifier = Arc::new(PinnedServerVerifier { pin });
    let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    Ok(Arc::new(restrict_client_config(config, &[ALPN_CONTROL])))
}

fn client_config(
    own: &OwnCertificate,
    anchors: &Arc<TrustAnchors>,
    protocols: &[&[u8]],
) -> Result<ClientConfig, rustls::Error> {
    let verifier = Arc::new(ServerVerifier { anchors: anchors.clone() });
    let certified = certified_key(own, vec![own.certificate.clone()])?;
    let config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(certified);
    Ok(restrict_client_config(config, protocols))
}

fn restrict_client_config(mut config: ClientConfig, protocols: &[&[u8]]) -> ClientConfig {
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // Each connection authenticates the peer again, and checks for revocation.
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config
}

fn server_config(
    own: &OwnCertificate,
    chain: Vec<CertificateDer<'static>>,
    anchors: &Arc<TrustAnchors>,
    accepts: ClientPolicy,
    protocols: &[&[u8]],
) -> Result<ServerConfig, rustls::Error> {
    let verifier = Arc::new(ClientVerifier { anchors: anchors.clone(), policy: accepts });
    let mut config = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certified_key(own, chain)?);
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

fn certified_key(
    own: &OwnCertificate,
    chain: Vec<CertificateDer<'static>>,
) -> Result<Arc<SingleCertAndKey>, rustls::Error> {
    let certified = CertifiedKey::new(chain, own.key.clone());
    certified.keys_match()?;
    Ok(Arc::new(SingleCertAndKey::from(certified)))
}

/// Selects the algorithms. AES-128 is first, because every CPU of the last decade has instructions for it. The key exchange
/// uses P-256, like the keys. It costs 287 µs of CPU time per connection, both ends together; X25519 costs 310 µs (`farfork
/// bench connect` reports rates).
fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![ring::kx_group::SECP256R1],
        ..ring::default_provider()
    })
}
