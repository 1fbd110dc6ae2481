//! A private key, and the certificate request for it. A key is created on the machine that uses it, and never leaves
//! this machine. The only exceptions are keys of clients whose directory an operator creates
//! (`member::issue_client_directory`).

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;
use zeroize::Zeroizing;

/// The algorithm of all keys. Signing and verifying are fast on every machine, and every library supports it.
pub(crate) static KEY_ALGORITHM: &rcgen::SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;

/// A key or a request cannot be created: the system provides no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("a key cannot be made: {0}")]
pub struct KeyError(#[from] rcgen::Error);

/// A key without a certificate.
pub struct UncertifiedKey(KeyPair);

impl fmt::Debug for UncertifiedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewKey(hidden)")
    }
}

impl UncertifiedKey {
    /// Generates a key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self(KeyPair::generate_for(KEY_ALGORITHM)?))
    }

    /// The certificate request (PKCS #10, DER), signed with the key. It contains no identity. The signer must authenticate
    /// the requester by a token or by an earlier certificate.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn certificate_request(&self) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "farfork request");
        Ok(params.serialize_request(&self.0)?.der().to_vec())
    }

    /// Whether a certificate (DER) is for this key.
    pub(crate) fn matches_certificate(&self, certificate: &[u8]) -> bool {
        let certificate = CertificateDer::from(certificate);
        let own = self.0.subject_public_key_info();
        EndEntityCert::try_from(&certificate).is_ok_and(|parsed| parsed.subject_public_key_info().as_ref() == own)
    }

    /// The key and its certificate as PEM, which are the contents of `identity.pem`.
    pub fn to_identity_pem(&self, certificate: &[u8]) -> Zeroizing<String> {
        let mut text = Zeroizing::new(encode_pem("CERTIFICATE", certificate));
        text.push_str(&Zeroizing::new(self.0.serialize_pem()));
        text
    }
}

/// Encodes bytes as PEM, with lines as in RFC 7468.
pub(crate) fn encode_pem(label: &str, bytes: &[u8]) -> String {
    let encoding = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(label, bytes), encoding)
}
