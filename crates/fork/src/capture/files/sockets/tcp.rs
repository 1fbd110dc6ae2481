//! TCP sockets: which connections have both ends in the tree, and the data in flight in them.
//!
//! Over the loopback, sent data is in the receiver's queue, where it can be peeked at. Data for which that queue has no room
//! is still in the sender's queue, where it cannot be read without breaking the connection. Such a connection is refused.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use farfork_sys::poll::poll_at_once;
use farfork_sys::sock_diag::{SockDiag, TcpMd5Key};
use farfork_sys::socket;
use farfork_sys::socket_abi::{
    IPPROTO_TCP, SO_NETNS_COOKIE, SOCK_STREAM, SOL_SOCKET, TCP_AO_INFO, TCP_INFO, TCP_MD5SIG_EXT, TCP_ULP,
};
use farfork_wire::descriptor::{SocketOption, SocketState, parse_internet_address};
use rustix::event::PollFlags;

use super::tcp_closed_ends::WaitingConnections;
use super::unix::UNREAD_PENDING_REASON;
use super::{
    CLOSED, CONNECTED, LISTENING, NO_RECEIVING, NO_SENDING, QueuedMessage, SocketContents, SocketSpec, SocketTable,
    URGENT_DATA_REASON,
};

const AUTHENTICATION_REASON: &str = "it has keys of the TCP Authentication Option (TCP_AO_ADD_KEY), which cannot be read: not \
     carried; close it first, or remove its keys and add them again in the child";

const UPPER_PROTOCOL_REASON: &str = "it has a protocol above TCP in the kernel (TCP_ULP, such as TLS), whose state is not \
     carried; close it first, or let the program encrypt by itself";

/// States of a connection other than established.
const SYN_SENT: u8 = 2;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// Value of SO_PEEK_OFF with which each peek starts at the first byte of the queue, and changes nothing.
const NO_PEEK_OFFSET: i32 = -1;

/// State that only a TCP socket has.
#[derive(Debug)]
pub(super) struct TcpState {
    /// For a listening socket: number of connections that wait to be accepted.
    pub(super) accept_queue: u32,
    /// Cookie of the socket's network namespace (SO_NETNS_COOKIE).
    netns_cookie: Vec<u8>,
    /// Bytes that were sent to the network, each counted once.
    sent_bytes: u64,
    /// Bytes that were received in order.
    received_bytes: u64,
    /// Bytes that were not sent yet.
    unsent_bytes: u32,
    /// Whether both ends have shut the connection down, without a pending error.
    has_ended: bool,
    /// For a connection over the loopback: whether no file refers to the peer, so that the peer waits to be accepted. `None`
    /// if the kernel does not show it.
    is_peer_orphaned: Option<bool>,
    /// For a listening socket: its keys for TCP MD5 signatures.
    md5_keys: Vec<TcpMd5Key>,
    /// For a listening socket: its connections that wait to be accepted.
    pub(super) waiting: WaitingConnections,
    /// Whether only the other end has shut the connection down, and a child can read the received data.
    has_ended_peer: bool,
    /// Set if the process has disconnected the socket (connect(2) with AF_UNSPEC).
    disconnection: Option<TcpDisconnection>,
}

/// A connection that the process has ended by connect(2) with AF_UNSPEC. The socket keeps the address and the port that bind(2)
/// has named. A port that the kernel had chosen is free again, but getsockname(2) still shows it.
#[derive(Debug, Clone, Copy)]
struct TcpDisconnection {
    is_bound: bool,
    /// Whether an error is pending. It is ECONNRESET: connect(2) has reset the connection.
    has_error: bool,
}

/// The used part of `struct tcp_info`.
struct TcpInfo {
    state: u8,
    /// For a listening socket: number of connections that wait to be accepted. `backlog` is its limit.
    accept_queue: u32,
    backlog: u32,
    sent_bytes: u64,
    received_bytes: u64,
    unsent_bytes: u32,
    /// Number of segments that have arrived.
    arrived_segments: u32,
    /// Whether the peer has accepted a segment, or has announced a window. Both are missing if connect(2) has failed.
    was_established: bool,
}

