//! Closed ends of TCP connections, which no process has open: the peers of sockets with data or an end of file, and the clients
//! of connections that wait to be accepted. A child makes them, and closes them before it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use farfork_sys::sock_diag::{SockDiag, UnacceptedTcp};
use farfork_sys::socket_abi::{AF_INET, AF_INET6, IPPROTO_TCP, LINGER_OF_RESET, SO_LINGER, SOCK_STREAM, SOL_SOCKET};
use farfork_wire::descriptor::{Socket, SocketOption, SocketState, encode_internet_address, parse_internet_address};

use super::tcp::{TcpState, canonical};
use super::{LISTENING, NO_SENDING, SocketContents, SocketTable};

/// The connections that wait to be accepted by a listening socket.
#[derive(Debug, Default)]
pub(super) struct WaitingConnections {
    /// Those over the loopback whose clients are closed.
    closed_clients: Vec<UnacceptedTcp>,
    /// Number of those of all listening sockets of this port, without those that a client has reset.
    unreset: u32,
}

impl WaitingConnections {
    /// Reads the connections that wait to be accepted on a port. A client that a process has open is a socket of the tree, or
    /// of a process that children do not get.
    pub(super) fn read(diagnosis: &SockDiag, listener: SocketAddr) -> io::Result<Self> {
        let mut found = diagnosis.unaccepted_tcp(listener)?;
        let unreset = found.len() as u32;
        found.retain(|one| {
            let is_local = [one.client, one.server].iter().all(|end| canonical(*end).ip().is_loopback());
            let is_orphaned = || diagnosis.is_orphaned(one.client, one.server);
            is_local
                && match one.has_ended {
                    true => !matches!(is_orphaned(), Ok(Some(false))),
                    // This end has no room for data that precedes the end of the stream.
                    false => one.has_data && matches!(is_orphaned(), Ok(Some(true))),
                }
        });
        Ok(Self { closed_clients: found, unreset })
    }

    /// Whether a closed client has sent data.
    pub(super) fn has_data(&self) -> bool {
        self.closed_clients.iter().any(|client| client.has_data)
    }
}

impl SocketTable<'_> {
    /// The closed ends of connections: of those with data or an end of file that a socket has not read, and of those that
    /// wait to be accepted. `open` are the inodes of the sockets that a process has open.
    pub(in super::super) fn closed_tcp_ends(&self, open: &BTreeSet<u64>) -> Vec<Socket> {
        let sockets = || self.0.iter().filter(|(inode, _)| open.contains(inode)).map(|(inode, one)| (*inode, one));
        let peers = sockets().filter(|(_, contents)| contents.has_ended_peer());
        let peers = peers.filter_map(|(inode, contents)| match self.state_without_peer(inode, contents) {
            Ok(SocketState::TcpPaired { pair, address, peer, .. }) if self.tcp_peer(contents).is_none() => {
                let state = SocketState::TcpPaired { pair, end: 1, address: peer, peer: address };
                Some(closed_end(contents.spec.family, state))
            }
            _ => None,
        });
        // Listening sockets that share a port show the same connections.
        let listening = sockets().filter(|(_, contents)| contents.state == LISTENING);
        let listeners: Vec<_> =
            listening.filter_map(|(_, contents)| Some((contents, contents.tcp.as_ref()?))).collect();
        let clients = listeners.iter().flat_map(|(_, tcp)| &tcp.waiting.closed_clients);
        let clients: BTreeSet<_> = clients.map(|client| (client.client, client.server)).collect();
        let clients = clients.into_iter().map(|(client, server)| waiting_end(client, server));
        peers.chain(reset_ends(&listeners)).chain(clients).collect()
    }
}

/// Builds a closed end of a TCP connection.
fn closed_end(family: u32, state: SocketState) -> Socket {
    Socket {
        family,
        kind: SOCK_STREAM,
        protocol: IPPROTO_TCP,
        flags: 0,
        state,
        file: None,
        options: Vec::new(),
        received_messages: Vec::new(),
        shutdown_flags: NO_SENDING,
    }
}

/// Builds the closed client of a connection that waits to be accepted.
fn waiting_end(client: SocketAddr, server: SocketAddr) -> Socket {
    let [address, through] = [client, server].map(|end| encode_internet_address(canonical(end)));
    let family = if canonical(client).is_ipv4() { AF_INET } else { AF_INET6 };
    // The order is unknown. They are first, because the others still wait for a reply.
    closed_end(family, SocketState::PendingAccept { address, through, turn: 0 })
}

/// Builds the clients that have reset a connection that waits to be accepted. Such connections are those of the accept queues
/// that the kernel does not report. Their addresses are unknown, so a client has a port that its kernel chooses.
fn reset_ends(listeners: &[(&SocketContents, &TcpState)]) -> Vec<Socket> {
    let mut ports: BTreeMap<(u32, u16), (SocketAddr, u32, u32)> = BTreeMap::new();
    for (contents, tcp) in listeners {
        let Some(mut own) = parse_internet_address(&contents.address) else { continue };
        match own.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => own.set_ip(Ipv6Addr::LOCALHOST.into()),
            // A child cannot connect to an address that its network lacks.
            ip if !ip.is_loopback() => continue,
            _ => {}
        }
        let (_, queued, unreset) = ports.entry((contents.spec.family, own.port())).or_insert((own, 0, 0));
        (*queued, *unreset) = (*queued + tcp.accept_queue, tcp.waiting.unreset);
    }
    let ends = ports.into_values().flat_map(|(server, queued, unreset)| {
        let end = waiting_end(SocketAddr::new(server.ip(), 0), server);
        let linger = SocketOption { level: SOL_SOCKET, name: SO_LINGER, value: LINGER_OF_RESET.to_vec() };
        let end = Socket { options: vec![linger], shutdown_flags: 0, ..end };
        std::iter::repeat_n(end, queued.saturating_sub(unreset) as usize)
    });
    ends.collect()
}
