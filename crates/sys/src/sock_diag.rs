//! Queries the kernel about sockets (sock_diag(7)). By inode: the peer of a Unix socket. By addresses: whether a file refers
//! to a TCP connection, and how a UDP socket was shut down. Also the connections that wait to be accepted by a TCP socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsFd;
use std::thread;

use rustix::net::{AddressFamily, netlink};

use crate::netlink::{HEADER_BYTES, NLM_F_REQUEST, Netlink, check_error, malformed, u16_at, u32_at};
use crate::{namespace, pidfd};

/// A netlink socket for queries in one network namespace.
#[derive(Debug)]
pub struct SockDiag(Netlink);

/// The kernel's report about a Unix socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// TCP_*: 1 connected, 7 not connected, 10 listening.
    pub state: u8,
    /// Inode of the other end; 0 if that end is closed, `None` if the socket was never connected.
    pub peer: Option<u32>,
    /// Number of bytes in its receive queue; for a listening socket, number of waiting connections.
    pub queued: u32,
    /// The maximal number of waiting connections of a listening socket.
    pub backlog: u32,
    /// The shut-down directions, as a mask: 1 for reading, 2 for writing.
    pub shut_down: u8,
    /// The inodes of the clients that wait to be accepted by a listening socket, in order; 0 for a client that has closed
    /// its end. Empty if there are too many to report.
    pub pending_clients: Vec<u32>,
}

/// A key of a TCP socket for the MD5 signatures of a peer's segments (RFC 2385).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpMd5Key {
    /// The peer's address, or the first one of a network.
    pub peer: IpAddr,
    /// Length of the network's prefix, in bits.
    pub prefix_bits: u8,
    /// The key.
    pub key: Vec<u8>,
}

/// A TCP connection that waits to be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnacceptedTcp {
    /// Address of the end that waits.
    pub server: SocketAddr,
    /// Address of the client.
    pub client: SocketAddr,
    /// Whether data of the client has arrived.
    pub has_data: bool,
    /// Whether the client has shut the connection down for sending, or has closed it, and all its data has arrived.
    pub has_ended: bool,
}

impl UnacceptedTcp {
    /// Parses `struct inet_diag_msg`. `None` if a process has the socket open.
    fn parse(message: &[u8]) -> Option<Self> {
        const RECEIVE_QUEUE_AT: usize = HEADER_BYTES + 56;
        let is_ipv4 = u16::from(*message.get(HEADER_BYTES)?) == AddressFamily::INET.as_raw();
        let end = |port_at: usize, address_at: usize| {
            let port = u16::from_be_bytes(message.get(HEADER_BYTES + port_at..)?.first_chunk().copied()?);
            let address: [u8; 16] = message.get(HEADER_BYTES + address_at..)?.first_chunk().copied()?;
            let ip = match is_ipv4 {
                true => IpAddr::from([address[0], address[1], address[2], address[3]]),
                false => IpAddr::from(address),
            };
            Some(SocketAddr::new(ip, port))
        };
        let has_ended = *message.get(STATE_AT)? == CLOSE_WAIT;
        // The end of the stream (FIN) counts as one byte.
        let has_data = u32_at(message, RECEIVE_QUEUE_AT)? > u32::from(has_ended);
        let is_unaccepted = u32_at(message, INODE_AT)? == 0;
        Some(Self { server: end(4, 8)?, client: end(6, 24)?, has_data, has_ended }).filter(|_| is_unaccepted)
    }
}

impl TcpMd5Key {
    const KEY_BYTES_MAX: usize = 80;

