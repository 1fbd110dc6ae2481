//! Reads the socket options to record: those that differ from a new socket's, and those that another recorded option would
//! change in the child.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use farfork_sys::socket;
use farfork_sys::socket_abi as abi;
use farfork_wire::descriptor::SocketOption;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{SocketSpec, netlink};

// The options that are carried. An option in none of these tables is lost without a message; the differ finds it in the
// end-to-end tests. The restorer sets whatever is recorded here, in the order of `known_options`.
// Guide: docs/guide/add-a-socket-option.md.

/// Options of any socket.
const SOCKET_OPTIONS: &[u32] = &[
    abi::SO_DEBUG,
    abi::SO_REUSEADDR,
    abi::SO_DONTROUTE,
    abi::SO_BROADCAST,
    abi::SO_KEEPALIVE,
    abi::SO_OOBINLINE,
    abi::SO_NO_CHECK,
    abi::SO_LINGER,
    abi::SO_REUSEPORT,
    abi::SO_PASSCRED,
    abi::SO_RCVLOWAT,
    abi::SO_RCVTIMEO,
    abi::SO_SNDTIMEO,
    abi::SO_BINDTODEVICE,
    abi::SO_TIMESTAMP,
    abi::SO_PASSSEC,
    abi::SO_TIMESTAMPNS,
    abi::SO_MARK,
    abi::SO_TIMESTAMPING,
    abi::SO_RXQ_OVFL,
    abi::SO_WIFI_STATUS,
    abi::SO_PEEK_OFF,
    abi::SO_SELECT_ERR_QUEUE,
    abi::SO_BUSY_POLL,
    abi::SO_MAX_PACING_RATE,
    abi::SO_INCOMING_CPU,
    abi::SO_ZEROCOPY,
    abi::SO_TXTIME,
    abi::SO_PREFER_BUSY_POLL,
    abi::SO_BUSY_POLL_BUDGET,
    abi::SO_RCVMARK,
    abi::SO_PASSPIDFD,
    abi::SO_RCVPRIORITY,
    abi::SO_PASSRIGHTS,
    abi::SO_NOFCS,
    abi::SO_TXREHASH,
    // After the older options for time stamps, because one flag of the kernel says for all of them which were set last.
    abi::SO_TIMESTAMP_NEW,
    abi::SO_TIMESTAMPNS_NEW,
    abi::SO_TIMESTAMPING_NEW,
];

/// Options of IPv4. IP_FREEBIND covers IPV6_FREEBIND: the kernel has one flag for both. The kernel does not show which
/// multicast groups a socket has joined.
const IP_OPTIONS: &[u32] = &[
    abi::IP_TOS,
    abi::IP_TTL,
    abi::IP_PKTINFO,
    abi::IP_MTU_DISCOVER,
    abi::IP_RECVERR,
    abi::IP_RECVTTL,
    abi::IP_RECVTOS,
    abi::IP_FREEBIND,
    abi::IP_TRANSPARENT,
    abi::IP_RECVORIGDSTADDR,
    abi::IP_MINTTL,
    abi::IP_BIND_ADDRESS_NO_PORT,
    abi::IP_MULTICAST_TTL,
    abi::IP_MULTICAST_LOOP,
    abi::IP_MULTICAST_ALL,
    abi::IP_OPTIONS,
    abi::IP_RECVOPTS,
    abi::IP_RETOPTS,
    abi::IP_PASSSEC,
    abi::IP_CHECKSUM,
    abi::IP_RECVFRAGSIZE,
    abi::IP_RECVERR_RFC4884,
    abi::IP_LOCAL_PORT_RANGE,
];