impl TcpInfo {
    /// Reads TCP_INFO. Fields that the kernel does not report are zero.
    fn read(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let info = socket::read_option(fd, IPPROTO_TCP, TCP_INFO)?;
        let word = |at: usize| info.get(at..at + 4).and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)));
        let long = |at: usize| info.get(at..at + 8).and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?)));
        let (sent, again) = (long(200).unwrap_or(0), long(208).unwrap_or(0));
        Ok(Self {
            state: info.first().copied().ok_or(io::ErrorKind::InvalidData)?,
            accept_queue: word(24).ok_or(io::ErrorKind::InvalidData)?,
            backlog: word(28).ok_or(io::ErrorKind::InvalidData)?,
            sent_bytes: sent.wrapping_sub(again),
            received_bytes: long(128).unwrap_or(0),
            unsent_bytes: word(144).unwrap_or(0),
            arrived_segments: word(140).unwrap_or(0),
            was_established: long(120) != Some(0) || word(228) != Some(0),
        })
    }

    /// Whether only the other end has shut the connection down, and a child can read the received data. A child can neither
    /// decrypt nor authenticate data, so there a protected connection is reset.
    fn has_ended_peer(&self, fd: BorrowedFd<'_>) -> bool {
        self.state == CLOSE_WAIT && protection_reason(fd).is_none()
    }
}

