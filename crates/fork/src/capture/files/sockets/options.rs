//! Options of sockets: those that differ from a new socket's, or will in the making of the child's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use farfork_sys::socket;
use farfork_wire::descriptor::SocketOption;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{INET, INET6, NETLINK, SOL_SOCKET, STREAM, SocketSpec, TCP, UDP, UNIX, netlink};

const IP: u32 = 0;
const IPV6: u32 = 41;

/// SO_REUSEADDR, DONTROUTE, BROADCAST, KEEPALIVE, OOBINLINE, NO_CHECK, LINGER, REUSEPORT, PASSCRED, RCVLOWAT, RCVTIMEO, SNDTIMEO,
/// BINDTODEVICE, TIMESTAMP, PASSSEC, TIMESTAMPNS, MARK, TIMESTAMPING, RXQ_OVFL, WIFI_STATUS, PEEK_OFF, SELECT_ERR_QUEUE, BUSY_POLL,
/// MAX_PACING_RATE, INCOMING_CPU, ZEROCOPY, PREFER_BUSY_POLL, BUSY_POLL_BUDGET, RCVMARK, PASSPIDFD, RCVPRIORITY, PASSRIGHTS; of any
/// socket.
const SOCKET_OPTIONS: [u32; 32] = [
    2,
    5,
    6,
    9,
    10,
    11,
    13,
    15,
    16,
    18,
    20,
    21,
    25,
    29,
    34,
    35,
    36,
    37,
    40,
    41,
    42,
    45,
    46,
    47,
    INCOMING_CPU,
    60,
    69,
    70,
    75,
    76,
    82,
    83,
];

/// Of a connection of the internet, the processor that its last packet came to: the kernel's own note, which no program chose.
const INCOMING_CPU: u32 = 49;

/// Of any socket, too. To set [`TOS`] sets it as well.
const SO_PRIORITY: u32 = 12;

/// TOS, TTL, PKTINFO, MTU_DISCOVER, RECVERR, RECVTTL, RECVTOS, FREEBIND, TRANSPARENT, RECVORIGDSTADDR, MINTTL, BIND_ADDRESS_NO_PORT,
/// MULTICAST_TTL, MULTICAST_LOOP, MULTICAST_ALL. What groups a socket has joined, the kernel tells nobody.
const IP_OPTIONS: [u32; 15] = [TOS, 2, 8, 10, 11, 12, 13, 15, 19, 20, 21, 24, 33, 34, 49];
const TOS: u32 = 1;

/// UNICAST_HOPS, MULTICAST_HOPS, MULTICAST_LOOP, MTU_DISCOVER, RECVERR, V6ONLY, MULTICAST_ALL, RECVPKTINFO, RECVHOPLIMIT, DONTFRAG,
/// RECVTCLASS, TCLASS, MINHOPCOUNT, RECVORIGDSTADDR.
const IPV6_OPTIONS: [u32; 14] = [16, 18, 19, 23, 25, 26, 29, 49, 51, 62, 66, 67, 73, 74];

/// Of those above, what is about multicast, where an accepted connection has values of its own, and takes none; and times of what is
/// sent, which a stream numbers by its bytes once it is connected.
const NON_STREAM_OPTIONS: [(u32, u32); 5] = [(IP, 33), (IP, 34), (IPV6, 18), (IPV6, 19), (SOL_SOCKET, 37)];

/// NODELAY, MAXSEG, CORK, KEEPIDLE, KEEPINTVL, KEEPCNT, SYNCNT, LINGER2, DEFER_ACCEPT, CONGESTION, THIN_LINEAR_TIMEOUTS, USER_TIMEOUT, FASTOPEN,
/// NOTSENT_LOWAT, INQ.
const TCP_OPTIONS: [u32; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 18, 23, 25, 36];

/// CORK, NO_CHECK6_TX, NO_CHECK6_RX, SEGMENT, GRO.
const UDP_OPTIONS: [u32; 5] = [1, 101, 102, 103, 104];

/// Sizes of buffers, with the names by which a privileged process sets them without a limit. The kernel doubles what it is told.
const BUFFER_OPTIONS: [(u32, u32); 2] = [(SO_SNDBUF, 32), (8, 33)];
const SO_SNDBUF: u32 = 7;

