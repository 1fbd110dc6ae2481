//! Sockets: their kinds, their peers, and the data in their queues.
//!
//! State that other holders of a socket can change (states, addresses, queues) is read first, for all sockets; options are
//! read later. A connection with both ends in the tree is carried with its data in flight. If the peer is outside the tree,
//! the child finds the other end closed.

mod connectors;
mod netlink;
mod options;
mod tcp;
mod tcp_closed_ends;
mod udp;
mod unix;
mod waiting_data;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use farfork_sys::sock_diag::{SockDiag, UnixSocket};
use farfork_sys::socket;
use farfork_sys::socket_abi::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, IP_BIND_ADDRESS_NO_PORT, IPPROTO_TCP, IPPROTO_UDP, SO_ACCEPTCONN,
    SO_DOMAIN, SO_PEEK_OFF, SO_PEERCRED, SO_PROTOCOL, SO_TYPE, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_STREAM,
    SOL_IP, SOL_SOCKET,
};
use farfork_wire::descriptor::{
    OpenFileAttributes, PeerCredentials, Socket, SocketFile, SocketMessage, SocketState, is_chosen_unix_name,
    parse_internet_address,
};
use rustix::io::Errno;

use connectors::UnixConnector;
pub(super) use options::{SocketDefaultsCache, read_options};
use tcp::TcpState;
pub(super) use tcp::is_ended_by_peer as is_tcp_ended_by_peer;
pub(super) use unix::{QueuedMessage, own_bound_path};
pub(super) use waiting_data::waiting_data_reason;

const URGENT_DATA_REASON: &str =
    "it has unread urgent data (MSG_OOB), which is not carried; let the process read it first";

const UNREAD_MESSAGES_REASON: &str =
    "it has unread messages, whose senders are not carried; let the process read them first";

/// TCP_* states, which the kernel uses for all sockets.
const CONNECTED: u8 = 1;
const CLOSED: u8 = 7;
const LISTENING: u8 = 10;

/// Size of the address family, with which each address begins.
const FAMILY_BYTES: usize = 2;

/// Shut-down directions, as a mask.
const NO_RECEIVING: u32 = 1;
const NO_SENDING: u32 = 2;

/// The arguments of socket(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SocketSpec {
    family: u32,
    socket_type: u32,
    protocol: u32,
}

/// Protocol number of Multipath TCP.
const IPPROTO_MPTCP: u32 = 262;

const MULTIPATH_TCP_REASON: &str = "it is a Multipath TCP socket (MPTCP, protocol 262), which is not carried: let the program use TCP (Go since 1.24 listens with MPTCP; GODEBUG=multipathtcp=0 in its environment turns that off), or close it first";

impl SocketSpec {
    fn read(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let number = |name| socket::read_number_option(fd, SOL_SOCKET, name).map(i32::cast_unsigned);
        Ok(Self { family: number(SO_DOMAIN)?, socket_type: number(SO_TYPE)?, protocol: number(SO_PROTOCOL)? })
    }

    fn is_tcp(self) -> bool {
        matches!(self.family, AF_INET | AF_INET6) && self.socket_type == SOCK_STREAM
    }

    fn refusal(self) -> Option<String> {
        match (self.family, self.socket_type, self.protocol) {
            (AF_UNIX, SOCK_STREAM | SOCK_DGRAM | SOCK_SEQPACKET, _)
            | (AF_INET | AF_INET6, SOCK_STREAM, IPPROTO_TCP)
            | (AF_INET | AF_INET6, SOCK_DGRAM, IPPROTO_UDP) => None,
            (AF_NETLINK, SOCK_DGRAM | SOCK_RAW, protocol) if netlink::is_supported_protocol(protocol) => None,
            (AF_INET | AF_INET6, SOCK_STREAM, IPPROTO_MPTCP) => Some(MULTIPATH_TCP_REASON.to_owned()),
            (family, kind, protocol) => Some(format!(
                "sockets of its kind (family {family}, type {kind}, protocol {protocol}) are not carried; close it first"
            )),
        }
    }
}

/// Returns why a socket cannot be carried, judged by its socket(2) arguments.
pub(super) fn spec_refusal(fd: BorrowedFd<'_>) -> io::Result<Option<String>> {
    Ok(SocketSpec::read(fd)?.refusal())
}