/// Returns how a TCP socket authenticates or encrypts its segments, as a reason for a refusal.
fn protection_reason(fd: BorrowedFd<'_>) -> Option<&'static str> {
    if socket::read_option(fd, IPPROTO_TCP, TCP_AO_INFO).is_ok() {
        return Some(AUTHENTICATION_REASON);
    }
    // Without a protocol, the kernel returns an empty name.
    let has_upper_protocol = socket::read_option(fd, IPPROTO_TCP, TCP_ULP).is_ok_and(|name| !name.is_empty());
    has_upper_protocol.then_some(UPPER_PROTOCOL_REASON)
}

impl SocketContents {
    /// Returns why a TCP socket that works in a child cannot be carried: it authenticates or encrypts its segments.
    pub(in super::super) fn protection_refusal(&self, fd: BorrowedFd<'_>, state: &SocketState) -> Option<&'static str> {
        let is_reset_in_child = matches!(state, SocketState::PeerOutside { .. });
        if is_reset_in_child || !self.spec.is_tcp() { None } else { protection_reason(fd) }
    }

    /// Reads the state of a TCP socket. Reads its queue if both ends may be in the tree, or have shut down the connection.
    pub(super) fn read_tcp(&mut self, fd: BorrowedFd<'_>, inode: u64, diagnosis: Option<&SockDiag>) -> io::Result<()> {
        let info = TcpInfo::read(fd)?;
        let (mut is_peer_orphaned, mut has_ended, mut disconnection) = (None, false, None);
        let has_ended_peer = info.has_ended_peer(fd);
        (self.state, self.backlog) = (info.state, info.backlog);
        if self.state != LISTENING {
            let has_error = self.read_shutdown(fd)?;
            has_ended = self.state == CLOSED && self.shutdown != 0 && !has_error;
            if self.state == CLOSED && self.shutdown == 0 && (has_error || info.was_established) {
                let is_bound = self.is_bound(inode, diagnosis)?;
                disconnection = Some(TcpDisconnection { is_bound, has_error });
            } else if self.state == CLOSED && has_error && !info.was_established {
                self.read_failed_connect(&info);
            } else if self.state == CLOSED && has_error && protection_reason(fd).is_none() {
                self.read_queue_bytes(fd)?;
            }
            if self.state == SYN_SENT {
                // The answer to the parent's connect(2) cannot reach a child. A refusal ends the call in a child, also one
                // that a thread waits in and repeats; after a reset, the repeated call would return EISCONN.
                self.is_refused = true;
                is_peer_orphaned = Some(false);
            } else if has_ended {
                self.read_queue_bytes(fd)?;
            } else if self.is_over_loopback() || has_ended_peer {
                self.read_queue_bytes(fd)?;
                is_peer_orphaned = diagnosis.and_then(|diagnosis| self.is_peer_orphaned(diagnosis));
            }
        }
        let listener = parse_internet_address(&self.address).filter(|_| self.state == LISTENING);
        let (mut md5_keys, mut waiting) = (Vec::new(), WaitingConnections::default());
        if let (Some(diagnosis), Some(address)) = (diagnosis, listener) {
            md5_keys = diagnosis.tcp_md5_keys(address)?;
            if info.accept_queue > 0 {
                waiting = WaitingConnections::read(diagnosis, address)?;
            }
        }
        let network = socket::read_option(fd, SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or_default();
        let (sent_bytes, arrived_bytes, unsent_bytes) = (info.sent_bytes, info.received_bytes, info.unsent_bytes);
        self.tcp = Some(TcpState {
            accept_queue: info.accept_queue,
            netns_cookie: network,
            sent_bytes,
            received_bytes: arrived_bytes,
            unsent_bytes,
            has_ended,
            is_peer_orphaned,
            md5_keys,
            waiting,
            has_ended_peer,
            disconnection,
        });
        Ok(())
    }

    /// Whether a socket that was connected is still bound to its port: only if bind(2) has named the port.
    fn is_bound(&self, inode: u64, diagnosis: Option<&SockDiag>) -> io::Result<bool> {
        let own = parse_internet_address(&self.address).filter(|own| own.port() != 0);
        match (own, diagnosis) {
            (Some(own), Some(diagnosis)) => diagnosis.is_bound_tcp(own, inode as u32),
            _ => Ok(false),
        }
    }

    /// The state of a socket that the process has disconnected; `None` for any other socket.
    pub(super) fn disconnected_state(&self) -> Option<SocketState> {
        let TcpDisconnection { is_bound, has_error } = self.tcp.as_ref()?.disconnection?;
        let shown_port = parse_internet_address(&self.address).map_or(0, |own| own.port());
        let address = match (is_bound, self.has_wildcard_address()) {
            (true, _) => self.address.clone(),
            (false, true) => Vec::new(),
            (false, false) => self.address_without_port(),
        };
        Some(SocketState::Disconnected { address, shown_port, is_reset: has_error })
    }

    /// Reads the error of a connect(2) that has failed, and that the process has not read. Only a refusal arrives in a segment.
    fn read_failed_connect(&mut self, info: &TcpInfo) {
        self.is_refused = info.arrived_segments > 0;
        if !self.is_refused {
            self.set_refusal(FAILED_CONNECT_REASON.to_owned());
        }
    }

    /// The options that give a listening socket its keys for TCP MD5 signatures again.
    pub(super) fn md5_options(&self) -> Vec<SocketOption> {
        let keys = self.tcp.iter().flat_map(|tcp| &tcp.md5_keys);
        keys.map(|key| SocketOption { level: IPPROTO_TCP, name: TCP_MD5SIG_EXT, value: key.to_option() }).collect()
    }

    fn is_peer_orphaned(&self, diagnosis: &SockDiag) -> Option<bool> {
        let (own, peer) = (parse_internet_address(&self.address)?, parse_internet_address(self.peer.as_deref()?)?);
        diagnosis.is_orphaned(peer, own).ok().map(|is_orphaned| is_orphaned == Some(true))
    }

    /// Reads which directions are shut down: for sending from the state, for receiving from poll(2). Returns whether an
    /// error is pending.
    fn read_shutdown(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        let events = poll_at_once(fd, PollFlags::RDHUP | PollFlags::PRI)?;
        self.shutdown = if events.contains(PollFlags::RDHUP) { NO_RECEIVING } else { 0 };
        if [FIN_WAIT_1, FIN_WAIT_2, LAST_ACK, CLOSING].contains(&self.state) {
            self.shutdown |= NO_SENDING;
        }
        if events.contains(PollFlags::PRI) && (self.is_over_loopback() || self.state == CLOSE_WAIT) {
            self.set_refusal(URGENT_DATA_REASON.to_owned());
        }
        Ok(events.contains(PollFlags::ERR))
    }

    /// Whether both ends have shut down the connection. If so, the kernel no longer changes the connection, and all received
    /// data is in this socket's queue.
    pub(super) fn has_ended(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.has_ended)
    }

    /// Whether only the other end has shut the connection down. All data that it sent is in this socket's queue.
    pub(super) fn has_ended_peer(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.has_ended_peer)
    }

    /// Reads the whole receive queue, with one peek from its start. A peek would end at urgent data.
    fn read_queue_bytes(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.refusal.is_some() {
            return Ok(());
        }
        let bytes = rustix::io::ioctl_fionread(fd)?;
        if bytes > 0 {
            let mut room = vec![0; usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData)?];
            let peeked = super::peek_at_offset(fd, NO_PEEK_OFFSET, || socket::peek(fd, &mut room))?;
            if peeked.bytes as u64 != bytes {
                return Err(io::ErrorKind::NotFound.into());
            }
            self.receive_queue.push(QueuedMessage { bytes: room, ..QueuedMessage::default() });
        }
        Ok(())
    }

    /// Number of bytes that this end has sent and the peer has not received. TCP counts the end of the stream (FIN) as one
    /// received byte.
    fn undelivered_bytes(&self, peer: &Self) -> u64 {
        let (Some(own), Some(other)) = (&self.tcp, &peer.tcp) else { return 0 };
        let arrived = other.received_bytes - u64::from(peer.state == CLOSE_WAIT && other.received_bytes > 0);
        u64::from(own.unsent_bytes) + own.sent_bytes.abs_diff(arrived)
    }

    /// Whether the socket is connected over loopback addresses, which every network has.
    fn is_over_loopback(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| are_loopback_addresses(&self.address, peer))
    }
}

