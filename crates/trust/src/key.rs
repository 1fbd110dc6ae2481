//! A private key and the certificate request for it. The key is made where it is used, and never leaves.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;
use zeroize::Zeroizing;

/// The kind of all keys here: signing and checking with it is fast on every machine, and every library knows it.
pub(crate) static KEY_ALGORITHM: &rcgen::SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;

/// Why a key or a request cannot be made: the system has no randomness.
#[derive(Debug, thiserror::Error)]
#[error("a key cannot be made: {0}")]
pub struct KeyError(#[from] rcgen::Error);

/// A key that has no certificate yet.
pub struct UncertifiedKey(KeyPair);

impl fmt::Debug for UncertifiedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewKey(hidden)")
    }
}

impl UncertifiedKey {
    /// Draws a key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self(KeyPair::generate_for(KEY_ALGORITHM)?))
    }

    /// The request for a certificate (PKCS #10, DER), signed with the key. It names nobody: who asks is what whoever
    /// signs must find out, by a token or by an earlier certificate.
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

    /// The key with its certificate, as PEM: what `identity.pem` holds.
    pub fn to_identity_pem(&self, certificate: &[u8]) -> Zeroizing<String> {
        let mut text = Zeroizing::new(encode_pem("CERTIFICATE", certificate));
        text.push_str(&Zeroizing::new(self.0.serialize_pem()));
        text
    }
}

/// PEM, with lines as RFC 7468 has them.
pub(crate) fn encode_pem(label: &str, bytes: &[u8]) -> String {
    let encoding = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(label, bytes), encoding)
}
