//! TCP connections with both ends in the child. TCP_REPAIR (<https://lwn.net/Articles/495304/>; not described in tcp(7))
//! connects each end without a packet on the network.
//! So a connection needs no listening socket, and no other socket can connect in between.

use std::collections::HashSet;
use std::io;

use farfork_sys::socket_abi::{
    AF_INET, AF_INET6, IPPROTO_TCP, IPV6_V6ONLY, LINGER_OF_RESET, SO_BUF_LOCK, SO_LINGER, SO_RCVBUFFORCE, SOL_IPV6,
    SOL_SOCKET, TCP_FASTOPEN, TCP_QUEUE_SEQ, TCP_RECV_QUEUE, TCP_REPAIR, TCP_REPAIR_OPTIONS, TCP_REPAIR_QUEUE,
    TCP_REPAIR_WINDOW, TCP_SEND_QUEUE,
};
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Socket, SocketOption, SocketState, parse_internet_address};
use rustix::fs::OFlags;
use zerocopy::IntoBytes;

use super::super::RestoreError;
use super::super::plan_layout::STEP_SOCKET;
use super::open_files::{OpenFileBuilder, SocketOpenFile};
use super::socket::{loopback_address, send_received, set_nonblocking, shutdown_socket};
use super::socket_options::{MAXSEG_OPTION, set_option, set_options, set_u32_option};
use super::{SyscallBuilder, abi, value};

/// IPV6_V6ONLY, which can be set only before a socket has an address.
const V6ONLY_OPTION: (u32, u32) = (SOL_IPV6, IPV6_V6ONLY);

/// TCP_FASTOPEN, which has no meaning for a connected socket.
const FASTOPEN_OPTION: (u32, u32) = (IPPROTO_TCP, TCP_FASTOPEN);

/// Ends repair mode without a window probe.
pub(super) const TCP_REPAIR_OFF_NO_WP: u32 = u32::MAX;

/// The usual initial window of Linux, in bytes, and the scale of later windows.
const WINDOW_BYTES: u32 = 65_536;
const WINDOW_SCALE: u32 = 7;

/// Size of data that fit into the receive buffer of a new socket, in bytes.
const RECEIVE_BUFFER_BYTES: u32 = 32 << 10;

/// One end of a connection.
struct TcpEnd<'a> {
    index: u32,
    socket: &'a Socket,
    address: &'a [u8],
    peer: &'a [u8],
}

/// Creates all connections. Runs after listening and bound sockets exist: an end in repair mode may use a port that
/// another socket has bound.
pub(super) fn create_tcp_connections(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
) -> Result<(), RestoreError> {
    for (pair, end) in connection_ends(descriptor, 0) {
        open_file_builder.set_step(STEP_SOCKET, end.index);
        let other = connection_ends(descriptor, 1).find(|(other, _)| *other == pair);
        let (_, other) =
            other.ok_or(RestoreError::UnsupportedOpenFile { number: open_file_builder.first_fd(end.index) })?;
        let mut numbers = [0; 8];
        getrandom::fill(&mut numbers)
            .map_err(|error| RestoreError::from_object_error("a connection", io::Error::from(error)))?;
        let [one, two] = [0, 4].map(|at| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| numbers[at + byte])));
        connect_in_repair(open_file_builder.syscalls, 0, (&end, &other), (one, two))?;
        connect_in_repair(open_file_builder.syscalls, 1, (&other, &end), (two, one))?;
        for fd in [0, 1] {
            set_u32_option(open_file_builder.syscalls, fd, (IPPROTO_TCP, TCP_REPAIR), TCP_REPAIR_OFF_NO_WP)?;
        }
        for (from, to) in [(1, end.socket), (0, other.socket)] {
            send_received(open_file_builder.syscalls, from, to)?;
        }
        for (fd, end) in [(0, &end), (1, &other)] {
            // Let the kernel size the buffers again, unless the program has set their size.
            set_u32_option(open_file_builder.syscalls, fd, (SOL_SOCKET, SO_BUF_LOCK), 0)?;
            set_options(open_file_builder.syscalls, fd, end.socket, |option| {
                ![V6ONLY_OPTION, FASTOPEN_OPTION].contains(&option)
            })?;
            set_nonblocking(open_file_builder.syscalls, fd, end.socket);
        }
        // Shut down last, because each end reports the shutdown to the other.
        shutdown_socket(open_file_builder.syscalls, 0, end.socket);
        shutdown_socket(open_file_builder.syscalls, 1, other.socket);
        open_file_builder.store_open_file(1, other.index);
        open_file_builder.store_open_file(0, end.index);
    }
    create_closed_connections(open_file_builder, descriptor)
}

