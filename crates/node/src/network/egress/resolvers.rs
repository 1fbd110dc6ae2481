//! DNS resolvers of a child: the resolvers in the node's resolv.conf(5). A program reads them in its container's file,
//! or has read them before it was forked. Queries to a resolver on the node's loopback interface are sent from the
//! node.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS_PORT: u16 = 53;

/// IPv4 addresses of resolvers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsResolvers(Vec<Ipv4Addr>);

impl DnsResolvers {
    /// Reads the resolvers of this node.
    pub(super) fn from_resolv_conf() -> Self {
        Self::parse(&fs::read_to_string(RESOLV_CONF).unwrap_or_default())
    }

    /// Parses a resolv.conf(5). Without a `nameserver` line, the resolver is on this machine, as for the C library.
    fn parse(text: &str) -> Self {
        let mut servers = text.lines().filter_map(|line| line.trim_start().strip_prefix("nameserver")).peekable();
        if servers.peek().is_none() {
            return Self(vec![Ipv4Addr::LOCALHOST]);
        }
        let address = |rest: &str| rest.starts_with([' ', '\t']).then(|| rest.split_whitespace().next()?.parse().ok());
        Self(servers.filter_map(address).flatten().collect())
    }

    /// Returns the resolvers on the node's loopback interface. The child has a different loopback interface.
    pub(super) fn on_loopback(&self) -> Vec<SocketAddrV4> {
        let of_loopback = self.0.iter().filter(|address| address.is_loopback());
        of_loopback.map(|address| SocketAddrV4::new(*address, DNS_PORT)).collect()
    }

    /// Whether `to` is the DNS port of one of the resolvers.
    pub(super) fn has_address(&self, to: SocketAddrV4) -> bool {
        to.port() == DNS_PORT && self.0.contains(to.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::DnsResolvers;

    #[test]
    fn resolvers_are_read_from_the_file() {
        let names = DnsResolvers::parse(
            "# nameserver 1.1.1.1\nsearch a.b\nnameserver 192.0.2.53 \nnameserver\t127.0.0.53\nnameserver fd00::1\nnameservers 9.9.9.9\n",
        );
        let is_resolver = |at: &str| names.has_address(at.parse().unwrap());
        assert!(is_resolver("192.0.2.53:53") && is_resolver("127.0.0.53:53"));
        assert!(
            !is_resolver("192.0.2.53:54")
                && !is_resolver("1.1.1.1:53")
                && !is_resolver("9.9.9.9:53")
                && !is_resolver("127.0.0.1:53")
        );
        assert_eq!(names.on_loopback(), ["127.0.0.53:53".parse().unwrap()]);
        assert_eq!(DnsResolvers::parse("search a.b\n").on_loopback(), ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!(DnsResolvers::parse("nameserver fd00::1\n").on_loopback(), []);
    }
}
