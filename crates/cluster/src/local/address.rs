//! Node addresses of a local cluster: from a private range, and visible only inside the cluster's own namespaces.

use std::net::{Ipv4Addr, SocketAddr};

/// Largest number of nodes of a local cluster: the addresses of a /24 network without its first and last.
pub(super) const NODES_MAX: usize = 254;
/// Length of a cluster's network prefix, in bits.
pub(super) const PREFIX_BITS: u8 = 24;
/// Port of every daemon. Each daemon has an address of its own.
const PORT: u16 = 7400;

/// Address of the node with this index in the cluster of this name. Clusters with different names usually have different
/// networks. Equal networks do not matter, because no packet leaves a cluster.
pub(super) fn node_address(cluster: &str, index: usize) -> SocketAddr {
    let hash = cluster.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [network, subnet, ..] = hash.to_be_bytes();
    let host = u8::try_from(index + 1).expect("the number of nodes was checked");
    SocketAddr::from((Ipv4Addr::new(10, network, subnet, host), PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_cluster_are_in_one_subnet() {
        let (first, last) = (node_address("a", 0), node_address("a", NODES_MAX - 1));
        let (SocketAddr::V4(first), SocketAddr::V4(last)) = (first, last) else { panic!("not IPv4") };
        assert_eq!(first.ip().octets()[..3], last.ip().octets()[..3]);
        assert_eq!((first.ip().octets()[3], last.ip().octets()[3]), (1, 254));
        assert!(first.ip().is_private());
    }
}
