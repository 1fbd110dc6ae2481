//! Sockets. A pair whose two ends the seed holds is rebuilt with the data in flight between them. Listening and bound
//! sockets are bound again, in the child's own network and file system. Any other connection has ended.

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
    /// As socket(2) took it.
    pub protocol: u32,
    /// O_* flags.
    pub flags: u32,
    /// What it is in the middle of.
    pub state: SocketState,
    /// Its file, where bind(2) is to make one.
    pub file: Option<SocketFile>,
    /// Options that differ from those of a new socket, in the order in which they are to be set.
    pub options: Vec<SocketOption>,
    /// What has arrived and was not read.
    pub received_messages: Vec<SocketMessage>,
    /// Whether it was shut down for reading (1) and for writing (2).
    pub shutdown_flags: u32,
}

/// A message that has arrived; of a stream, a piece of any length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketMessage {
    /// May be none.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// Open files on their way with it (SCM_RIGHTS), by their indices.
    pub files: Vec<u32>,
    /// Who sent it, where the receiver is told (SO_PASSCRED) and the kernel knows.
    pub sender: Option<MessageSender>,
}

/// A process that sent a message (SCM_CREDENTIALS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSender {
    /// One of the tree, by its id.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The file of a Unix socket that is bound to a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFile {
    /// Where it is now, as the process sees it, whatever path it was bound to; `None` where it was removed.
    pub path: Option<String>,
    /// Mode and owner.
    pub status: FileStatus,
}

/// What a socket is in the middle of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketState {
    /// Neither connected nor listening.
    Unconnected {
        /// As bind(2) takes it; empty where it is not bound.
        address: Vec<u8>,
        /// Where it sends to by itself, as connect(2) takes it; empty for nowhere.
        peer: Vec<u8>,
    },
    /// It listens.
    Listening {
        /// As bind(2) takes it.
        address: Vec<u8>,
        /// How many connections may wait.
        backlog: u32,
    },
    /// Connected with another socket of the process.
    UnixPaired {
        /// Number of the pair, the same for both.
        pair: u32,
        /// Which of the two it is: 0 or 1; of a connection, 1 was accepted.
        end: u32,
        /// The address of the listening socket that they were connected through; empty for a socketpair(2).
        through: Vec<u8>,
        /// Its own address, as bind(2) takes it; empty where it is not bound, or has that of the listening socket.
        address: Vec<u8>,
    },
    /// Connected over TCP with another socket of the process.
    TcpPaired {
        /// Number of the pair, the same for both.
        pair: u32,
        /// Which of the two it is: 0 or 1.
        end: u32,
        /// Its own address, of the loopback.
        address: Vec<u8>,
        /// That of the other.
        peer: Vec<u8>,
    },
    /// Connected through a listening socket of the process, which has not accepted it, and has nothing sent.
    PendingAccept {
        /// Its own address, as bind(2) takes it; empty where it is not bound.
        address: Vec<u8>,
        /// That of the listening socket, as connect(2) takes it.
        through: Vec<u8>,
        /// Which comes first of those that wait, ascending.
        turn: u32,
    },
    /// A TCP connection that both ends have shut down: what had arrived can be read, and then its end.
    ShutDown {
        /// Its own address; empty where it has none.
        address: Vec<u8>,
    },
    /// Connected with somebody else: a child finds the other end closed or, over TCP, the connection reset.
    PeerOutside {
        /// Whether that was closed before it had read all, of which the process was not told yet (ECONNRESET). Of a Unix socket.
        is_reset: bool,
    },
}

impl Socket {
    /// Whether it has an address of any kind, as itself or by way of the one that listens.
    pub fn has_address(&self) -> bool {
        match &self.state {
            SocketState::Unconnected { address, .. } | SocketState::ShutDown { address } => !address.is_empty(),
            SocketState::UnixPaired { through, address, .. } => !through.is_empty() || !address.is_empty(),
            SocketState::Listening { .. } | SocketState::TcpPaired { .. } | SocketState::PendingAccept { .. } => true,
            SocketState::PeerOutside { .. } => false,
        }
    }

    /// The address that it is to be bound to by itself; empty for none.
    pub fn bind_address(&self) -> &[u8] {
        match &self.state {
            SocketState::Unconnected { address, .. }
            | SocketState::Listening { address, .. }
            | SocketState::UnixPaired { address, .. }
            | SocketState::PendingAccept { address, .. } => address,
            SocketState::TcpPaired { .. } | SocketState::ShutDown { .. } | SocketState::PeerOutside { .. } => &[],
        }
    }

    /// The path among these addresses; `None` for one of another kind.
    pub fn bind_path(&self) -> Option<&[u8]> {
        const UNIX: u32 = 1;
        let path = self.bind_address().get(2..).filter(|_| self.family == UNIX)?;
        path.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())
    }

    /// Where on the internet others reach it; `None` where they do not, or another way.
    pub fn internet_bind_address(&self) -> Option<SocketAddr> {
        match &self.state {
            SocketState::Unconnected { address, .. } | SocketState::Listening { address, .. } => {
                parse_internet_address(address).filter(|address| address.port() != 0)
            }
            _ => None,
        }
    }
}

/// An address of the internet, as bind(2) takes it; one of version 4 in the clothes of version 6 is one of version 4.
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

/// An option of a socket (setsockopt(2)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOption {
    /// SOL_*, or the number of a protocol.
    pub level: u32,
    /// SO_*, or a protocol's own.
    pub name: u32,
    /// Its value, as setsockopt(2) takes it.
    pub value: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_of_version_4() {
        const INET6: u16 = 10;
        let mut address = vec![0; 28];
        address[..2].copy_from_slice(&INET6.to_ne_bytes());
        address[2..4].copy_from_slice(&80_u16.to_be_bytes());
        address[18..24].copy_from_slice(&[255, 255, 127, 0, 0, 1]);
        assert_eq!(parse_internet_address(&address), Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(parse_internet_address(&[1, 0, b'/']), None);
    }
}