/// Whether a socket is a TCP connection that only its peer has shut down, and whose received data a child can read.
pub(in super::super) fn is_ended_by_peer(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(SocketSpec::read(fd)?.is_tcp() && TcpInfo::read(fd)?.has_ended_peer(fd))
}

/// For a connection within the process. Whether both ends are in the process is not known.
pub(super) const UNSENT_REASON: &str = "it has sent data that its peer has no room for, or that waits for more (TCP_CORK, \
     MSG_MORE): not carried if the peer is a socket of the process; let the process read from the peer first, or finish";

/// Returns why a TCP socket of a running process cannot be carried in its present state.
pub(super) fn waiting_data_reason(
    fd: BorrowedFd<'_>,
    spec: SocketSpec,
    diagnosis: &SockDiag,
) -> io::Result<Option<&'static str>> {
    let info = TcpInfo::read(fd)?;
    if info.state == LISTENING {
        let Some(own) = parse_internet_address(&socket::local_address(fd)?).filter(|_| info.accept_queue > 0) else {
            return Ok(None);
        };
        return Ok(WaitingConnections::read(diagnosis, own)?.has_data().then_some(CLOSED_CLIENT_REASON));
    }
    let events = poll_at_once(fd, PollFlags::RDHUP | PollFlags::PRI)?;
    let has = |event| events.contains(event);
    let is_local = is_over_loopback(fd, spec);
    let is_failed = info.state == CLOSED && has(PollFlags::ERR | PollFlags::RDHUP) && !info.was_established;
    Ok(match info.state {
        _ if has(PollFlags::PRI) && (is_local || info.state == CLOSE_WAIT) => Some(URGENT_DATA_REASON),
        _ if is_local && info.unsent_bytes > 0 => Some(UNSENT_REASON),
        _ if is_failed && info.arrived_segments == 0 => Some(FAILED_CONNECT_REASON),
        _ => None,
    })
}

/// Whether a TCP socket that was not read yet may have been disconnected from its peer: it has a port, but no peer.
pub(super) fn may_be_disconnected(fd: BorrowedFd<'_>, spec: SocketSpec) -> bool {
    let own = || parse_internet_address(&socket::local_address(fd).ok()?);
    spec.is_tcp() && socket::peer_address(fd).is_err() && own().is_some_and(|own| own.port() != 0)
}

/// Whether a socket that was not read yet is a TCP connection over the loopback.
pub(super) fn is_over_loopback(fd: BorrowedFd<'_>, spec: SocketSpec) -> bool {
    let ends = || Some((socket::local_address(fd).ok()?, socket::peer_address(fd).ok()?));
    spec.is_tcp() && ends().is_some_and(|(own, peer)| are_loopback_addresses(&own, &peer))
}

/// An IPv4-mapped address as an IPv4 address.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn are_loopback_addresses(own: &[u8], peer: &[u8]) -> bool {
    [own, peer].iter().all(|end| parse_internet_address(end).is_some_and(|end| end.ip().is_loopback()))
}

/// The kernel shows only that there is an error, and reading the error removes it.
const FAILED_CONNECT_REASON: &str = "its connect(2) has failed, and the process has not read the error, which could not be \
     read without removing it: not carried; let the process read it first (getsockopt(2), SO_ERROR)";

/// For a listening socket. The kernel shows only that a waiting connection has data.
const CLOSED_CLIENT_REASON: &str = "a connection waits to be accepted by it, with data of a client that has closed it, which \
     cannot be peeked at before accept(2): not carried; let the process accept it first";

