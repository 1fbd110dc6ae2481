//! Capability tokens: a peer that presents a seed's token may read the seed's memory.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// Size of a token, in bytes: 128 bits cannot be guessed.
pub const TOKEN_BYTES: usize = 16;

/// A secret that gives access to one seed. It is never shown: `Debug` hides it and there is no `Display`.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// Takes random bytes from the caller: this crate has no randomness.
    pub fn from_bytes(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the secret bytes, for messages only.
    pub fn expose(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }
}

/// Compares in constant time, so that the delay of a reply reveals nothing about the token.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}