/// Options of IPv6.
const IPV6_OPTIONS: &[u32] = &[
    abi::IPV6_UNICAST_HOPS,
    abi::IPV6_MULTICAST_HOPS,
    abi::IPV6_MULTICAST_LOOP,
    abi::IPV6_MTU_DISCOVER,
    abi::IPV6_RECVERR,
    abi::IPV6_V6ONLY,
    abi::IPV6_MULTICAST_ALL,
    abi::IPV6_RECVPKTINFO,
    abi::IPV6_RECVHOPLIMIT,
    abi::IPV6_DONTFRAG,
    abi::IPV6_RECVTCLASS,
    abi::IPV6_TCLASS,
    abi::IPV6_AUTOFLOWLABEL,
    abi::IPV6_MINHOPCOUNT,
    abi::IPV6_RECVORIGDSTADDR,
    abi::IPV6_2292PKTINFO,
    abi::IPV6_2292HOPOPTS,
    abi::IPV6_2292DSTOPTS,
    abi::IPV6_2292RTHDR,
    abi::IPV6_2292HOPLIMIT,
    abi::IPV6_FLOWINFO,
    abi::IPV6_ROUTER_ALERT_ISOLATE,
    abi::IPV6_RECVERR_RFC4884,
    abi::IPV6_FLOWINFO_SEND,
    abi::IPV6_RECVHOPOPTS,
    abi::IPV6_RECVRTHDR,
    abi::IPV6_RECVDSTOPTS,
    abi::IPV6_RECVPATHMTU,
    abi::IPV6_ADDR_PREFERENCES,
    abi::IPV6_RECVFRAGSIZE,
];

/// Options that are not set on a stream. An accepted connection has its own multicast TTL, which cannot be set on a stream.
const NON_STREAM_OPTIONS: [(u32, u32); 2] =
    [(abi::SOL_IP, abi::IP_MULTICAST_TTL), (abi::SOL_IPV6, abi::IPV6_MULTICAST_HOPS)];

/// Options of TCP.
const TCP_OPTIONS: &[u32] = &[
    abi::TCP_NODELAY,
    abi::TCP_MAXSEG,
    abi::TCP_CORK,
    abi::TCP_KEEPIDLE,
    abi::TCP_KEEPINTVL,
    abi::TCP_KEEPCNT,
    abi::TCP_SYNCNT,
    abi::TCP_LINGER2,
    abi::TCP_DEFER_ACCEPT,
    abi::TCP_CONGESTION,
    abi::TCP_THIN_LINEAR_TIMEOUTS,
    abi::TCP_USER_TIMEOUT,
    abi::TCP_FASTOPEN,
    abi::TCP_NOTSENT_LOWAT,
    abi::TCP_INQ,
    abi::TCP_WINDOW_CLAMP,
    abi::TCP_SAVE_SYN,
    abi::TCP_FASTOPEN_CONNECT,
    abi::TCP_FASTOPEN_KEY,
    abi::TCP_FASTOPEN_NO_COOKIE,
    abi::TCP_TX_DELAY,
    abi::TCP_RTO_MAX_MS,
    abi::TCP_RTO_MIN_US,
    abi::TCP_DELACK_MAX_US,
];

/// Options of UDP.
const UDP_OPTIONS: &[u32] =
    &[abi::UDP_CORK, abi::UDP_ENCAP, abi::UDP_NO_CHECK6_TX, abi::UDP_NO_CHECK6_RX, abi::UDP_SEGMENT, abi::UDP_GRO];

/// Buffer sizes, each with the option by which a privileged process sets it without a limit. The kernel doubles the value.
const BUFFER_OPTIONS: [(u32, u32); 2] = [(abi::SO_SNDBUF, abi::SO_SNDBUFFORCE), (abi::SO_RCVBUF, abi::SO_RCVBUFFORCE)];