/// Whether an Internet socket has the address of a network interface. Loopback addresses do not count: every network has
/// them.
pub(super) fn has_interface_address(fd: BorrowedFd<'_>) -> io::Result<bool> {
    if !matches!(SocketSpec::read(fd)?.family, AF_INET | AF_INET6) {
        return Ok(false);
    }
    let address = parse_internet_address(&socket::local_address(fd)?);
    let of_interface = |address: IpAddr| !address.is_unspecified() && !address.is_loopback();
    Ok(address.is_some_and(|address| of_interface(address.ip())))
}

/// Whether a socket is a Unix socket.
pub(super) fn is_unix(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(SocketSpec::read(fd)?.family == AF_UNIX)
}

/// The port of a TCP socket that listens; `None` for any other socket.
pub(super) fn tcp_listening_port(fd: BorrowedFd<'_>) -> io::Result<Option<u16>> {
    if !SocketSpec::read(fd)?.is_tcp() || socket::read_number_option(fd, SOL_SOCKET, SO_ACCEPTCONN)? == 0 {
        return Ok(None);
    }
    Ok(parse_internet_address(&socket::local_address(fd)?).map(|address| address.port()))
}

/// The own and the peer's address of a TCP connection; `None` for any other socket.
pub(super) fn tcp_addresses(fd: BorrowedFd<'_>) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
    if !SocketSpec::read(fd)?.is_tcp() {
        return Ok(None);
    }
    let Ok(peer) = socket::peer_address(fd) else { return Ok(None) };
    let own = parse_internet_address(&socket::local_address(fd)?);
    Ok(own.zip(parse_internet_address(&peer)))
}

/// Whether only sock_diag(7) shows the socket's peer or shut-down directions.
pub(super) fn needs_diagnosis(fd: BorrowedFd<'_>) -> bool {
    let is_connected = || socket::peer_address(fd).is_ok();
    SocketSpec::read(fd).is_ok_and(|spec| match (spec.family, spec.socket_type) {
        (AF_UNIX, _) => true,
        (AF_INET | AF_INET6, SOCK_DGRAM) => is_connected(),
        _ => tcp::is_over_loopback(fd, spec) || is_listening(fd) || tcp::may_be_disconnected(fd, spec),
    })
}

fn is_listening(fd: BorrowedFd<'_>) -> bool {
    socket::read_number_option(fd, SOL_SOCKET, SO_ACCEPTCONN).is_ok_and(|listens| listens != 0)
}

/// Whether a process made a socket for itself: the socket listens, or is a Unix socket whose peer the same process made.
pub(super) fn is_created_by(fd: BorrowedFd<'_>, pid: i32) -> io::Result<bool> {
    let peer = || socket::read_option(fd, SOL_SOCKET, SO_PEERCRED);
    let listens = socket::read_number_option(fd, SOL_SOCKET, SO_ACCEPTCONN)? != 0;
    Ok(listens || (SocketSpec::read(fd)?.family == AF_UNIX && peer()?.starts_with(&pid.to_ne_bytes())))
}

/// The state of a socket in the pause.
#[derive(Debug)]
pub(in super::super) struct SocketContents {
    spec: SocketSpec,
    address: Vec<u8>,
    /// Whether an Internet socket gets its port only in connect(2) (IP_BIND_ADDRESS_NO_PORT). It may be bound to an address
    /// without a port.
    lacks_port: bool,
    peer: Option<Vec<u8>>,
    state: u8,
    backlog: u32,
    unix: Option<UnixSocket>,
    /// The file that a Unix socket is bound to, with its path in farfork's mount namespace.
    file: Option<SocketFile>,
    /// Set for a TCP socket.
    tcp: Option<TcpState>,
    pub(super) receive_queue: Vec<QueuedMessage>,
    shutdown: u32,
    /// For a Unix socket whose peer waits to be accepted: number of bytes that the peer has not read.
    unread_bytes: u32,
    /// Whether a Unix socket must still report ECONNRESET, because its peer was closed with unread data.
    is_reset: bool,
    /// Whether a TCP or UDP socket must still report ECONNREFUSED.
    is_refused: bool,
    /// For a Unix stream: kernel memory of the data that it has sent and its peer has not read, in bytes.
    sent_memory_bytes: u32,
    /// The credentials that SO_PEERCRED and SO_PEERGROUPS show; `None` if the kernel shows none.
    creator: Option<PeerCredentials>,
    /// For a Unix socket that waits to be accepted: whose credentials the accepted end will show.
    connector: UnixConnector,
    /// Why the socket cannot be carried.
    refusal: Option<String>,
}

