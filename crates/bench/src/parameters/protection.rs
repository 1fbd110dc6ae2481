//! The protection of measured connections: none, authenticated, or encrypted.

use serde::Serialize;

/// The protection of the connections of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionSecurity {
    /// Nothing: plain TCP.
    None,
    /// Both ends authenticate each other. Data is not encrypted.
    Authenticated,
    /// Both ends authenticate each other. Data is encrypted.
    Encrypted,
}
