//! SHA-256 digests, which identify a certificate or replace a secret.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Size of a digest, in bytes.
pub(crate) const DIGEST_BYTES: usize = 32;

/// The SHA-256 of a certificate's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint([u8; DIGEST_BYTES]);

impl Fingerprint {
    /// The fingerprint of a certificate (DER).
    pub fn of_certificate(bytes: &[u8]) -> Self {
        Self(sha256(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a fingerprint: it must have 64 hexadecimal digits")]
pub struct FingerprintError;

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        from_hex(text).map(Self).ok_or(FingerprintError)
    }
}

/// The SHA-256 digest.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("a SHA-256 has 32 bytes")
}

/// Encodes bytes as lower-case hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes lower-case hexadecimal digits, exactly two for each byte of the array.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_canonical = text.len() == 2 * N && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if !is_canonical {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}