/// Reads a socket of a stopped process.
pub(super) fn read_socket(fd: &OwnedFd, inode: u64, diagnosis: Option<&SockDiag>) -> io::Result<SocketContents> {
    let fd = fd.as_fd();
    let spec = SocketSpec::read(fd)?;
    let mut contents = SocketContents {
        spec,
        address: socket::local_address(fd)?,
        lacks_port: matches!(spec.family, AF_INET | AF_INET6) && lacks_port(fd)?,
        peer: socket::peer_address(fd).ok(),
        state: CLOSED,
        backlog: 0,
        unix: None,
        file: None,
        tcp: None,
        receive_queue: Vec::new(),
        shutdown: 0,
        unread_bytes: 0,
        is_reset: false,
        is_refused: false,
        sent_memory_bytes: 0,
        creator: None,
        connector: UnixConnector::NoHolder,
        refusal: spec.refusal(),
    };
    match spec.family {
        AF_UNIX => contents.read_unix(fd, inode, diagnosis)?,
        AF_INET | AF_INET6 if spec.is_tcp() => contents.read_tcp(fd, inode, diagnosis)?,
        AF_INET | AF_INET6 => contents.read_udp(fd, diagnosis)?,
        AF_NETLINK => contents.read_netlink(fd)?,
        _ => {}
    }
    Ok(contents)
}

/// Calls `peek` while SO_PEEK_OFF has this value. Then restores the parent's value, which peeks move. Before Linux 6.9, TCP
/// sockets do not have the option.
fn peek_at_offset<T>(fd: BorrowedFd<'_>, offset: i32, peek: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = match socket::read_number_option(fd, SOL_SOCKET, SO_PEEK_OFF) {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => return peek(),
        before => before?,
    };
    // Without an offset, a peek begins at the first byte, and moves nothing.
    if before == offset && offset < 0 {
        return peek();
    }
    socket::set_number_option(fd, SOL_SOCKET, SO_PEEK_OFF, offset)?;
    let peeked = peek();
    socket::set_number_option(fd, SOL_SOCKET, SO_PEEK_OFF, before)?;
    peeked
}

fn lacks_port(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(socket::read_number_option(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT)? != 0)
}

impl SocketContents {
    fn set_refusal(&mut self, reason: String) {
        self.refusal.get_or_insert(reason);
    }
}

/// Reads the credentials of the process that created the connection of a Unix socket, or made it listen. That process may
/// have ended, or be none of the tree. `None` if the kernel has recorded none.
fn read_creator(fd: BorrowedFd<'_>) -> io::Result<Option<PeerCredentials>> {
    const NO_ID: u32 = u32::MAX;
    let peer = socket::read_option(fd, SOL_SOCKET, SO_PEERCRED)?;
    let id_at = |at: usize| Some(u32::from_ne_bytes(peer.get(at..at + 4)?.try_into().ok()?)).filter(|id| *id != NO_ID);
    let (Some(uid), Some(gid)) = (id_at(4), id_at(8)) else { return Ok(None) };
    Ok(Some(PeerCredentials { uid, gid, groups: socket::read_peer_groups(fd)? }))
}

/// The sockets of a process tree, by inode. `builder` adds the senders of messages, and `inflight` their files.
#[derive(Debug)]
pub(super) struct SocketTable<'a>(pub(super) &'a BTreeMap<u64, SocketContents>);

