//! Socket constants of x86-64 under the kernel's names: families, types, levels and options. Capture and restore use them as
//! unsigned numbers, as seeds store them. The tests compare them with the C library's.
#![expect(missing_docs, reason = "the manual pages that the headings name document them")]

// Address families.

pub const AF_UNIX: u32 = 1;
pub const AF_INET: u32 = 2;
pub const AF_INET6: u32 = 10;
pub const AF_NETLINK: u32 = 16;

// Socket types.

pub const SOCK_STREAM: u32 = 1;
pub const SOCK_DGRAM: u32 = 2;
pub const SOCK_RAW: u32 = 3;
pub const SOCK_SEQPACKET: u32 = 5;

// Option levels.

pub const SOL_IP: u32 = 0;
pub const SOL_SOCKET: u32 = 1;
pub const SOL_IPV6: u32 = 41;
pub const SOL_NETLINK: u32 = 270;

// Protocols, which are also option levels.

pub const IPPROTO_TCP: u32 = 6;
pub const IPPROTO_UDP: u32 = 17;

// Options of all sockets, socket(7).

pub const SO_DEBUG: u32 = 1;
pub const SO_REUSEADDR: u32 = 2;
pub const SO_TYPE: u32 = 3;
pub const SO_ERROR: u32 = 4;
pub const SO_DONTROUTE: u32 = 5;
pub const SO_BROADCAST: u32 = 6;
pub const SO_SNDBUF: u32 = 7;
pub const SO_RCVBUF: u32 = 8;
pub const SO_KEEPALIVE: u32 = 9;
pub const SO_OOBINLINE: u32 = 10;
pub const SO_NO_CHECK: u32 = 11;
pub const SO_PRIORITY: u32 = 12;
pub const SO_LINGER: u32 = 13;
/// Value of SO_LINGER (`struct linger` with 0 s) with which close(2) resets a connection.
pub const LINGER_OF_RESET: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];
pub const SO_REUSEPORT: u32 = 15;
pub const SO_PASSCRED: u32 = 16;
pub const SO_PEERCRED: u32 = 17;
pub const SO_RCVLOWAT: u32 = 18;
pub const SO_RCVTIMEO: u32 = 20;
pub const SO_SNDTIMEO: u32 = 21;
pub const SO_BINDTODEVICE: u32 = 25;
pub const SO_ATTACH_FILTER: u32 = 26;
pub const SO_TIMESTAMP: u32 = 29;
pub const SO_ACCEPTCONN: u32 = 30;
pub const SO_SNDBUFFORCE: u32 = 32;
pub const SO_RCVBUFFORCE: u32 = 33;
pub const SO_PASSSEC: u32 = 34;
pub const SO_TIMESTAMPNS: u32 = 35;
pub const SO_MARK: u32 = 36;
pub const SO_TIMESTAMPING: u32 = 37;
pub const SO_PROTOCOL: u32 = 38;
pub const SO_DOMAIN: u32 = 39;
pub const SO_RXQ_OVFL: u32 = 40;
pub const SO_WIFI_STATUS: u32 = 41;
pub const SO_PEEK_OFF: u32 = 42;
pub const SO_NOFCS: u32 = 43;
pub const SO_LOCK_FILTER: u32 = 44;
pub const SO_SELECT_ERR_QUEUE: u32 = 45;
pub const SO_BUSY_POLL: u32 = 46;
pub const SO_MAX_PACING_RATE: u32 = 47;
pub const SO_INCOMING_CPU: u32 = 49;
pub const SO_COOKIE: u32 = 57;
pub const SO_ZEROCOPY: u32 = 60;
pub const SO_TXTIME: u32 = 61;
pub const SO_TIMESTAMP_NEW: u32 = 63;
pub const SO_TIMESTAMPNS_NEW: u32 = 64;
pub const SO_TIMESTAMPING_NEW: u32 = 65;
pub const SO_PREFER_BUSY_POLL: u32 = 69;
pub const SO_BUSY_POLL_BUDGET: u32 = 70;
pub const SO_NETNS_COOKIE: u32 = 71;
pub const SO_BUF_LOCK: u32 = 72;
pub const SO_TXREHASH: u32 = 74;
pub const SO_RCVMARK: u32 = 75;
pub const SO_PASSPIDFD: u32 = 76;
pub const SO_RCVPRIORITY: u32 = 82;
pub const SO_PASSRIGHTS: u32 = 83;

