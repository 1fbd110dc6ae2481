//! The protection of measured connections: none, authenticated, or encrypted.

use serde::Serialize;

/// What protects the connections of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionSecurity {
    /// Nothing: plain TCP.
    None,
    /// Both ends prove who they are; what follows is in clear.
    Authenticated,
    /// The same, and all is encrypted.
    Encrypted,
}