impl SocketTable<'_> {
    /// Builds the attributes of a socket.
    pub(super) fn build_attributes(&self, contents: &SocketContents) -> OpenFileAttributes {
        OpenFileAttributes {
            peer: contents.connector.credentials().or(contents.creator.as_ref()).cloned(),
            is_refused: contents.is_refused,
            sent_memory_bytes: contents.sent_memory_bytes,
            ..OpenFileAttributes::default()
        }
    }

    /// Builds a socket of the descriptor, without its options. The error says why the socket cannot be carried.
    pub(super) fn build_socket(&self, inode: u64, contents: &SocketContents, flags: u32) -> Result<Socket, String> {
        if let Some(reason) = &contents.refusal {
            return Err(reason.clone());
        }
        let SocketSpec { family, socket_type: kind, protocol } = contents.spec;
        let state = self.state(inode, contents)?;
        let keeps_queue = !matches!(state, SocketState::Listening { .. });
        let message = |one: &QueuedMessage| SocketMessage { bytes: one.bytes.clone(), ..SocketMessage::default() };
        let received: Vec<SocketMessage> =
            if keeps_queue { contents.receive_queue.iter().map(message).collect() } else { Vec::new() };
        if matches!(state, SocketState::Unconnected { .. }) && !received.is_empty() {
            return Err(UNREAD_MESSAGES_REASON.to_owned());
        }
        let is_ended_by_peer = matches!(state, SocketState::ShutDown { .. }) && contents.has_ended_peer();
        let (options, shut_down) = (contents.md5_options(), if is_ended_by_peer { 0 } else { contents.shutdown });
        let mut socket = Socket {
            family,
            kind,
            protocol,
            flags,
            state,
            file: None,
            options,
            received_messages: received,
            shutdown_flags: shut_down,
        };
        socket.file = socket.bind_path().and(contents.file.clone());
        Ok(socket)
    }

    fn state(&self, inode: u64, contents: &SocketContents) -> Result<SocketState, String> {
        let is_datagram = contents.spec.socket_type == SOCK_DGRAM;
        if let Some(waiting) = self.pending_state(inode, contents) {
            return waiting;
        }
        if contents.state == LISTENING {
            return self.listening_state(contents);
        }
        if let Some(disconnected) = contents.disconnected_state() {
            return Ok(disconnected);
        }
        if let Some((other, peer)) = self.mutual_peer(inode, contents) {
            return self.build_paired(inode, contents, other, peer);
        }
        match contents.spec.family {
            AF_UNIX if is_datagram && contents.has_unnamed_peer() => {
                Ok(SocketState::Unconnected { address: contents.bound_address(), peer: Vec::new() })
            }
            AF_UNIX if is_datagram && self.is_own_address(contents) => Ok(SocketState::Unconnected {
                address: contents.bound_address(),
                peer: contents.peer.clone().unwrap_or_default(),
            }),
            AF_UNIX if contents.has_unnamed_peer() && contents.state != CONNECTED => {
                Ok(SocketState::Unconnected { address: contents.bound_address(), peer: Vec::new() })
            }
            AF_UNIX => Ok(SocketState::UnixPeerOutside {
                is_reset: contents.is_reset,
                address: contents.bound_address(),
                peer: contents.peer_name(),
            }),
            AF_NETLINK => Ok(SocketState::Unconnected { address: contents.bound_address(), peer: Vec::new() }),
            _ if is_datagram => Ok(SocketState::Unconnected {
                address: contents.bound_address(),
                peer: contents.peer.clone().unwrap_or_default(),
            }),
            _ if contents.has_ended() => Ok(SocketState::ShutDown { address: contents.bound_address() }),
            _ if contents.state == CLOSED && contents.shutdown == 0 => {
                Ok(SocketState::Unconnected { address: contents.bound_address(), peer: Vec::new() })
            }
            _ => self.tcp_state(inode, contents),
        }
    }

    /// Returns the peer of a Unix socket, with its inode, if the two are connected to each other.
    fn mutual_peer(&self, inode: u64, contents: &SocketContents) -> Option<(u64, &SocketContents)> {
        let peer_of = |contents: &SocketContents| contents.unix.as_ref()?.peer.map(u64::from).filter(|peer| *peer != 0);
        let peer = peer_of(contents)?;
        let other = self.0.get(&peer)?;
        // A socket that is connected to itself has no peer.
        (peer_of(other) == Some(inode) && peer != inode).then_some((peer, other))
    }

    /// Builds one end of a pair of connected Unix sockets. The accepted end of a connection has the listener's name; other
    /// ends have the names that they were bound to.
    fn build_paired(
        &self,
        inode: u64,
        contents: &SocketContents,
        peer_inode: u64,
        peer: &SocketContents,
    ) -> Result<SocketState, String> {
        let pair = inode.min(peer_inode) as u32;
        let was_accepted = |end: &SocketContents| {
            contents.spec.socket_type != SOCK_DGRAM && self.is_listener_address(&end.bound_address())
        };
        let (through, is_first, address) = match (was_accepted(contents), was_accepted(peer)) {
            (false, false) => {
                if ![contents, peer].iter().all(|end| self.can_rebind(end)) {
                    return Err(
                        "it is connected to another socket of the process by a name on which no socket listens \
                                any more: not carried; close it first"
                            .to_owned(),
                    );
                }
                (Vec::new(), inode < peer_inode, contents.bound_address())
            }
            (true, false) => (contents.bound_address(), false, Vec::new()),
            (false, true) => (peer.bound_address(), true, contents.bound_address()),
            (true, true) => {
                return Err("it is connected to another socket of the process, and both have names on which others \
                            listen: not carried; close it first"
                    .to_owned());
            }
        };
        Ok(SocketState::UnixPaired { pair, end: u32::from(!is_first), through, address })
    }

    fn is_listener_address(&self, name: &[u8]) -> bool {
        !name.is_empty() && self.0.values().any(|socket| socket.state == LISTENING && socket.bound_address() == name)
    }

    /// Whether an end can be bound to its name again although no socket listens on that name. A datagram socket can. For a
    /// connection, the kernel must have chosen the name (unix(7), autobind), and no other socket may have it. Any other name
    /// may come from a listening socket that was closed since.
    fn can_rebind(&self, end: &SocketContents) -> bool {
        let name = end.bound_address();
        let is_alone = || self.0.values().filter(|socket| socket.bound_address() == name).count() == 1;
        name.is_empty() || end.spec.socket_type == SOCK_DGRAM || (is_chosen_unix_name(&name) && is_alone())
    }

    fn is_own_address(&self, contents: &SocketContents) -> bool {
        let peer = contents.peer.as_deref().unwrap_or_default();
        self.0.values().any(|socket| !socket.bound_address().is_empty() && socket.address == peer)
    }
}

