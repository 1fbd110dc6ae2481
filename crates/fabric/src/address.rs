//! The address of an owner: the provider that reaches it, and the address within that provider.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::sim::world::SimAddress;

/// The address of an owner. Text form: `tcp:10.0.0.1:7001` or `shm:/run/farfork/fabric.sock`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// Over the network: the owner's socket address.
    Tcp(SocketAddr),
    /// On the same host: the path of the owner's Unix socket.
    Shm(PathBuf),
    /// In a simulated world.
    Sim(SimAddress),
}

/// The text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a fabric address; use a form like `tcp:10.0.0.1:7001` or `shm:/run/farfork/fabric.sock`")]
pub struct AddressError(String);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(socket) => write!(f, "tcp:{socket}"),
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
            Self::Sim(place) => write!(f, "sim:{place}"),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let parsed = match text.split_once(':') {
            Some(("tcp", socket)) => socket.parse().ok().map(Self::Tcp),
            Some(("sim", place)) => place.parse().ok().map(Self::Sim),
            Some(("shm", path)) if path.starts_with('/') => Some(Self::Shm(path.into())),
            _ => None,
        };
        parsed.ok_or_else(|| AddressError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_parses_from_its_text() {
        for text in ["tcp:10.0.0.1:7001", "tcp:[::1]:7001", "shm:/run/farfork/n1.sock", "sim:3:7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.1:7001", "tcp:host:1", "shm:relative", "verbs:1", "sim:3", ""] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