/// Creates connections that both ends, or only the peers, have shut down, and connections that were reset after data had arrived.
/// For each end, a temporary other end sends the data that had arrived, shuts down or resets the connection, and is closed.
fn create_closed_connections(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
) -> Result<(), RestoreError> {
    let mut ports = free_ports(descriptor);
    let mut free_port = |index| ports.next().ok_or(RestoreError::UnsupportedOpenFile { number: index });
    for SocketOpenFile { index, socket } in SocketOpenFile::all(descriptor) {
        let address = match &socket.state {
            SocketState::ShutDown { address } => address.as_slice(),
            _ if is_reset_with_data(socket) => &[],
            _ => continue,
        };
        open_file_builder.set_step(STEP_SOCKET, index);
        let address = match parse_internet_address(address).filter(|own| own.ip().is_loopback() && own.port() != 0) {
            Some(_) => address.to_vec(),
            None => with_port(&loopback_address(socket.family), free_port(index)?),
        };
        let peer = with_port(&address, free_port(index)?);
        let silent = Socket { received_messages: Vec::new(), ..socket.clone() };
        let end = TcpEnd { index, socket, address: &address, peer: &peer };
        let other = TcpEnd { index, socket: &silent, address: &peer, peer: &address };
        connect_in_repair(open_file_builder.syscalls, 0, (&end, &other), (INITIAL_SEQUENCE, INITIAL_SEQUENCE))?;
        connect_in_repair(open_file_builder.syscalls, 1, (&other, &end), (INITIAL_SEQUENCE, INITIAL_SEQUENCE))?;
        for fd in [0, 1] {
            set_u32_option(open_file_builder.syscalls, fd, (IPPROTO_TCP, TCP_REPAIR), TCP_REPAIR_OFF_NO_WP)?;
        }
        send_received(open_file_builder.syscalls, 1, socket)?;
        set_u32_option(open_file_builder.syscalls, 0, (SOL_SOCKET, SO_BUF_LOCK), 0)?;
        set_options(open_file_builder.syscalls, 0, socket, |option| {
            ![V6ONLY_OPTION, FASTOPEN_OPTION].contains(&option)
        })?;
        set_nonblocking(open_file_builder.syscalls, 0, socket);
        end_connection(open_file_builder.syscalls, socket)?;
        open_file_builder.store_open_file(0, index);
    }
    Ok(())
}

/// Whether a TCP connection was reset, and has data that had arrived before.
pub(super) fn is_reset_with_data(socket: &Socket) -> bool {
    let is_tcp = matches!(socket.family, AF_INET | AF_INET6);
    is_tcp && matches!(socket.state, SocketState::PeerOutside { .. }) && !socket.received_messages.is_empty()
}

/// Ends the connection of `socket`, descriptor 0, and closes its temporary other end, descriptor 1.
fn end_connection(syscall_builder: &mut SyscallBuilder<'_>, socket: &Socket) -> Result<(), RestoreError> {
    let is_ended_by_peer = socket.shutdown_flags == 0;
    if is_reset_with_data(socket) {
        set_option(syscall_builder, 1, (SOL_SOCKET, SO_LINGER), &LINGER_OF_RESET)?;
    } else {
        for fd in u32::from(is_ended_by_peer)..=1 {
            syscall_builder.call_expecting(0, abi::SHUTDOWN, &[value(fd), value(SHUT_WR)]);
        }
    }
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(1_u32)]);
    Ok(())
}

const SHUT_WR: u32 = 1;

/// Initial sequence number of a connection on which no more data is sent.
const INITIAL_SEQUENCE: u32 = 1;

/// Ports above the kernel's ephemeral range that no socket of the descriptor uses.
fn free_ports(descriptor: &Descriptor) -> impl Iterator<Item = u16> {
    const PORT_MIN: u16 = 61_000;
    let addresses = SocketOpenFile::all(descriptor).flat_map(|one| match &one.socket.state {
        SocketState::Unconnected { address, peer } | SocketState::TcpPaired { address, peer, .. } => {
            vec![address, peer]
        }
        SocketState::Listening { address, .. }
        | SocketState::Disconnected { address, .. }
        | SocketState::ShutDown { address } => vec![address],
        SocketState::PendingAccept { address, through, .. } => vec![address, through],
        SocketState::UnixPaired { .. } | SocketState::PeerOutside { .. } | SocketState::UnixPeerOutside { .. } => {
            Vec::new()
        }
    });
    let taken: HashSet<u16> = addresses.filter_map(|address| Some(parse_internet_address(address)?.port())).collect();
    (PORT_MIN..=u16::MAX).filter(move |port| !taken.contains(port))
}

/// Returns a copy of the address with another port.
pub(super) fn with_port(address: &[u8], port: u16) -> Vec<u8> {
    const PORT_OFFSET: usize = 2;
    let mut address = address.to_vec();
    address[PORT_OFFSET..PORT_OFFSET + 2].copy_from_slice(&port.to_be_bytes());
    address
}

/// Returns end `wanted` (0 or 1) of all connections.
fn connection_ends(descriptor: &Descriptor, wanted: u32) -> impl Iterator<Item = (u32, TcpEnd<'_>)> {
    SocketOpenFile::all(descriptor).filter_map(move |SocketOpenFile { index, socket }| match &socket.state {
        SocketState::TcpPaired { pair, end, address, peer } if *end == wanted => {
            Some((*pair, TcpEnd { index, socket, address, peer }))
        }
        _ => None,
    })
}