impl SocketTable<'_> {
    /// Returns the state of a listening socket.
    pub(super) fn listening_state(&self, contents: &SocketContents) -> Result<SocketState, String> {
        if contents.tcp.as_ref().is_some_and(|tcp| tcp.waiting.has_data()) {
            return Err(CLOSED_CLIENT_REASON.to_owned());
        }
        Ok(SocketState::Listening { address: contents.bound_address(), backlog: contents.backlog })
    }

    /// Returns the state of a connection, which depends on its peer.
    pub(super) fn tcp_state(&self, inode: u64, contents: &SocketContents) -> Result<SocketState, String> {
        let Some((other, peer)) = self.tcp_peer(contents) else { return self.state_without_peer(inode, contents) };
        if !contents.is_over_loopback() {
            return Err(
                "both ends of its TCP connection are sockets of the process, and its addresses are not of the \
                        loopback: not carried; close it first"
                    .to_owned(),
            );
        }
        if other == inode {
            return Err("it is connected with itself, which is not carried; close it first".to_owned());
        }
        if contents.undelivered_bytes(peer) > 0 {
            return Err(format!(
                "its peer, a socket of the same process, has no room for {} bytes that were sent: not carried; let the \
                 process read from the peer first",
                contents.undelivered_bytes(peer)
            ));
        }
        if ![contents, peer].iter().all(|end| [CONNECTED, FIN_WAIT_1, FIN_WAIT_2, CLOSE_WAIT].contains(&end.state)) {
            return Err(
                "its connection to another socket of the process is being closed by both ends; try again".to_owned()
            );
        }
        let (address, peer) = (contents.address.clone(), contents.peer.clone().unwrap_or_default());
        Ok(SocketState::TcpPaired { pair: inode.min(other) as u32, end: u32::from(inode > other), address, peer })
    }

    /// Returns the state of a connection without a peer in the tree: the peer is outside, or waits to be accepted by a
    /// listening socket of the tree.
    pub(super) fn state_without_peer(&self, inode: u64, contents: &SocketContents) -> Result<SocketState, String> {
        if contents.has_ended_peer() {
            let (address, peer) = (contents.address.clone(), contents.peer.clone().unwrap_or_default());
            return Ok(match contents.is_over_loopback() {
                true => SocketState::TcpPaired { pair: inode as u32, end: 0, address, peer },
                false => SocketState::ShutDown { address },
            });
        }
        let waits = contents.tcp.as_ref().is_some_and(|tcp| tcp.is_peer_orphaned != Some(false));
        let wanted = contents.peer.as_deref().and_then(parse_internet_address);
        let waits_at = |listener: &SocketContents| {
            let is_it = |own: SocketAddr| {
                wanted.is_some_and(|to| to.port() == own.port() && (own.ip().is_unspecified() || own.ip() == to.ip()))
            };
            listener.state == LISTENING
                && listener.tcp.as_ref().is_some_and(|tcp| tcp.accept_queue > 0)
                && parse_internet_address(&listener.address).is_some_and(is_it)
        };
        if !waits || !contents.is_over_loopback() || !self.0.values().any(waits_at) {
            return Ok(SocketState::PeerOutside { is_reset: false });
        }
        let (info, peer) = (contents.tcp.as_ref(), contents.peer.clone().unwrap_or_default());
        if info.is_some_and(|tcp| tcp.unsent_bytes > 0 || tcp.sent_bytes > 0) {
            return Err(UNREAD_PENDING_REASON.to_owned());
        }
        // The kernel does not show the order of pending connections, so they are ordered by inode.
        Ok(SocketState::PendingAccept { address: contents.address.clone(), through: peer, turn: inode as u32 })
    }

    /// Returns the peer of a connection, with its inode, if it is a socket of the tree in the same network namespace.
    pub(super) fn tcp_peer(&self, contents: &SocketContents) -> Option<(u64, &SocketContents)> {
        let (own, peer) =
            (parse_internet_address(&contents.address)?, parse_internet_address(contents.peer.as_deref()?)?);
        let network = &contents.tcp.as_ref()?.netns_cookie;
        let is_it = |other: &SocketContents| {
            other.spec.socket_type == SOCK_STREAM
                && other.tcp.as_ref().is_some_and(|tcp| tcp.netns_cookie == *network)
                && parse_internet_address(&other.address) == Some(peer)
                && other.peer.as_deref().and_then(parse_internet_address) == Some(own)
        };
        self.0.iter().find(|(_, other)| is_it(other)).map(|(inode, other)| (*inode, other))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use farfork_sys::socket_abi::SO_OOBINLINE;
    use rustix::net::{SendFlags, send};

    use super::*;

    #[test]
    fn unread_urgent_data_is_refused_by_name() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        socket::set_number_option(receiver.as_fd(), SOL_SOCKET, SO_OOBINLINE, 1).unwrap();
        send(&sender, b"ab", SendFlags::empty()).unwrap();
        send(&sender, b"!", SendFlags::OOB).unwrap();
        let contents = super::super::read_socket(&receiver.into(), 0, None).unwrap();
        assert_eq!(contents.refusal.as_deref(), Some(URGENT_DATA_REASON));
    }
}
