//! Sockets. A connection with both ends in the seed is rebuilt, with its data in flight. Listening and bound sockets
//! are bound again, in the child's own network and file system. Any other connection is closed in a child.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::FileStatus;

/// A socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// AF_*.
    pub family: u32,
    /// SOCK_*, without flags.
    pub kind: u32,
    /// The protocol given to socket(2).
    pub protocol: u32,
    /// O_* flags.
    pub flags: u32,
    /// State of the connection.
    pub state: SocketState,
    /// The file that bind(2) creates, if any.
    pub file: Option<SocketFile>,
    /// Options that differ from those of a new socket, in the order in which to set them.
    pub options: Vec<SocketOption>,
    /// Messages that have arrived and that the process has not read.
    pub received_messages: Vec<SocketMessage>,
    /// The shut-down directions, as a mask: 1 for reading, 2 for writing.
    pub shutdown_flags: u32,
}

/// A received message; for a stream, a piece of any length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketMessage {
    /// The contents; may be empty.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// Open files that the message passes (SCM_RIGHTS), as indices into `Descriptor::open_files`.
    pub files: Vec<u32>,
    /// The sender, if the receiver requested it (SO_PASSCRED) and the kernel knows it.
    pub sender: Option<MessageSender>,
}

/// A process that sent a message (SCM_CREDENTIALS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSender {
    /// Id of a process of the tree.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The file of a Unix socket that is bound to a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFile {
    /// The current path of the file, as the process sees it. It may differ from the bound path. `None` if the file was
    /// removed.
    pub path: Option<String>,
    /// Mode and owner.
    pub status: FileStatus,
}

/// State of a socket's connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketState {
    /// Neither connected nor listening.
    Unconnected {
        /// Local address, in the form of bind(2); empty if unbound.
        address: Vec<u8>,
        /// Default destination, in the form of connect(2); empty for none.
        peer: Vec<u8>,
    },
    /// Listening.
    Listening {
        /// Local address, in the form of bind(2).
        address: Vec<u8>,
        /// Length of the queue of pending connections.
        backlog: u32,
    },
    /// Connected to another Unix socket of the seed.
    UnixPaired {
        /// Number of the pair, the same for both.
        pair: u32,
        /// End of the pair: 0 or 1. If a listening socket accepted the connection, end 1 is the accepted end.
        end: u32,
        /// Address of the listening socket that accepted the connection; empty if there was none, as for socketpair(2).
        through: Vec<u8>,
        /// Local address, in the form of bind(2); empty if unbound or equal to the listening socket's.
        address: Vec<u8>,
    },
    /// Connected over TCP to another socket of the seed.
    TcpPaired {
        /// Number of the pair, the same for both.
        pair: u32,
        /// End of the pair: 0 or 1.
        end: u32,
        /// Local address, on the loopback interface.
        address: Vec<u8>,
        /// Address of the other end.
        peer: Vec<u8>,
    },
    /// Connected to a listening socket of the seed. The connection was not accepted yet, and this socket has sent
    /// nothing.
    PendingAccept {
        /// Local address, in the form of bind(2); empty if unbound.
        address: Vec<u8>,
        /// Address of the listening socket, in the form of connect(2).
        through: Vec<u8>,
        /// Position in the queue of pending connections; the lowest is accepted first.
        turn: u32,
    },
    /// A TCP connection that both ends have shut down. Received data can still be read, then end of file. If
    /// `shutdown_flags` is 0, only the other end has shut it down.
    ShutDown {
        /// Local address; empty if there is none.
        address: Vec<u8>,
    },
    /// Connected to a process outside the seed. A child finds the other end closed or, over TCP, the connection reset. Since
    /// version 32, Unix sockets have `UnixPeerOutside`.
    PeerOutside {
        /// As in `UnixPeerOutside`.
        is_reset: bool,
    },
    /// A TCP socket whose connection the process has ended by connect(2) with AF_UNSPEC.
    Disconnected {
        /// Local address, in the form of bind(2); empty if unbound, and without a port if only its IP address is bound.
        address: Vec<u8>,
        /// The port of the connection, which getsockname(2) shows even if the socket is unbound.
        shown_port: u16,
        /// Whether the socket must still return ECONNRESET once.
        is_reset: bool,
    },
    /// A Unix socket whose other end is closed, or in a process outside the seed. A child finds it closed.
    UnixPeerOutside {
        /// Whether the socket must still return ECONNRESET once, because its other end was closed with unread data.
        is_reset: bool,
        /// Local address, as getsockname(2) shows it; empty if it has none.
        address: Vec<u8>,
        /// Address of the other end, as getpeername(2) shows it; empty if it has none.
        peer: Vec<u8>,
    },
}