    /// Parses `struct tcp_diag_md5sig`: family and prefix length (8 bits each), length of the key (16 bits), address and key.
    fn parse(bytes: &[u8]) -> Option<Self> {
        const ADDRESS: std::ops::Range<usize> = 4..20;
        let key_bytes = usize::from(u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?));
        let address: [u8; 16] = bytes.get(ADDRESS)?.try_into().ok()?;
        let peer = match u16::from(*bytes.first()?) {
            family if family == AddressFamily::INET.as_raw() => {
                IpAddr::from([address[0], address[1], address[2], address[3]])
            }
            _ => IpAddr::from(address),
        };
        let key = bytes.get(ADDRESS.end..ADDRESS.end + key_bytes.min(Self::KEY_BYTES_MAX))?.to_vec();
        Some(Self { peer, prefix_bits: bytes[1], key })
    }

    /// Encodes the value of the option TCP_MD5SIG_EXT that adds the key to a socket. `struct tcp_md5sig` has an address, flags
    /// and prefix length (8 bits each), the length of the key (16 bits), an interface, and the key.
    pub fn to_option(&self) -> Vec<u8> {
        const ADDRESS_BYTES: usize = 128;
        const OPTION_BYTES: usize = ADDRESS_BYTES + 8 + TcpMd5Key::KEY_BYTES_MAX;
        const FLAG_PREFIX: u8 = 1;
        let mut option = vec![0; OPTION_BYTES];
        let (family, address, at) = match self.peer {
            IpAddr::V4(address) => (AddressFamily::INET, address.octets().to_vec(), 4),
            IpAddr::V6(address) => (AddressFamily::INET6, address.octets().to_vec(), 8),
        };
        option[..2].copy_from_slice(&family.as_raw().to_ne_bytes());
        option[at..at + address.len()].copy_from_slice(&address);
        option[ADDRESS_BYTES..ADDRESS_BYTES + 2].copy_from_slice(&[FLAG_PREFIX, self.prefix_bits]);
        option[ADDRESS_BYTES + 2..ADDRESS_BYTES + 4].copy_from_slice(&(self.key.len() as u16).to_ne_bytes());
        option[ADDRESS_BYTES + 8..ADDRESS_BYTES + 8 + self.key.len()].copy_from_slice(&self.key);
        option
    }
}

const MESSAGE_BYTES: usize = 16;

const NO_COOKIE: u32 = u32::MAX;

const TCP: u8 = 6;

const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// TCP states.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
const LISTENING: u8 = 10;

/// Position of the state in a report of a TCP or UDP socket.
const STATE_AT: usize = HEADER_BYTES + 1;

/// Position of the inode in a report of a TCP or UDP socket.
const INODE_AT: usize = HEADER_BYTES + 68;

impl SockDiag {
    /// Opens a netlink socket in the network namespace of a process.
    ///
    /// # Errors
    /// As setns(2) and socket(2).
    pub fn open(pid: i32) -> io::Result<Self> {
        // A socket belongs to the namespace in which it was created. So a new thread enters that namespace.
        let open = move || {
            namespace::enter_network_of(pidfd::open(pid)?.as_fd())?;
            Netlink::open(Some(netlink::SOCK_DIAG))
        };
        thread::spawn(open).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map(Self)
    }

    /// Queries a Unix socket.
    ///
    /// # Errors
    /// ENOENT if the namespace has no socket with that inode.
    pub fn unix_socket(&self, inode: u32) -> io::Result<UnixSocket> {
        const SHOW_PEER_AND_QUEUE: u32 = 0x4 | 0x10;
        const SHOW_CLIENTS: u32 = 0x8;
        let query_with = |show: u32| {
            let mut body = vec![AddressFamily::UNIX.as_raw() as u8, 0, 0, 0];
            [NO_COOKIE, inode, show, NO_COOKIE, NO_COOKIE].iter().for_each(|word| body.extend(word.to_ne_bytes()));
            parse(&self.query(&body)?)
        };
        match query_with(SHOW_PEER_AND_QUEUE | SHOW_CLIENTS) {
            // The list of clients does not fit in a page: query without it.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => query_with(SHOW_PEER_AND_QUEUE),
            result => result,
        }
    }

    /// Whether no file refers to the TCP connection from `own` to `peer`. Then the connection waits to be accepted, or was
    /// closed. `None` if there is no such connection.
    ///
    /// # Errors
    /// If the kernel does not report TCP sockets.
    pub fn is_orphaned(&self, own: SocketAddr, peer: SocketAddr) -> io::Result<Option<bool>> {
        let Some(answer) = self.query_inet(TCP, [own, peer], [NO_COOKIE, NO_COOKIE], 0)? else { return Ok(None) };
        let inode = u32_at(&answer, INODE_AT).ok_or_else(malformed)?;
        Ok((answer[STATE_AT] != LISTENING).then_some(inode == 0))
    }

