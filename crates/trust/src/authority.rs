//! The cluster's authority: the key that signs the certificates of a cluster. One member has it, in `authority.pem`.

use std::fmt;
use std::time::{Duration, SystemTime};

use farfork_wire::NodeName;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber, SigningKey as _,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use zeroize::Zeroizing;

use crate::certificate::new_serial;
use crate::key::{KEY_ALGORITHM, encode_pem};
use crate::{Fingerprint, Identity, Role};

/// Lifetime of an authority. It is replaced by a command, not by a clock.
const AUTHORITY_VALID: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Lifetime of a node's certificate. Nodes renew theirs when a third of it is left.
pub const NODE_VALID: Duration = Duration::from_secs(90 * 24 * 3600);

/// Longest lifetime of a client's certificate, and time for which its revocation is kept. It is not renewed
/// automatically.
pub const CLIENT_VALID_MAX: Duration = Duration::from_secs(2 * 365 * 24 * 3600);

/// A certificate is valid from this time before its issue, for members whose clocks are slow.
const CLOCK_SLACK: Duration = Duration::from_secs(300);

/// Maximum length of a certificate request, in bytes. A request has about 300.
pub const REQUEST_BYTES_MAX: usize = 4096;

/// Why an authority cannot be created, read, or used to sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A key or signature could not be made.
    #[error("the authority cannot sign: {0}")]
    Sign(#[from] rcgen::Error),
    /// The certificate request is invalid.
    #[error("the request for a certificate is damaged, or not signed with its own key: {0}")]
    Request(#[source] rcgen::Error),
    /// The requested lifetime is too long.
    #[error("a certificate for a {role} is valid for at most {} days; choose a shorter time", role.validity_max().as_secs() / 86_400)]
    Validity {
        /// The role in the certificate.
        role: Role,
    },
    /// The request's key has another algorithm.
    #[error("the request for a certificate has a key of another kind than ECDSA P-256")]
    KeyKind,
    /// The text does not contain a certificate with its key.
    #[error("it does not contain an authority: {0}")]
    Format(String),
    /// The system provides no random numbers.
    #[error("the system provides no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// A cluster's certificate authority, with its private key.
pub struct Authority {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.fingerprint())
    }
}

impl Authority {
    /// Generates a key and a self-signed certificate.
    ///
    /// # Errors
    /// [`AuthorityError::Sign`], [`AuthorityError::Random`].
    pub fn create(cluster: &NodeName, now: SystemTime) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(KEY_ALGORITHM)?;
        let mut params = CertificateParams::default();
        let serial = new_serial(now)?;
        // The number gives the two authorities of a rotation different names.
        let number = crate::fingerprint::to_hex(&serial[serial.len() - 4..]);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("farfork {cluster} authority {number}"));
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, now, AUTHORITY_VALID);
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { certificate, key })
    }

    /// The certificate (DER).
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The fingerprint of the certificate, which join tokens pin.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_certificate(&self.certificate)
    }

    /// Signs a certificate for the key of a request. The caller alone decides the identity in it. The request only proves
    /// that its sender has the key.
    ///
    /// # Errors
    /// [`AuthorityError`], except `Format`.
    pub fn issue(
        &self,
        request: &[u8],
        subject: &Identity,
        now: SystemTime,
        valid: Duration,
    ) -> Result<Vec<u8>, AuthorityError> {
        if valid > subject.role.validity_max() {
            return Err(AuthorityError::Validity { role: subject.role });
        }
        let request = CertificateSigningRequestDer::from(request);
        let request = CertificateSigningRequestParams::from_der(&request).map_err(AuthorityError::Request)?;
        if request.public_key.algorithm() != KEY_ALGORITHM {
            return Err(AuthorityError::KeyKind);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject.name.as_str());
        params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(subject.to_string())?)];
        params.serial_number = Some(SerialNumber::from_slice(&new_serial(now)?));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if subject.role == Role::Node {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        set_validity(&mut params, now, valid);
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &self.key)?;
        Ok(params.signed_by(&request.public_key, &issuer)?.der().to_vec())
    }

    /// Signs a document of the cluster.
    pub(crate) fn sign(&self, document: &[u8]) -> Result<Vec<u8>, AuthorityError> {
        Ok(self.key.sign(document)?)
    }

    /// The certificate and the key, as PEM.
    pub(crate) fn to_pem(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(encode_pem("CERTIFICATE", &self.certificate));
        text.push_str(&Zeroizing::new(self.key.serialize_pem()));
        text
    }

    /// Reads the output of [`Self::to_pem`].
    pub(crate) fn from_pem(text: &str) -> Result<Self, AuthorityError> {
        let format = |cause: &dyn fmt::Display| AuthorityError::Format(cause.to_string());
        let certificate = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| format(&error))?;
        let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| format(&error))?;
        let key = KeyPair::from_der_and_sign_algo(&key, KEY_ALGORITHM).map_err(|error| format(&error))?;
        Ok(Self { certificate, key })
    }
}

fn set_validity(params: &mut CertificateParams, now: SystemTime, valid: Duration) {
    params.not_before = crate::timestamp::to_calendar(now - CLOCK_SLACK);
    params.not_after = crate::timestamp::to_calendar(now + valid);
}