// IPv4 options, ip(7).

pub const IP_TOS: u32 = 1;
pub const IP_TTL: u32 = 2;
pub const IP_OPTIONS: u32 = 4;
pub const IP_RECVOPTS: u32 = 6;
pub const IP_RETOPTS: u32 = 7;
pub const IP_PKTINFO: u32 = 8;
pub const IP_MTU_DISCOVER: u32 = 10;
pub const IP_RECVERR: u32 = 11;
pub const IP_RECVTTL: u32 = 12;
pub const IP_RECVTOS: u32 = 13;
pub const IP_FREEBIND: u32 = 15;
pub const IP_PASSSEC: u32 = 18;
pub const IP_TRANSPARENT: u32 = 19;
pub const IP_RECVORIGDSTADDR: u32 = 20;
pub const IP_MINTTL: u32 = 21;
pub const IP_BIND_ADDRESS_NO_PORT: u32 = 24;
pub const IP_CHECKSUM: u32 = 23;
pub const IP_RECVFRAGSIZE: u32 = 25;
pub const IP_RECVERR_RFC4884: u32 = 26;
pub const IP_MULTICAST_TTL: u32 = 33;
pub const IP_MULTICAST_LOOP: u32 = 34;
pub const IP_MULTICAST_ALL: u32 = 49;
pub const IP_LOCAL_PORT_RANGE: u32 = 51;

// IPv6 options, ipv6(7).

pub const IPV6_2292PKTINFO: u32 = 2;
pub const IPV6_2292HOPOPTS: u32 = 3;
pub const IPV6_2292DSTOPTS: u32 = 4;
pub const IPV6_2292RTHDR: u32 = 5;
pub const IPV6_2292HOPLIMIT: u32 = 8;
pub const IPV6_FLOWINFO: u32 = 11;
pub const IPV6_UNICAST_HOPS: u32 = 16;
pub const IPV6_MULTICAST_HOPS: u32 = 18;
pub const IPV6_MULTICAST_LOOP: u32 = 19;
pub const IPV6_MTU_DISCOVER: u32 = 23;
pub const IPV6_RECVERR: u32 = 25;
pub const IPV6_V6ONLY: u32 = 26;
pub const IPV6_MULTICAST_ALL: u32 = 29;
pub const IPV6_ROUTER_ALERT_ISOLATE: u32 = 30;
pub const IPV6_RECVERR_RFC4884: u32 = 31;
pub const IPV6_FLOWINFO_SEND: u32 = 33;
pub const IPV6_RECVPKTINFO: u32 = 49;
pub const IPV6_RECVHOPLIMIT: u32 = 51;
pub const IPV6_RECVHOPOPTS: u32 = 53;
pub const IPV6_RECVRTHDR: u32 = 56;
pub const IPV6_RECVDSTOPTS: u32 = 58;
pub const IPV6_RECVPATHMTU: u32 = 60;
pub const IPV6_DONTFRAG: u32 = 62;
pub const IPV6_RECVTCLASS: u32 = 66;
pub const IPV6_TCLASS: u32 = 67;
pub const IPV6_AUTOFLOWLABEL: u32 = 70;
pub const IPV6_ADDR_PREFERENCES: u32 = 72;
pub const IPV6_MINHOPCOUNT: u32 = 73;
pub const IPV6_RECVORIGDSTADDR: u32 = 74;
pub const IPV6_RECVFRAGSIZE: u32 = 77;
pub const IPV6_FREEBIND: u32 = 78;