/// Reads the options of a socket, in the order in which they must be set. The inner error says why the socket cannot be
/// carried.
pub(in super::super) fn read_options(
    fd: BorrowedFd<'_>,
    defaults: &mut SocketDefaultsCache,
) -> io::Result<Result<Vec<SocketOption>, String>> {
    let spec = SocketSpec::read(fd)?;
    let filter = match read_filter(fd, spec) {
        Ok(filter) => filter,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut options = changed_options(fd, spec, defaults)?;
    if spec.family == abi::AF_NETLINK {
        options.extend(netlink::read_memberships(fd)?);
    }
    if let Some(filter) = filter {
        let value = socket::read_option(fd, abi::SOL_SOCKET, abi::SO_LOCK_FILTER)?;
        options.extend([filter, SocketOption { level: abi::SOL_SOCKET, name: abi::SO_LOCK_FILTER, value }]);
    }
    Ok(Ok(options))
}

/// Reads the filter for received packets (SO_ATTACH_FILTER), if any. The error says why it cannot be carried.
fn read_filter(fd: BorrowedFd<'_>, spec: SocketSpec) -> Result<Option<SocketOption>, String> {
    let is_tcp = spec.family != abi::AF_UNIX && spec.socket_type == abi::SOCK_STREAM;
    match socket::read_filter(fd) {
        Ok(instructions) if instructions.is_empty() => Ok(None),
        Ok(value) if !is_tcp => Ok(Some(SocketOption { level: abi::SOL_SOCKET, name: abi::SO_ATTACH_FILTER, value })),
        _ => {
            Err("it has a filter (SO_ATTACH_FILTER of TCP, or SO_ATTACH_BPF), which is not carried; detach that first"
                .to_owned())
        }
    }
}

/// Options of a new socket, for each kind that was needed. Cached, because making a socket takes as long as reading ten
/// options.
#[derive(Debug, Default)]
pub(in super::super) struct SocketDefaultsCache(Vec<(SocketSpec, SocketDefaults)>);

#[derive(Debug)]
struct SocketDefaults {
    options: Vec<SocketOption>,
    /// Buffer sizes in bytes, in the order of [`BUFFER_OPTIONS`].
    sizes: [i32; 2],
}

impl SocketDefaultsCache {
    /// Returns the options of a new socket of this kind. The first call for a kind makes such a socket.
    fn get(&mut self, spec: SocketSpec) -> io::Result<&SocketDefaults> {
        let at = match self.0.iter().position(|(known, _)| *known == spec) {
            Some(at) => at,
            None => {
                let (family, kind) =
                    (AddressFamily::from_raw(spec.family as u16), SocketType::from_raw(spec.socket_type));
                let new = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
                let options = query_options(new.as_fd(), spec).collect();
                self.0.push((spec, SocketDefaults { options, sizes: buffer_sizes(new.as_fd())? }));
                self.0.len() - 1
            }
        };
        Ok(&self.0[at].1)
    }
}

impl SocketDefaults {
    /// Whether a new socket has this option with another value.
    fn differs_from(&self, other: &SocketOption) -> bool {
        let same = |one: &&SocketOption| (one.level, one.name) == (other.level, other.name);
        self.options.iter().find(same).is_some_and(|one| one.value != other.value)
    }
}

/// Reads the options of a socket. Omits options that the kernel does not know.
fn query_options(fd: BorrowedFd<'_>, spec: SocketSpec) -> impl Iterator<Item = SocketOption> {
    known_options(spec).filter_map(move |(level, name)| {
        let value = socket::read_option(fd, level, name).ok()?;
        Some(SocketOption { level, name, value })
    })
}

fn buffer_sizes(fd: BorrowedFd<'_>) -> io::Result<[i32; 2]> {
    let [send, receive] = BUFFER_OPTIONS.map(|(name, _)| socket::read_number_option(fd, abi::SOL_SOCKET, name));
    Ok([send?, receive?])
}

fn changed_options(
    fd: BorrowedFd<'_>,
    spec: SocketSpec,
    defaults: &mut SocketDefaultsCache,
) -> io::Result<Vec<SocketOption>> {
    let new = defaults.get(spec)?;
    let mut options: Vec<SocketOption> = Vec::new();
    let is_connected =
        spec.family != abi::AF_UNIX && spec.family != abi::AF_NETLINK && socket::peer_address(fd).is_ok();
    // For a connection, the kernel itself sets SO_INCOMING_CPU: the CPU on which its last packet arrived.
    for option in query_options(fd, spec)
        .filter(|option| !is_connected || (option.level, option.name) != (abi::SOL_SOCKET, abi::SO_INCOMING_CPU))
    {
        // IP_TOS sets SO_PRIORITY as well.
        let is_changed_by_another =
            option.name == abi::SO_PRIORITY && option.level == abi::SOL_SOCKET && has_priority(&options);
        if is_computed_segment_size(&option) {
            continue;
        }
        if is_changed_by_another || new.differs_from(&option) {
            options.push(option);
        }
    }
    for ((bytes, new_bytes), (name, forced)) in buffer_sizes(fd)?.into_iter().zip(new.sizes).zip(BUFFER_OPTIONS) {
        // In a child, this end of a Unix socket sends all data that waits at the other end, so it needs the same buffer
        // size.
        let is_needed = spec.family == abi::AF_UNIX && name == abi::SO_SNDBUF;
        if (is_needed || bytes != new_bytes) && (!is_connected || has_locked_buffer(fd, spec, name)) {
            options.push(SocketOption {
                level: abi::SOL_SOCKET,
                name: forced,
                value: (bytes / 2).to_ne_bytes().to_vec(),
            });
        }
    }
    options.extend(buffer_lock_option(fd, &options));
    Ok(options)
}

/// Returns the SO_BUF_LOCK option: which buffer sizes the program has chosen. `None` if setting the recorded sizes has the
/// same effect.
fn buffer_lock_option(fd: BorrowedFd<'_>, set: &[SocketOption]) -> Option<SocketOption> {
    let has = |forced: u32| set.iter().any(|option| (option.level, option.name) == (abi::SOL_SOCKET, forced));
    let locked_sizes = BUFFER_OPTIONS.iter().zip([SEND_LOCKED, RECEIVE_LOCKED]).filter(|((_, forced), _)| has(*forced));
    let lock_bits: i32 = locked_sizes.map(|(_, bit)| bit).sum();
    // An error means that the kernel does not have SO_BUF_LOCK.
    let locked =
        socket::read_number_option(fd, abi::SOL_SOCKET, abi::SO_BUF_LOCK).ok().filter(|locked| *locked != lock_bits)?;
    Some(SocketOption { level: abi::SOL_SOCKET, name: abi::SO_BUF_LOCK, value: locked.to_ne_bytes().to_vec() })
}

const SEND_LOCKED: i32 = 1;
const RECEIVE_LOCKED: i32 = 2;

/// Whether an option is a TCP_MAXSEG that no program can set. IP_OPTIONS on an idle socket makes the kernel compute one.
fn is_computed_segment_size(option: &SocketOption) -> bool {
    const SETTABLE_BYTES_MIN: u32 = 88;
    let bytes = option.value.as_slice().try_into().map(u32::from_ne_bytes);
    (option.level, option.name) == (abi::IPPROTO_TCP, abi::TCP_MAXSEG)
        && bytes.is_ok_and(|bytes| bytes < SETTABLE_BYTES_MIN)
}

fn has_priority(options: &[SocketOption]) -> bool {
    options.iter().any(|option| (option.level, option.name) == (abi::SOL_IP, abi::IP_TOS))
}

/// Whether the program has chosen the size of a buffer. Only TCP sizes buffers itself, on connections, so only TCP is checked.
fn has_locked_buffer(fd: BorrowedFd<'_>, spec: SocketSpec, name: u32) -> bool {
    if spec.family == abi::AF_UNIX || spec.socket_type != abi::SOCK_STREAM {
        return true;
    }
    let bit = if name == abi::SO_SNDBUF { SEND_LOCKED } else { RECEIVE_LOCKED };
    socket::read_number_option(fd, abi::SOL_SOCKET, abi::SO_BUF_LOCK).is_ok_and(|locked| locked & bit != 0)
}

fn known_options(spec: SocketSpec) -> impl Iterator<Item = (u32, u32)> {
    let (is_ip, is_v6) = (matches!(spec.family, abi::AF_INET | abi::AF_INET6), spec.family == abi::AF_INET6);
    let is_tcp = is_ip && spec.socket_type == abi::SOCK_STREAM;
    let all = |level: u32, names: &'static [u32], counts: bool| {
        names.iter().filter(move |_| counts).map(move |name| (level, *name))
    };
    all(abi::SOL_SOCKET, SOCKET_OPTIONS, true)
        .chain(all(abi::SOL_IP, IP_OPTIONS, is_ip))
        .chain(all(abi::SOL_IPV6, IPV6_OPTIONS, is_v6))
        .chain(all(abi::IPPROTO_TCP, TCP_OPTIONS, is_tcp))
        .chain(all(abi::IPPROTO_UDP, UDP_OPTIONS, is_ip && !is_tcp))
        .chain([(abi::SOL_SOCKET, abi::SO_PRIORITY)])
        .chain(netlink::option_names().filter(move |_| spec.family == abi::AF_NETLINK))
        .filter(move |option| !is_tcp || !NON_STREAM_OPTIONS.contains(option))
}
