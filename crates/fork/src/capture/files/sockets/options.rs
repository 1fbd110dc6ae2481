//! Options of sockets: those that differ from a new socket's, or will in the making of the child's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use farfork_sys::socket;
use farfork_wire::descriptor::SocketOption;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Birth, INET, INET6, NETLINK, SOL_SOCKET, STREAM, TCP, UDP, UNIX, netlink};

const IP: u32 = 0;
const IPV6: u32 = 41;

/// SO_REUSEADDR, DONTROUTE, BROADCAST, KEEPALIVE, OOBINLINE, NO_CHECK, LINGER, REUSEPORT, PASSCRED, RCVLOWAT, RCVTIMEO, SNDTIMEO,
/// BINDTODEVICE, TIMESTAMP, PASSSEC, TIMESTAMPNS, MARK, TIMESTAMPING, RXQ_OVFL, WIFI_STATUS, PEEK_OFF, SELECT_ERR_QUEUE, BUSY_POLL,
/// MAX_PACING_RATE, INCOMING_CPU, ZEROCOPY, PREFER_BUSY_POLL, BUSY_POLL_BUDGET, RCVMARK, PASSPIDFD, RCVPRIORITY, PASSRIGHTS; of any
/// socket.
const GENERAL: [u32; 32] = [
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
const OF_IP: [u32; 15] = [TOS, 2, 8, 10, 11, 12, 13, 15, 19, 20, 21, 24, 33, 34, 49];
const TOS: u32 = 1;

/// UNICAST_HOPS, MULTICAST_HOPS, MULTICAST_LOOP, MTU_DISCOVER, RECVERR, V6ONLY, MULTICAST_ALL, RECVPKTINFO, RECVHOPLIMIT, DONTFRAG,
/// RECVTCLASS, TCLASS, MINHOPCOUNT, RECVORIGDSTADDR.
const OF_IPV6: [u32; 14] = [16, 18, 19, 23, 25, 26, 29, 49, 51, 62, 66, 67, 73, 74];

/// Of those above, what is about multicast, where an accepted connection has values of its own, and takes none; and times of what is
/// sent, which a stream numbers by its bytes once it is connected.
const OF_NO_STREAM: [(u32, u32); 5] = [(IP, 33), (IP, 34), (IPV6, 18), (IPV6, 19), (SOL_SOCKET, 37)];

/// NODELAY, MAXSEG, CORK, KEEPIDLE, KEEPINTVL, KEEPCNT, SYNCNT, LINGER2, DEFER_ACCEPT, CONGESTION, THIN_LINEAR_TIMEOUTS, USER_TIMEOUT, FASTOPEN,
/// NOTSENT_LOWAT, INQ.
const OF_TCP: [u32; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 18, 23, 25, 36];

/// CORK, NO_CHECK6_TX, NO_CHECK6_RX, SEGMENT, GRO.
const OF_UDP: [u32; 5] = [1, 101, 102, 103, 104];

/// Sizes of buffers, with the names by which a privileged process sets them without a limit. The kernel doubles what it is told.
const BUFFERS: [(u32, u32); 2] = [(SO_SNDBUF, 32), (8, 33)];
const SO_SNDBUF: u32 = 7;

/// The options of a socket, in the order in which they are to be set; or why it cannot be carried.
pub(in super::super) fn options(
    fd: BorrowedFd<'_>,
    usual: &mut Usual,
) -> io::Result<Result<Vec<SocketOption>, String>> {
    const SO_LOCK_FILTER: u32 = 44;
    let birth = Birth::of(fd)?;
    let filter = match filter(fd, birth) {
        Ok(filter) => filter,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut options = plain_options(fd, birth, usual)?;
    if birth.family == NETLINK {
        options.extend(netlink::memberships(fd)?);
    }
    if let Some(filter) = filter {
        let value = socket::option(fd, SOL_SOCKET, SO_LOCK_FILTER)?;
        options.extend([filter, SocketOption { level: SOL_SOCKET, name: SO_LOCK_FILTER, value }]);
    }
    Ok(Ok(options))
}

/// The filter of what arrives (SO_ATTACH_FILTER), if any.
fn filter(fd: BorrowedFd<'_>, birth: Birth) -> Result<Option<SocketOption>, String> {
    const SO_ATTACH_FILTER: u32 = 26;
    let is_tcp = birth.family != UNIX && birth.kind == STREAM;
    match socket::filter(fd) {
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
pub(in super::super) struct Usual(Vec<(Birth, New)>);

#[derive(Debug)]
struct New {
    options: Vec<SocketOption>,
    /// Of its buffers, as [`BUFFERS`] has them.
    sizes: [i32; 2],
}

impl Usual {
    /// A new one of this kind.
    fn of(&mut self, birth: Birth) -> io::Result<&New> {
        let at = match self.0.iter().position(|(known, _)| *known == birth) {
            Some(at) => at,
            None => {
                let (family, kind) = (AddressFamily::from_raw(birth.family as u16), SocketType::from_raw(birth.kind));
                let new = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
                let options = asked(new.as_fd(), birth).collect();
                self.0.push((birth, New { options, sizes: sizes(new.as_fd())? }));
                self.0.len() - 1
            }
        };
        Ok(&self.0[at].1)
    }
}

impl New {
    /// Whether it knows an option and has another value.
    fn differs(&self, other: &SocketOption) -> bool {
        let same = |one: &&SocketOption| (one.level, one.name) == (other.level, other.name);
        self.options.iter().find(same).is_some_and(|one| one.value != other.value)
    }
}

/// The options that a socket has. What a kernel does not know it has not.
fn asked(fd: BorrowedFd<'_>, birth: Birth) -> impl Iterator<Item = SocketOption> {
    known(birth).filter_map(move |(level, name)| {
        let value = socket::option(fd, level, name).ok()?;
        Some(SocketOption { level, name, value })
    })
}

fn sizes(fd: BorrowedFd<'_>) -> io::Result<[i32; 2]> {
    let [send, receive] = BUFFERS.map(|(name, _)| socket::number_option(fd, SOL_SOCKET, name));
    Ok([send?, receive?])
}

fn plain_options(fd: BorrowedFd<'_>, birth: Birth, usual: &mut Usual) -> io::Result<Vec<SocketOption>> {
    let new = usual.of(birth)?;
    let mut options: Vec<SocketOption> = Vec::new();
    let is_connected = birth.family != UNIX && birth.family != NETLINK && socket::peer_address(fd).is_ok();
    for option in
        asked(fd, birth).filter(|option| !is_connected || (option.level, option.name) != (SOL_SOCKET, INCOMING_CPU))
    {
        let is_changed_by_another = option.name == SO_PRIORITY && option.level == SOL_SOCKET && sets_priority(&options);
        if is_changed_by_another || new.differs(&option) {
            options.push(option);
        }
    }
    for ((bytes, new_bytes), (name, forced)) in sizes(fd)?.into_iter().zip(new.sizes).zip(BUFFERS) {
        // Whatever waits at the other end of a Unix socket is sent by this one, with as much room as that needs.
        let is_needed = birth.family == UNIX && name == SO_SNDBUF;
        if (is_needed || bytes != new_bytes) && is_sized(fd, birth, name) {
            options.push(SocketOption { level: SOL_SOCKET, name: forced, value: (bytes / 2).to_ne_bytes().to_vec() });
        }
    }
    options.extend(locked_sizes(fd, &options));
    Ok(options)
}

/// Which sizes of buffers the program has chosen (SO_BUF_LOCK), where to set the sizes says something else.
fn locked_sizes(fd: BorrowedFd<'_>, set: &[SocketOption]) -> Option<SocketOption> {
    let has = |forced: u32| set.iter().any(|option| (option.level, option.name) == (SOL_SOCKET, forced));
    let told = BUFFERS.iter().zip([SEND_LOCKED, RECEIVE_LOCKED]).filter(|((_, forced), _)| has(*forced));
    let said: i32 = told.map(|(_, bit)| bit).sum();
    // A kernel before Linux 5.14 does not tell.
    let locked = socket::number_option(fd, SOL_SOCKET, SO_BUF_LOCK).ok().filter(|locked| *locked != said)?;
    Some(SocketOption { level: SOL_SOCKET, name: SO_BUF_LOCK, value: locked.to_ne_bytes().to_vec() })
}

const SO_BUF_LOCK: u32 = 72;
const SEND_LOCKED: i32 = 1;
const RECEIVE_LOCKED: i32 = 2;

fn sets_priority(options: &[SocketOption]) -> bool {
    options.iter().any(|option| (option.level, option.name) == (IP, TOS))
}

/// Whether the size of a buffer is the program's choice: TCP sizes those of a connection by itself, unless it was told (which
/// the kernel tells since Linux 5.14).
fn is_sized(fd: BorrowedFd<'_>, birth: Birth, name: u32) -> bool {
    if birth.family == UNIX || birth.kind != STREAM {
        return true;
    }
    let bit = if name == SO_SNDBUF { SEND_LOCKED } else { RECEIVE_LOCKED };
    socket::number_option(fd, SOL_SOCKET, SO_BUF_LOCK).is_ok_and(|locked| locked & bit != 0)
}

fn known(birth: Birth) -> impl Iterator<Item = (u32, u32)> {
    let (is_ip, is_v6) = (matches!(birth.family, INET | INET6), birth.family == INET6);
    let is_tcp = is_ip && birth.kind == STREAM;
    let all = |level: u32, names: &'static [u32], counts: bool| {
        names.iter().filter(move |_| counts).map(move |name| (level, *name))
    };
    all(SOL_SOCKET, &GENERAL, true)
        .chain(all(IP, &OF_IP, is_ip))
        .chain(all(IPV6, &OF_IPV6, is_v6))
        .chain(all(TCP, &OF_TCP, is_tcp))
        .chain(all(UDP, &OF_UDP, is_ip && !is_tcp))
        .chain([(SOL_SOCKET, SO_PRIORITY)])
        .chain(netlink::options().filter(move |_| birth.family == NETLINK))
        .filter(move |option| !is_tcp || !OF_NO_STREAM.contains(option))
}