    /// Returns the keys for TCP MD5 signatures of the socket that listens on an address. A key of an IPv6 socket for an IPv4
    /// peer has an IPv6 address. Of several listening sockets (SO_REUSEPORT), the kernel chooses one.
    ///
    /// # Errors
    /// If the kernel does not report TCP sockets.
    pub fn tcp_md5_keys(&self, own: SocketAddr) -> io::Result<Vec<TcpMd5Key>> {
        const MD5_KEYS: u16 = 18;
        const KEY_BYTES: usize = 100;
        /// The kernel adds the keys only to reports with extensions. This asks for all that the request can name.
        const ALL_EXTENSIONS: u8 = u8::MAX;
        let any = SocketAddr::new(if own.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, 0);
        let answer = self.query_inet(TCP, [own, any], [NO_COOKIE, NO_COOKIE], ALL_EXTENSIONS)?;
        let Some(answer) = answer else { return Ok(Vec::new()) };
        let Some(keys) = inet_attribute(&answer, MD5_KEYS)? else { return Ok(Vec::new()) };
        let keys = keys.chunks(KEY_BYTES).map(TcpMd5Key::parse).collect::<Option<Vec<_>>>();
        let mapped = |key: TcpMd5Key| match (key.peer, own) {
            (IpAddr::V4(peer), SocketAddr::V6(_)) => TcpMd5Key { peer: peer.to_ipv6_mapped().into(), ..key },
            _ => key,
        };
        Ok(keys.ok_or_else(malformed)?.into_iter().map(mapped).collect())
    }

    /// Whether the end of a TCP connection from `own` to `peer` was closed, and the kernel still delivers its data.
    ///
    /// # Errors
    /// If the kernel does not report TCP sockets.
    pub fn is_closed(&self, own: SocketAddr, peer: SocketAddr) -> io::Result<bool> {
        let Some(answer) = self.query_inet(TCP, [own, peer], [NO_COOKIE, NO_COOKIE], 0)? else { return Ok(false) };
        let is_orphaned = u32_at(&answer, INODE_AT).ok_or_else(malformed)? == 0;
        Ok(is_orphaned && ![ESTABLISHED, CLOSE_WAIT, LISTENING].contains(&answer[STATE_AT]))
    }

    /// Returns the connections that wait to be accepted on the port of a listening socket, except those that their clients
    /// have reset.
    ///
    /// # Errors
    /// If the kernel does not report TCP sockets.
    pub fn unaccepted_tcp(&self, listener: SocketAddr) -> io::Result<Vec<UnacceptedTcp>> {
        let any = SocketAddr::new(listener.ip(), 0);
        let states = 1 << ESTABLISHED | 1 << CLOSE_WAIT;
        let body = inet_request(TCP, [listener, any], [NO_COOKIE, NO_COOKIE], 0, states);
        let found = self.0.dump(SOCK_DIAG_BY_FAMILY, &body)?;
        Ok(found.iter().filter_map(|message| UnacceptedTcp::parse(message)).collect())
    }

    /// Whether a TCP socket that neither listens nor is connected is bound to the port of `own`. Before Linux 6.8, the kernel
    /// does not report such sockets.
    ///
    /// # Errors
    /// If the kernel does not report TCP sockets.
    pub fn is_bound_tcp(&self, own: SocketAddr, inode: u32) -> io::Result<bool> {
        const BOUND_INACTIVE: u32 = 13;
        let any = SocketAddr::new(own.ip(), 0);
        let body = inet_request(TCP, [own, any], [NO_COOKIE, NO_COOKIE], 0, 1 << BOUND_INACTIVE);
        let found = self.0.dump(SOCK_DIAG_BY_FAMILY, &body)?;
        Ok(found.iter().any(|message| u32_at(message, INODE_AT) == Some(inode)))
    }

    /// Returns the directions in which a connected UDP socket was shut down, as a mask: 1 for reading, 2 for writing. `None`
    /// if there is no such socket. `cookie` is its SO_COOKIE: other sockets may have the same addresses.
    ///
    /// # Errors
    /// If the kernel does not report UDP sockets; ESTALE if another socket has the addresses.
    pub fn udp_shutdown(&self, own: SocketAddr, peer: SocketAddr, cookie: u64) -> io::Result<Option<u8>> {
        const UDP: u8 = 17;
        const SHUT_DOWN: u16 = 8;
        let cookie = [cookie as u32, (cookie >> 32) as u32];
        // For UDP, the kernel expects the two ends in the opposite order.
        let Some(answer) = self.query_inet(UDP, [peer, own], cookie, 0)? else { return Ok(None) };
        match inet_attribute(&answer, SHUT_DOWN)? {
            Some(mask) => mask.first().copied().map(Some).ok_or_else(malformed),
            None => Ok(Some(0)),
        }
    }