// TCP options, tcp(7).

pub const TCP_NODELAY: u32 = 1;
pub const TCP_RECV_QUEUE: u32 = 1;
pub const TCP_MAXSEG: u32 = 2;
pub const TCP_SEND_QUEUE: u32 = 2;
pub const TCP_CORK: u32 = 3;
pub const TCP_KEEPIDLE: u32 = 4;
pub const TCP_KEEPINTVL: u32 = 5;
pub const TCP_KEEPCNT: u32 = 6;
pub const TCP_SYNCNT: u32 = 7;
pub const TCP_LINGER2: u32 = 8;
pub const TCP_DEFER_ACCEPT: u32 = 9;
pub const TCP_WINDOW_CLAMP: u32 = 10;
pub const TCP_INFO: u32 = 11;
pub const TCP_CONGESTION: u32 = 13;
pub const TCP_THIN_LINEAR_TIMEOUTS: u32 = 16;
pub const TCP_USER_TIMEOUT: u32 = 18;
pub const TCP_REPAIR: u32 = 19;
pub const TCP_REPAIR_QUEUE: u32 = 20;
pub const TCP_QUEUE_SEQ: u32 = 21;
pub const TCP_REPAIR_OPTIONS: u32 = 22;
pub const TCP_FASTOPEN: u32 = 23;
pub const TCP_NOTSENT_LOWAT: u32 = 25;
pub const TCP_SAVE_SYN: u32 = 27;
pub const TCP_REPAIR_WINDOW: u32 = 29;
pub const TCP_FASTOPEN_CONNECT: u32 = 30;
pub const TCP_ULP: u32 = 31;
pub const TCP_MD5SIG_EXT: u32 = 32;
pub const TCP_FASTOPEN_KEY: u32 = 33;
pub const TCP_FASTOPEN_NO_COOKIE: u32 = 34;
pub const TCP_INQ: u32 = 36;
pub const TCP_TX_DELAY: u32 = 37;
pub const TCP_AO_INFO: u32 = 40;
pub const TCP_RTO_MAX_MS: u32 = 44;
pub const TCP_RTO_MIN_US: u32 = 45;
pub const TCP_DELACK_MAX_US: u32 = 46;

// UDP options, udp(7).

pub const UDP_CORK: u32 = 1;
pub const UDP_ENCAP: u32 = 100;
pub const UDP_NO_CHECK6_TX: u32 = 101;
pub const UDP_NO_CHECK6_RX: u32 = 102;
pub const UDP_SEGMENT: u32 = 103;
pub const UDP_GRO: u32 = 104;

#[cfg(test)]
mod tests {
    use super::*;