/// The options of a socket, in the order in which they are to be set; or why it cannot be carried.
pub(in super::super) fn read_options(
    fd: BorrowedFd<'_>,
    usual: &mut SocketDefaultsCache,
) -> io::Result<Result<Vec<SocketOption>, String>> {
    const SO_LOCK_FILTER: u32 = 44;
    let birth = SocketSpec::read(fd)?;
    let filter = match read_filter(fd, birth) {
        Ok(filter) => filter,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut options = changed_options(fd, birth, usual)?;
    if birth.family == NETLINK {
        options.extend(netlink::read_memberships(fd)?);
    }
    if let Some(filter) = filter {
        let value = socket::read_option(fd, SOL_SOCKET, SO_LOCK_FILTER)?;
        options.extend([filter, SocketOption { level: SOL_SOCKET, name: SO_LOCK_FILTER, value }]);
    }
    Ok(Ok(options))
}

/// The filter of what arrives (SO_ATTACH_FILTER), if any.
fn read_filter(fd: BorrowedFd<'_>, birth: SocketSpec) -> Result<Option<SocketOption>, String> {
    const SO_ATTACH_FILTER: u32 = 26;
    let is_tcp = birth.family != UNIX && birth.socket_type == STREAM;
    match socket::read_filter(fd) {
        Ok(instructions) if instructions.is_empty() => Ok(None),
        Ok(value) if !is_tcp => Ok(Some(SocketOption { level: SOL_SOCKET, name: SO_ATTACH_FILTER, value })),
        _ => {
            Err("it has a filter (SO_ATTACH_FILTER of TCP, or SO_ATTACH_BPF), which is not carried; detach that first"
                .to_owned())
        }
    }
}

/// What new sockets have, of each kind that was met: making one takes as long as asking for ten options.
#[derive(Debug, Default)]
pub(in super::super) struct SocketDefaultsCache(Vec<(SocketSpec, SocketDefaults)>);

#[derive(Debug)]
struct SocketDefaults {
    options: Vec<SocketOption>,
    /// Of its buffers, as [`BUFFERS`] has them.
    sizes: [i32; 2],
}

impl SocketDefaultsCache {
    /// A new one of this kind.
    fn get(&mut self, birth: SocketSpec) -> io::Result<&SocketDefaults> {
        let at = match self.0.iter().position(|(known, _)| *known == birth) {
            Some(at) => at,
            None => {
                let (family, kind) =
                    (AddressFamily::from_raw(birth.family as u16), SocketType::from_raw(birth.socket_type));
                let new = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
                let options = query_options(new.as_fd(), birth).collect();
                self.0.push((birth, SocketDefaults { options, sizes: buffer_sizes(new.as_fd())? }));
                self.0.len() - 1
            }
        };
        Ok(&self.0[at].1)
    }
}

impl SocketDefaults {
    /// Whether it knows an option and has another value.
    fn differs_from(&self, other: &SocketOption) -> bool {
        let same = |one: &&SocketOption| (one.level, one.name) == (other.level, other.name);
        self.options.iter().find(same).is_some_and(|one| one.value != other.value)
    }
}

/// The options that a socket has. What a kernel does not know it has not.
fn query_options(fd: BorrowedFd<'_>, birth: SocketSpec) -> impl Iterator<Item = SocketOption> {
    known_options(birth).filter_map(move |(level, name)| {
        let value = socket::read_option(fd, level, name).ok()?;
        Some(SocketOption { level, name, value })
    })
}

fn buffer_sizes(fd: BorrowedFd<'_>) -> io::Result<[i32; 2]> {
    let [send, receive] = BUFFER_OPTIONS.map(|(name, _)| socket::read_number_option(fd, SOL_SOCKET, name));
    Ok([send?, receive?])
}

fn changed_options(
    fd: BorrowedFd<'_>,
    birth: SocketSpec,
    usual: &mut SocketDefaultsCache,
) -> io::Result<Vec<SocketOption>> {
    let new = usual.get(birth)?;
    let mut options: Vec<SocketOption> = Vec::new();
    let is_connected = birth.family != UNIX && birth.family != NETLINK && socket::peer_address(fd).is_ok();
    for option in query_options(fd, birth)
        .filter(|option| !is_connected || (option.level, option.name) != (SOL_SOCKET, INCOMING_CPU))
    {
        let is_changed_by_another = option.name == SO_PRIORITY && option.level == SOL_SOCKET && has_priority(&options);
        if is_changed_by_another || new.differs_from(&option) {
            options.push(option);
        }
    }
    for ((bytes, new_bytes), (name, forced)) in buffer_sizes(fd)?.into_iter().zip(new.sizes).zip(BUFFER_OPTIONS) {
        // Whatever waits at the other end of a Unix socket is sent by this one, with as much room as that needs.
        let is_needed = birth.family == UNIX && name == SO_SNDBUF;
        if (is_needed || bytes != new_bytes) && has_locked_buffer(fd, birth, name) {
            options.push(SocketOption { level: SOL_SOCKET, name: forced, value: (bytes / 2).to_ne_bytes().to_vec() });
        }
    }
    options.extend(buffer_lock_option(fd, &options));
    Ok(options)
}

/// Which sizes of buffers the program has chosen (SO_BUF_LOCK), where to set the sizes says something else.
fn buffer_lock_option(fd: BorrowedFd<'_>, set: &[SocketOption]) -> Option<SocketOption> {
    let has = |forced: u32| set.iter().any(|option| (option.level, option.name) == (SOL_SOCKET, forced));
    let told = BUFFER_OPTIONS.iter().zip([SEND_LOCKED, RECEIVE_LOCKED]).filter(|((_, forced), _)| has(*forced));
    let said: i32 = told.map(|(_, bit)| bit).sum();
    // A kernel before Linux 5.14 does not tell.
    let locked = socket::read_number_option(fd, SOL_SOCKET, SO_BUF_LOCK).ok().filter(|locked| *locked != said)?;
    Some(SocketOption { level: SOL_SOCKET, name: SO_BUF_LOCK, value: locked.to_ne_bytes().to_vec() })
}

const SO_BUF_LOCK: u32 = 72;
const SEND_LOCKED: i32 = 1;
const RECEIVE_LOCKED: i32 = 2;

fn has_priority(options: &[SocketOption]) -> bool {
    options.iter().any(|option| (option.level, option.name) == (IP, TOS))
}

/// Whether the size of a buffer is the program's choice: TCP sizes those of a connection by itself, unless it was told (which
/// the kernel tells since Linux 5.14).
fn has_locked_buffer(fd: BorrowedFd<'_>, birth: SocketSpec, name: u32) -> bool {
    if birth.family == UNIX || birth.socket_type != STREAM {
        return true;
    }
    let bit = if name == SO_SNDBUF { SEND_LOCKED } else { RECEIVE_LOCKED };
    socket::read_number_option(fd, SOL_SOCKET, SO_BUF_LOCK).is_ok_and(|locked| locked & bit != 0)
}

fn known_options(birth: SocketSpec) -> impl Iterator<Item = (u32, u32)> {
    let (is_ip, is_v6) = (matches!(birth.family, INET | INET6), birth.family == INET6);
    let is_tcp = is_ip && birth.socket_type == STREAM;
    let all = |level: u32, names: &'static [u32], counts: bool| {
        names.iter().filter(move |_| counts).map(move |name| (level, *name))
    };
    all(SOL_SOCKET, &SOCKET_OPTIONS, true)
        .chain(all(IP, &IP_OPTIONS, is_ip))
        .chain(all(IPV6, &IPV6_OPTIONS, is_v6))
        .chain(all(TCP, &TCP_OPTIONS, is_tcp))
        .chain(all(UDP, &UDP_OPTIONS, is_ip && !is_tcp))
        .chain([(SOL_SOCKET, SO_PRIORITY)])
        .chain(netlink::option_names().filter(move |_| birth.family == NETLINK))
        .filter(move |option| !is_tcp || !NON_STREAM_OPTIONS.contains(option))
}