    /// Queries one TCP or UDP socket; `None` if there is none. `extensions` is the mask of additional attributes.
    fn query_inet(
        &self,
        protocol: u8,
        ends: [SocketAddr; 2],
        cookie: [u32; 2],
        extensions: u8,
    ) -> io::Result<Option<Vec<u8>>> {
        let body = inet_request(protocol, ends, cookie, extensions, u32::MAX);
        let answer = self.query(&body)?;
        match check_error(&answer) {
            Ok(()) => Ok(Some(answer)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn query(&self, body: &[u8]) -> io::Result<Vec<u8>> {
        self.0.request(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, body)
    }
}

/// Encodes `struct inet_diag_req_v2`. `extensions` is the mask of additional attributes, `states` the mask of TCP states.
fn inet_request(protocol: u8, ends: [SocketAddr; 2], cookie: [u32; 2], extensions: u8, states: u32) -> Vec<u8> {
    let family = if ends[0].is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut body = vec![family.as_raw() as u8, protocol, extensions, 0];
    body.extend(states.to_ne_bytes());
    ends.iter().for_each(|end| body.extend(end.port().to_be_bytes()));
    for end in ends {
        let bytes = match end.ip() {
            IpAddr::V4(address) => [&address.octets()[..], &[0; 12]].concat(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        body.extend(bytes);
    }
    // Interface 0 means any interface.
    [0, cookie[0], cookie[1]].iter().for_each(|word| body.extend(word.to_ne_bytes()));
    body
}

/// The attributes of an answer whose message ends at `start`: their types, and where their data is.
fn attributes(answer: &[u8], start: usize) -> impl Iterator<Item = (u16, Range<usize>)> {
    let mut at = start;
    std::iter::from_fn(move || {
        let (length @ 4.., kind) = (u16_at(answer, at)?, u16_at(answer, at + 2)?) else { return None };
        let data = at + 4..at + usize::from(length);
        at += usize::from(length).next_multiple_of(4);
        Some((kind, data))
    })
}

/// The data of an attribute of a TCP or UDP socket; `None` if the answer does not have it.
///
/// # Errors
/// The answer ends within the attribute.
fn inet_attribute(answer: &[u8], wanted: u16) -> io::Result<Option<&[u8]>> {
    const INET_MESSAGE_BYTES: usize = 72;
    let found = attributes(answer, HEADER_BYTES + INET_MESSAGE_BYTES).find(|(kind, _)| *kind == wanted);
    found.map(|(_, data)| answer.get(data).ok_or_else(malformed)).transpose()
}

/// Parses a header (length, type, flags, sequence, port), then a message with its attributes, or an error.
fn parse(answer: &[u8]) -> io::Result<UnixSocket> {
    check_error(answer)?;
    let word = |at: usize| u32_at(answer, at);
    let state = *answer.get(HEADER_BYTES + 2).ok_or_else(malformed)?;
    let mut socket = UnixSocket { state, ..UnixSocket::default() };
    for (kind, data) in attributes(answer, HEADER_BYTES + MESSAGE_BYTES) {
        match kind {
            2 => socket.peer = word(data.start),
            3 => socket.pending_clients = data.clone().step_by(4).filter_map(word).collect(),
            4 => {
                (socket.queued, socket.backlog) =
                    (word(data.start).ok_or_else(malformed)?, word(data.start + 4).ok_or_else(malformed)?);
            }
            6 => socket.shut_down = *answer.get(data.start).ok_or_else(malformed)?,
            _ => {}
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    fn inode(socket: &UnixStream) -> u32 {
        std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(socket))).unwrap().ino() as u32
    }

    #[test]
    fn the_peer_of_a_socket_is_reported() {
        use std::io::Write;
        let diagnosis = SockDiag::open(std::process::id() as i32).unwrap();
        let (one, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"five!").unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        let socket = diagnosis.unix_socket(inode(&one)).unwrap();
        let peer = Some(inode(&other));
        assert_eq!(socket, UnixSocket { state: 1, peer, queued: 5, shut_down: 1, ..UnixSocket::default() });
        drop(other);
        assert_eq!(diagnosis.unix_socket(inode(&one)).unwrap().peer, Some(0));
        assert!(diagnosis.unix_socket(1).is_err());
        assert!(parse(&[0; 3]).is_err());
    }

    #[test]
    fn the_shutdown_state_of_a_udp_socket_is_reported() {
        use std::net::{Ipv4Addr, UdpSocket};
        const SO_COOKIE: u32 = 57;
        let diagnosis = SockDiag::open(std::process::id() as i32).unwrap();
        let [one, other] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        one.connect(other.local_addr().unwrap()).unwrap();
        let cookie = crate::socket::read_option(one.as_fd(), libc::SOL_SOCKET as u32, SO_COOKIE).unwrap();
        let cookie = u64::from_ne_bytes(cookie.try_into().unwrap());
        let shut_down = || diagnosis.udp_shutdown(one.local_addr().unwrap(), other.local_addr().unwrap(), cookie);
        assert_eq!(shut_down().unwrap(), Some(0));
        rustix::net::shutdown(&one, rustix::net::Shutdown::Write).unwrap();
        assert_eq!(shut_down().unwrap(), Some(2));
        let stale = diagnosis.udp_shutdown(one.local_addr().unwrap(), other.local_addr().unwrap(), cookie + 1);
        assert!(stale.is_err());
    }

    #[test]
    fn clients_that_wait_in_a_backlog_are_reported() {
        use std::net::{Ipv4Addr, TcpListener, TcpStream};
        use std::os::unix::net::UnixListener;
        use std::time::{Duration, Instant};
        let diagnosis = SockDiag::open(std::process::id() as i32).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("listener");
        let listener = UnixListener::bind(&path).unwrap();
        let clients = [UnixStream::connect(&path).unwrap(), UnixStream::connect(&path).unwrap()];
        let number =
            std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&listener))).unwrap();
        let socket = diagnosis.unix_socket(number.ino() as u32).unwrap();
        assert_eq!(socket.pending_clients, clients.each_ref().map(inode));

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, peer) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
        assert_eq!(diagnosis.is_orphaned(own, peer).unwrap(), Some(true));
        let idle = UnacceptedTcp { server: own, client: peer, has_data: false, has_ended: false };
        assert_eq!(diagnosis.unaccepted_tcp(own).unwrap(), [idle]);
        let mut closed = TcpStream::connect(own).unwrap();
        let ended = UnacceptedTcp { client: closed.local_addr().unwrap(), has_ended: true, ..idle };
        closed.shutdown(std::net::Shutdown::Write).unwrap();
        // The end of a stream arrives later on a busy machine.
        let wait_until_waiting = |wanted: &[UnacceptedTcp]| {
            let give_up = Instant::now() + Duration::from_secs(30);
            loop {
                let found = diagnosis.unaccepted_tcp(own).unwrap();
                if found.len() == wanted.len() && wanted.iter().all(|one| found.contains(one)) {
                    return;
                }
                assert!(Instant::now() < give_up, "{found:?}");
            }
        };
        wait_until_waiting(&[idle, ended]);
        drop(closed);
        closed = TcpStream::connect(own).unwrap();
        std::io::Write::write_all(&mut closed, b"q").unwrap();
        let with_data = UnacceptedTcp { client: closed.local_addr().unwrap(), has_data: true, ..ended };
        drop(closed);
        wait_until_waiting(&[idle, ended, with_data]);
        // The data of this client does not fit into the queue of the other end.
        closed = TcpStream::connect(own).unwrap();
        closed.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut closed, &[0; 1 << 16]).is_ok() {}
        let full = UnacceptedTcp { client: closed.local_addr().unwrap(), has_ended: false, ..with_data };
        assert!(!diagnosis.is_closed(full.client, own).unwrap());
        drop(closed);
        wait_until_waiting(&[idle, ended, with_data, full]);
        assert!(diagnosis.is_closed(full.client, own).unwrap() && !diagnosis.is_closed(peer, own).unwrap());
        let _server = listener.accept().unwrap();
        assert_eq!(diagnosis.is_orphaned(own, peer).unwrap(), Some(false));
        assert_eq!(diagnosis.is_orphaned(own, SocketAddr::new(peer.ip(), 1)).unwrap(), None);
    }
}