impl SocketContents {
    fn has_unnamed_peer(&self) -> bool {
        self.unix.as_ref().is_none_or(|unix| unix.peer.is_none())
    }

    /// Returns the address of the other end of a connected Unix socket; empty if it has none.
    fn peer_name(&self) -> Vec<u8> {
        self.peer.clone().filter(|name| name.len() > FAMILY_BYTES).unwrap_or_default()
    }

    fn has_wildcard_address(&self) -> bool {
        parse_internet_address(&self.address).is_none_or(|address| address.ip().is_unspecified())
    }

    /// Returns the address of an Internet socket with port 0.
    fn address_without_port(&self) -> Vec<u8> {
        let mut address = self.address.clone();
        address[FAMILY_BYTES..FAMILY_BYTES + 2].fill(0);
        address
    }

    /// Returns the address of a bound socket, else an empty one. An Internet socket is bound if it has a port, or an address
    /// that still lacks its port.
    fn bound_address(&self) -> Vec<u8> {
        let port = self.address.get(FAMILY_BYTES..FAMILY_BYTES + 2);
        let is_bound = match self.spec.family {
            AF_UNIX => self.address.len() > FAMILY_BYTES,
            AF_NETLINK => netlink::has_port(&self.address),
            _ => port.is_some_and(|port| port != [0, 0]) || (self.lacks_port && !self.has_wildcard_address()),
        };
        if is_bound { self.address.clone() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_multipath_tcp_names_the_switch_of_go() {
        let spec = |protocol| SocketSpec { family: AF_INET6, socket_type: SOCK_STREAM, protocol };
        let reason = spec(IPPROTO_MPTCP).refusal().unwrap();
        assert!(reason.contains("MPTCP") && reason.contains("GODEBUG=multipathtcp=0"), "{reason}");
        assert_eq!(spec(IPPROTO_TCP).refusal(), None);
    }
}