    /// Each number paired with its constant in the `libc` crate, if the crate has one.
    const PAIRS: &[(u32, u32)] = &[
        (AF_UNIX, libc::AF_UNIX as u32),
        (AF_INET, libc::AF_INET as u32),
        (AF_INET6, libc::AF_INET6 as u32),
        (AF_NETLINK, libc::AF_NETLINK as u32),
        (SOCK_STREAM, libc::SOCK_STREAM as u32),
        (SOCK_DGRAM, libc::SOCK_DGRAM as u32),
        (SOCK_RAW, libc::SOCK_RAW as u32),
        (SOCK_SEQPACKET, libc::SOCK_SEQPACKET as u32),
        (SOL_IP, libc::SOL_IP as u32),
        (SOL_SOCKET, libc::SOL_SOCKET as u32),
        (SOL_IPV6, libc::SOL_IPV6 as u32),
        (SOL_NETLINK, libc::SOL_NETLINK as u32),
        (SO_REUSEADDR, libc::SO_REUSEADDR as u32),
        (SO_ERROR, libc::SO_ERROR as u32),
        (SO_TYPE, libc::SO_TYPE as u32),
        (SO_DONTROUTE, libc::SO_DONTROUTE as u32),
        (SO_BROADCAST, libc::SO_BROADCAST as u32),
        (SO_SNDBUF, libc::SO_SNDBUF as u32),
        (SO_RCVBUF, libc::SO_RCVBUF as u32),
        (SO_KEEPALIVE, libc::SO_KEEPALIVE as u32),
        (SO_OOBINLINE, libc::SO_OOBINLINE as u32),
        (SO_NO_CHECK, libc::SO_NO_CHECK as u32),
        (SO_PRIORITY, libc::SO_PRIORITY as u32),
        (SO_LINGER, libc::SO_LINGER as u32),
        (SO_REUSEPORT, libc::SO_REUSEPORT as u32),
        (SO_PASSCRED, libc::SO_PASSCRED as u32),
        (SO_PEERCRED, libc::SO_PEERCRED as u32),
        (SO_RCVLOWAT, libc::SO_RCVLOWAT as u32),
        (SO_RCVTIMEO, libc::SO_RCVTIMEO as u32),
        (SO_SNDTIMEO, libc::SO_SNDTIMEO as u32),
        (SO_BINDTODEVICE, libc::SO_BINDTODEVICE as u32),
        (SO_ATTACH_FILTER, libc::SO_ATTACH_FILTER as u32),
        (SO_TIMESTAMP, libc::SO_TIMESTAMP as u32),
        (SO_ACCEPTCONN, libc::SO_ACCEPTCONN as u32),
        (SO_SNDBUFFORCE, libc::SO_SNDBUFFORCE as u32),
        (SO_RCVBUFFORCE, libc::SO_RCVBUFFORCE as u32),
        (SO_PASSSEC, libc::SO_PASSSEC as u32),
        (SO_TIMESTAMPNS, libc::SO_TIMESTAMPNS as u32),
        (SO_MARK, libc::SO_MARK as u32),
        (SO_TIMESTAMPING, libc::SO_TIMESTAMPING as u32),
        (SO_PROTOCOL, libc::SO_PROTOCOL as u32),
        (SO_DOMAIN, libc::SO_DOMAIN as u32),
        (SO_RXQ_OVFL, libc::SO_RXQ_OVFL as u32),
        (SO_PEEK_OFF, libc::SO_PEEK_OFF as u32),
        (SO_BUSY_POLL, libc::SO_BUSY_POLL as u32),
        (IP_TOS, libc::IP_TOS as u32),
        (IP_TTL, libc::IP_TTL as u32),
        (IP_PKTINFO, libc::IP_PKTINFO as u32),
        (IP_MTU_DISCOVER, libc::IP_MTU_DISCOVER as u32),
        (IP_RECVERR, libc::IP_RECVERR as u32),
        (IP_RECVTTL, libc::IP_RECVTTL as u32),
        (IP_RECVTOS, libc::IP_RECVTOS as u32),
        (IP_FREEBIND, libc::IP_FREEBIND as u32),
        (IP_TRANSPARENT, libc::IP_TRANSPARENT as u32),
        (IP_RECVORIGDSTADDR, libc::IP_RECVORIGDSTADDR as u32),
        (IP_MINTTL, libc::IP_MINTTL as u32),
        (IP_BIND_ADDRESS_NO_PORT, libc::IP_BIND_ADDRESS_NO_PORT as u32),
        (IP_MULTICAST_TTL, libc::IP_MULTICAST_TTL as u32),
        (IP_MULTICAST_LOOP, libc::IP_MULTICAST_LOOP as u32),
        (IP_MULTICAST_ALL, libc::IP_MULTICAST_ALL as u32),
        (IPV6_UNICAST_HOPS, libc::IPV6_UNICAST_HOPS as u32),
        (IPV6_MULTICAST_HOPS, libc::IPV6_MULTICAST_HOPS as u32),
        (IPV6_MULTICAST_LOOP, libc::IPV6_MULTICAST_LOOP as u32),
        (IPV6_MTU_DISCOVER, libc::IPV6_MTU_DISCOVER as u32),
        (IPV6_RECVERR, libc::IPV6_RECVERR as u32),
        (IPV6_V6ONLY, libc::IPV6_V6ONLY as u32),
        (IPV6_MULTICAST_ALL, libc::IPV6_MULTICAST_ALL as u32),
        (IPV6_RECVPKTINFO, libc::IPV6_RECVPKTINFO as u32),
        (IPV6_RECVHOPLIMIT, libc::IPV6_RECVHOPLIMIT as u32),
        (IPV6_DONTFRAG, libc::IPV6_DONTFRAG as u32),
        (IPV6_RECVTCLASS, libc::IPV6_RECVTCLASS as u32),
        (IPV6_TCLASS, libc::IPV6_TCLASS as u32),
        (IPV6_AUTOFLOWLABEL, libc::IPV6_AUTOFLOWLABEL as u32),
        (IPV6_MINHOPCOUNT, libc::IPV6_MINHOPCOUNT as u32),
        (IPV6_RECVORIGDSTADDR, libc::IPV6_RECVORIGDSTADDR as u32),
        (TCP_NODELAY, libc::TCP_NODELAY as u32),
        (TCP_MAXSEG, libc::TCP_MAXSEG as u32),
        (TCP_CORK, libc::TCP_CORK as u32),
        (TCP_KEEPIDLE, libc::TCP_KEEPIDLE as u32),
        (TCP_KEEPINTVL, libc::TCP_KEEPINTVL as u32),
        (TCP_KEEPCNT, libc::TCP_KEEPCNT as u32),
        (TCP_SYNCNT, libc::TCP_SYNCNT as u32),
        (TCP_LINGER2, libc::TCP_LINGER2 as u32),
        (TCP_DEFER_ACCEPT, libc::TCP_DEFER_ACCEPT as u32),
        (TCP_INFO, libc::TCP_INFO as u32),
        (TCP_CONGESTION, libc::TCP_CONGESTION as u32),
        (TCP_THIN_LINEAR_TIMEOUTS, libc::TCP_THIN_LINEAR_TIMEOUTS as u32),
        (TCP_USER_TIMEOUT, libc::TCP_USER_TIMEOUT as u32),
        (TCP_REPAIR, libc::TCP_REPAIR as u32),
        (TCP_REPAIR_QUEUE, libc::TCP_REPAIR_QUEUE as u32),
        (TCP_QUEUE_SEQ, libc::TCP_QUEUE_SEQ as u32),
        (TCP_REPAIR_OPTIONS, libc::TCP_REPAIR_OPTIONS as u32),
        (TCP_FASTOPEN, libc::TCP_FASTOPEN as u32),
        (SO_TXTIME, libc::SO_TXTIME as u32),
        (TCP_NOTSENT_LOWAT, libc::TCP_NOTSENT_LOWAT as u32),
        (TCP_REPAIR_WINDOW, libc::TCP_REPAIR_WINDOW as u32),
        (TCP_INQ, libc::TCP_INQ as u32),
        (UDP_CORK, libc::UDP_CORK as u32),
        (UDP_ENCAP, libc::UDP_ENCAP as u32),
        (UDP_NO_CHECK6_TX, libc::UDP_NO_CHECK6_TX as u32),
        (UDP_NO_CHECK6_RX, libc::UDP_NO_CHECK6_RX as u32),
        (UDP_SEGMENT, libc::UDP_SEGMENT as u32),
        (UDP_GRO, libc::UDP_GRO as u32),
    ];

    #[test]
    fn constants_equal_those_of_the_c_library() {
        for (index, (own, library)) in PAIRS.iter().enumerate() {
            assert_eq!(own, library, "pair {index}");
        }
    }
}