impl Socket {
    /// Whether the socket has an address, either its own or the address of its listening socket.
    pub fn has_address(&self) -> bool {
        match &self.state {
            SocketState::Unconnected { address, .. }
            | SocketState::Disconnected { address, .. }
            | SocketState::ShutDown { address } => !address.is_empty(),
            SocketState::UnixPaired { through, address, .. } => !through.is_empty() || !address.is_empty(),
            SocketState::Listening { .. } | SocketState::TcpPaired { .. } | SocketState::PendingAccept { .. } => true,
            SocketState::PeerOutside { .. } | SocketState::UnixPeerOutside { .. } => false,
        }
    }

    /// The address to bind the socket to; empty for none.
    pub fn bind_address(&self) -> &[u8] {
        match &self.state {
            SocketState::Unconnected { address, .. }
            | SocketState::Disconnected { address, .. }
            | SocketState::Listening { address, .. }
            | SocketState::UnixPaired { address, .. }
            | SocketState::PendingAccept { address, .. } => address,
            SocketState::TcpPaired { .. }
            | SocketState::ShutDown { .. }
            | SocketState::PeerOutside { .. }
            | SocketState::UnixPeerOutside { .. } => &[],
        }
    }

    /// The file path in the bind address; `None` for another kind of address.
    pub fn bind_path(&self) -> Option<&[u8]> {
        const UNIX: u32 = 1;
        parse_unix_path(self.bind_address()).filter(|_| self.family == UNIX)
    }

    /// The internet address at which peers reach the socket; `None` if it has none.
    pub fn internet_bind_address(&self) -> Option<SocketAddr> {
        match &self.state {
            SocketState::Unconnected { address, .. }
            | SocketState::Disconnected { address, .. }
            | SocketState::Listening { address, .. } => {
                parse_internet_address(address).filter(|address| address.port() != 0)
            }
            _ => None,
        }
    }
}

/// Parses an internet address in the form of bind(2). An IPv4-mapped IPv6 address becomes an IPv4 address.
pub fn parse_internet_address(address: &[u8]) -> Option<SocketAddr> {
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let family = u16::from_ne_bytes(address.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(address.get(2..4)?.try_into().ok()?);
    let ip: IpAddr = match family {
        INET => Ipv4Addr::from(<[u8; 4]>::try_from(address.get(4..8)?).ok()?).into(),
        INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(address.get(8..24)?).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Returns the path in the address of a Unix socket, in the form of bind(2). `None` if the socket has no path.
pub fn parse_unix_path(address: &[u8]) -> Option<&[u8]> {
    const FAMILY_BYTES: usize = 2;
    address.get(FAMILY_BYTES..)?.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())
}

/// Whether the kernel has chosen the address of a Unix socket (unix(7), autobind): a zero byte and five hexadecimal digits.
pub fn is_chosen_unix_name(address: &[u8]) -> bool {
    const FAMILY_BYTES: usize = 2;
    const DIGITS: usize = 5;
    let digits = address.get(FAMILY_BYTES..).and_then(|name| name.strip_prefix(&[0]));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Encodes an internet address in the form of bind(2).
pub fn encode_internet_address(address: SocketAddr) -> Vec<u8> {
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => [&INET.to_ne_bytes()[..], &port, &ip.octets(), &[0; 8]].concat(),
        IpAddr::V6(ip) => [&INET6.to_ne_bytes()[..], &port, &[0; 4], &ip.octets(), &[0; 4]].concat(),
    }
}

/// An option of a socket (setsockopt(2)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOption {
    /// SOL_*, or a protocol number.
    pub level: u32,
    /// SO_*, or a protocol-specific option.
    pub name: u32,
    /// The value, in the form of setsockopt(2).
    pub value: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_ipv4_addresses() {
        const INET6: u16 = 10;
        let mut address = vec![0; 28];
        address[..2].copy_from_slice(&INET6.to_ne_bytes());
        address[2..4].copy_from_slice(&80_u16.to_be_bytes());
        address[18..24].copy_from_slice(&[255, 255, 127, 0, 0, 1]);
        assert_eq!(parse_internet_address(&address), Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(parse_internet_address(&[1, 0, b'/']), None);
    }

    #[test]
    fn encoded_addresses_are_parsed_again() {
        for address in ["127.0.0.1:80".parse().unwrap(), "[::1]:8080".parse().unwrap()] {
            assert_eq!(parse_internet_address(&encode_internet_address(address)), Some(address));
        }
    }
}
