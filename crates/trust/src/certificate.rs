//! Reads the fields that this crate writes into a certificate: the identity, and the time of issue.
//!
//! The serial number contains the time of issue. So a revocation covers the certificates issued before it, and no later
//! ones.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::Identity;

/// Size of a serial number, in bytes. It is big-endian. The first byte keeps DER from stripping zeroes:
///
/// ```text
///   0        1                          9               17
///   ├────────┼──────────────────────────┼────────────────┤
///   │ 0x01   │ issued, µs since 1970    │ random         │
///   └────────┴──────────────────────────┴────────────────┘
/// ```
const SERIAL_BYTES: usize = 17;
const SERIAL_FORMAT: u8 = 1;

/// Fields of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFields {
    /// The identity that it certifies.
    pub(crate) subject: Identity,
    /// Time of issue, in microseconds since 1970.
    pub(crate) issued_us: u64,
}

impl CertificateFields {
    /// Reads a certificate without verifying it.
    ///
    /// # Errors
    /// The problem, as a clause.
    pub(crate) fn parse(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let parsed = EndEntityCert::try_from(certificate).map_err(|error| format!("it cannot be read ({error})"))?;
        let mut names = parsed.valid_uri_names();
        let (Some(name), None) = (names.next(), names.next()) else {
            return Err("it must name exactly one member of a farfork cluster".to_owned());
        };
        let subject = name.parse().map_err(|error: crate::identity::IdentityError| error.to_string())?;
        let issued_us = serial_issued_us(parsed.serial()).ok_or("its serial number does not have farfork's form")?;
        Ok(Self { subject, issued_us })
    }
}

/// The time of issue in a certificate's serial number, in microseconds since 1970.
pub(crate) fn certificate_issued_us(certificate: &[u8]) -> Option<u64> {
    let certificate = CertificateDer::from(certificate);
    serial_issued_us(EndEntityCert::try_from(&certificate).ok()?.serial())
}

/// The end of a certificate's lifetime, in seconds since 1970. The caller has verified its signature.
pub(crate) fn certificate_expires_s(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    u64::try_from(parsed.validity().not_after.timestamp()).ok()
}

/// A serial number for a certificate that is issued now.
pub(crate) fn new_serial(now: SystemTime) -> Result<[u8; SERIAL_BYTES], getrandom::Error> {
    let mut serial = [SERIAL_FORMAT; SERIAL_BYTES];
    serial[1..9].copy_from_slice(&crate::timestamp::unix_us(now).to_be_bytes());
    getrandom::fill(&mut serial[9..])?;
    Ok(serial)
}

fn serial_issued_us(serial: &[u8]) -> Option<u64> {
    let serial: &[u8; SERIAL_BYTES] = serial.try_into().ok()?;
    let issued = serial[1..9].try_into().ok()?;
    (serial[0] == SERIAL_FORMAT).then(|| u64::from_be_bytes(issued))
}