/// Connects descriptor `fd` and leaves it in repair mode, with a window for all received data. `sends` and `receives`
/// are the sequence numbers of the next byte that it sends and receives.
fn connect_in_repair(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    (end, other): (&TcpEnd<'_>, &TcpEnd<'_>),
    (sends, receives): (u32, u32),
) -> Result<(), RestoreError> {
    let Socket { family, kind, protocol, .. } = end.socket;
    let kind = kind | OFlags::CLOEXEC.bits();
    syscall_builder.call_expecting(fd.into(), abi::SOCKET, &[value(*family), value(kind), value(*protocol)]);
    set_options(syscall_builder, fd, end.socket, |option| option == V6ONLY_OPTION)?;
    set_u32_option(syscall_builder, fd, (IPPROTO_TCP, TCP_REPAIR), 1)?;
    let (address, peer) = (syscall_builder.bytes_argument(end.address)?, syscall_builder.bytes_argument(end.peer)?);
    syscall_builder.call_expecting(0, abi::BIND, &[value(fd), address, value(end.address.len() as u64)]);
    set_u32_option(syscall_builder, fd, (IPPROTO_TCP, TCP_REPAIR_QUEUE), TCP_SEND_QUEUE)?;
    set_u32_option(syscall_builder, fd, (IPPROTO_TCP, TCP_QUEUE_SEQ), sends)?;
    set_u32_option(syscall_builder, fd, (IPPROTO_TCP, TCP_REPAIR_QUEUE), TCP_RECV_QUEUE)?;
    set_u32_option(syscall_builder, fd, (IPPROTO_TCP, TCP_QUEUE_SEQ), receives)?;
    if end.received_bytes() > RECEIVE_BUFFER_BYTES {
        set_u32_option(syscall_builder, fd, (SOL_SOCKET, SO_RCVBUFFORCE), end.window_bytes())?;
    }
    set_u32_option(syscall_builder, fd, MAXSEG_OPTION, end.segment_bytes())?;
    syscall_builder.call_expecting(0, abi::CONNECT, &[value(fd), peer, value(end.peer.len() as u64)]);
    set_repair_options(syscall_builder, fd, *family)?;
    // struct tcp_repair_window: snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup.
    let (theirs, own) = (other.window_bytes(), end.window_bytes());
    set_option(
        syscall_builder,
        fd,
        (IPPROTO_TCP, TCP_REPAIR_WINDOW),
        [receives, theirs, theirs, own, receives].as_bytes(),
    )
}

impl TcpEnd<'_> {
    /// Returns the size of the largest segment that this end sends, in bytes: the captured TCP_MAXSEG plus the
    /// timestamp option, or the maximum.
    fn segment_bytes(&self) -> u32 {
        const MSS_MAX: u32 = 32_767;
        const MSS_MIN: u32 = 88;
        const TIMESTAMP_OPTION_BYTES: u32 = 12;
        let is_it = |option: &&SocketOption| (option.level, option.name) == MAXSEG_OPTION;
        let known = self.socket.options.iter().find(is_it).and_then(|option| option.value.first_chunk());
        let bytes = known.map_or(MSS_MAX, |bytes| u32::from_ne_bytes(*bytes).saturating_add(TIMESTAMP_OPTION_BYTES));
        bytes.clamp(MSS_MIN, MSS_MAX)
    }

    fn received_bytes(&self) -> u32 {
        let bytes: usize = self.socket.received_messages.iter().map(|message| message.bytes.len()).sum();
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Returns the window that this end advertises, in bytes: all received data plus the initial window.
    fn window_bytes(&self) -> u32 {
        let wanted = self.received_bytes().saturating_add(WINDOW_BYTES);
        wanted.min(u32::from(u16::MAX) << WINDOW_SCALE).next_multiple_of(1 << WINDOW_SCALE)
    }
}

/// Sets the TCP options that both ends would negotiate over loopback, as four `struct tcp_repair_opt`.
fn set_repair_options(syscall_builder: &mut SyscallBuilder<'_>, fd: u32, family: u32) -> Result<(), RestoreError> {
    const TCPOPT_MSS: u32 = 2;
    const TCPOPT_WINDOW: u32 = 3;
    const TCPOPT_SACK_PERM: u32 = 4;
    const TCPOPT_TIMESTAMP: u32 = 8;
    // Loopback packets of 64 KiB minus their headers. An IPv4 packet has at most 65,535 bytes, with its header.
    let segment_bytes = if family == AF_INET6 { 65_476 } else { 65_495 };
    let scales = WINDOW_SCALE | WINDOW_SCALE << 16;
    let options = [TCPOPT_MSS, segment_bytes, TCPOPT_WINDOW, scales, TCPOPT_SACK_PERM, 0, TCPOPT_TIMESTAMP, 0];
    set_option(syscall_builder, fd, (IPPROTO_TCP, TCP_REPAIR_OPTIONS), options.as_bytes())
}
