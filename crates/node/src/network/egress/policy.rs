//! Egress policy: the destinations that a child may reach.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use tonic::Code;

use farfork_api::failure::Failure;

/// Destinations as `--egress` names them: `any`, or a network with or without a port, like `10.1.0.0/16` or
/// `192.0.2.7:443`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum EgressDestination {
    /// All hosts that the node reaches, except link-local addresses (169.254.0.0/16), at which clouds serve a machine's
    /// credentials.
    Any,
    /// IPv4 addresses.
    Network {
        /// The network.
        network: Ipv4Net,
        /// The only allowed port; all ports if `None`.
        port: Option<u16>,
    },
}

impl EgressDestination {
    fn contains(&self, to: SocketAddrV4) -> bool {
        match self {
            Self::Any => !to.ip().is_link_local(),
            Self::Network { network, port } => network.contains(to.ip()) && port.is_none_or(|port| port == to.port()),
        }
    }
}

impl FromStr for EgressDestination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        let (network, port) = text.split_once(':').map_or((text, None), |(network, port)| (network, Some(port)));
        let network = network.parse().ok().or_else(|| network.parse().ok().map(|one: Ipv4Addr| one.into()));
        let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0));
        match (network, port) {
            (Some(network), None) => Ok(Self::Network { network, port: None }),
            (Some(network), Some(Some(port))) => Ok(Self::Network { network, port: Some(port) }),
            _ => Err(format!("{text} is not a destination: write any, 10.1.0.0/16 or 192.0.2.7:443")),
        }
    }
}

impl fmt::Display for EgressDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => write!(f, "any"),
            Self::Network { network, port: None } => write!(f, "{network}"),
            Self::Network { network, port: Some(port) } => write!(f, "{network}:{port}"),
        }
    }
}

impl From<EgressDestination> for String {
    fn from(destination: EgressDestination) -> Self {
        destination.to_string()
    }
}

impl TryFrom<String> for EgressDestination {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// All destinations that a child may reach. The default is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct EgressPolicy(Vec<EgressDestination>);

impl EgressPolicy {
    /// Whether no destination is allowed. Then the child has no egress, and cannot resolve names either.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an address is allowed. Loopback, multicast, broadcast and unspecified addresses are never allowed.
    pub(super) fn allows(&self, to: SocketAddrV4) -> bool {
        let ip = to.ip();
        let is_one = !(ip.is_loopback() || ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified());
        is_one && self.0.iter().any(|destination| destination.contains(to))
    }

    /// Formats the destinations as in requests and replies.
    pub(crate) fn to_strings(&self) -> Vec<String> {
        self.0.iter().map(EgressDestination::to_string).collect()
    }
}

impl TryFrom<&[String]> for EgressPolicy {
    type Error = Failure;

    fn try_from(texts: &[String]) -> Result<Self, Failure> {
        let refuse = |cause| Failure::new(Code::InvalidArgument, "egress", cause);
        texts.iter().map(|text| text.parse()).collect::<Result<_, String>>().map(Self).map_err(refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::{EgressDestination, EgressPolicy};

    fn egress(texts: &[&str]) -> EgressPolicy {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        EgressPolicy::try_from(&texts[..]).unwrap()
    }

    #[test]
    fn a_child_reaches_only_permitted_destinations() {
        let cases: [(&[&str], &str, bool); 12] = [
            (&[], "192.0.2.7:443", false),
            (&["any"], "192.0.2.7:443", true),
            (&["any"], "169.254.169.254:80", false),
            (&["any", "169.254.169.254:80"], "169.254.169.254:80", true),
            (&["10.1.0.0/16"], "10.1.255.1:9", true),
            (&["10.1.0.0/16"], "10.2.0.1:9", false),
            (&["10.1.0.0/16:443", "192.0.2.7"], "10.1.2.3:80", false),
            (&["10.1.0.0/16:443", "192.0.2.7"], "192.0.2.7:80", true),
            (&["0.0.0.0/0"], "127.0.0.1:22", false),
            (&["0.0.0.0/0"], "169.254.169.254:80", true),
            (&["any"], "224.0.0.251:5353", false),
            (&["any"], "255.255.255.255:67", false),
        ];
        for (allowed, to, may) in cases {
            assert_eq!(egress(allowed).allows(to.parse().unwrap()), may, "{allowed:?} {to}");
        }
    }

    #[test]
    fn a_destination_parses_from_its_text() {
        for text in ["any", "10.1.0.0/16", "192.0.2.7/32:443"] {
            let destination: EgressDestination = text.parse().unwrap();
            assert_eq!(destination.to_string(), text);
            assert_eq!(
                serde_json::from_str::<EgressDestination>(&serde_json::to_string(&destination).unwrap()).unwrap(),
                destination
            );
        }
        assert_eq!("192.0.2.7".parse::<EgressDestination>().unwrap().to_string(), "192.0.2.7/32");
        for wrong in ["", "all", "10.1.0.0/33", "192.0.2.7:0", "192.0.2.7:65536", "example.org", "::1", "10.0.0.0/8:"] {
            assert!(wrong.parse::<EgressDestination>().is_err(), "{wrong}");
        }
    }
}
