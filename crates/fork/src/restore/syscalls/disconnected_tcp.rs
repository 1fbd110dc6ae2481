//! TCP sockets whose connections the process has ended by connect(2) with AF_UNSPEC. The child's socket is connected once more,
//! without a packet on the network (TCP_REPAIR), and ended in the same way.

use farfork_sys::socket_abi::{
    AF_INET6, IP_LOCAL_PORT_RANGE, IPPROTO_TCP, SO_ERROR, SOL_IP, SOL_SOCKET, TCP_REPAIR, TCP_REPAIR_WINDOW,
};
use farfork_wire::descriptor::{Socket, parse_internet_address};
use zerocopy::IntoBytes;

use super::super::RestoreError;
use super::open_files::SocketOpenFile;
use super::socket::{SOCK_CLOEXEC, SocketContext, bind_socket, connect_without_route, loopback_address};
use super::socket_options::{set_options, set_u32_option};
use super::tcp_connection::{TCP_REPAIR_OFF_NO_WP, with_port};
use super::{SyscallBuilder, abi, value};

/// Creates the socket as descriptor 0. `shown_port` is the port that getsockname(2) shows even if the socket is unbound.
pub(super) fn create_disconnected_tcp(
    syscall_builder: &mut SyscallBuilder<'_>,
    open_socket: SocketOpenFile<'_>,
    shown_port: u16,
    is_reset: bool,
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    const AF_UNSPEC_ADDRESS: [u8; 16] = [0; 16];
    let socket = open_socket.socket;
    let new = [value(socket.family), value(socket.kind | SOCK_CLOEXEC), value(socket.protocol)];
    syscall_builder.call_expecting(0, abi::SOCKET, &new);
    let is_bound = socket.internet_bind_address().is_some();
    if is_bound {
        bind_socket(syscall_builder, open_socket, around)?;
    }
    set_u32_option(syscall_builder, 0, (IPPROTO_TCP, TCP_REPAIR), 1)?;
    // The kernel chooses the only port of the range. If another socket of the child has it, any other port will do.
    let only_port = u32::from(shown_port) << 16 | u32::from(shown_port);
    for range in [only_port, 0].into_iter().filter(|_| !is_bound) {
        set_port_range(syscall_builder, range)?;
        if !socket.bind_address().is_empty() {
            let (own, length) = (syscall_builder.bytes_argument(socket.bind_address())?, socket.bind_address().len());
            syscall_builder.call_may_fail(abi::BIND, &[value(0_u32), own, value(length as u64)]);
        }
        connect(syscall_builder, socket)?;
    }
    connect_without_route(syscall_builder, socket, |syscall_builder| connect(syscall_builder, socket))?;
    set_peer_window(syscall_builder, socket.family)?;
    set_u32_option(syscall_builder, 0, (IPPROTO_TCP, TCP_REPAIR), TCP_REPAIR_OFF_NO_WP)?;
    let (unspecified, length) = (syscall_builder.bytes_argument(&AF_UNSPEC_ADDRESS)?, AF_UNSPEC_ADDRESS.len() as u64);
    syscall_builder.call_expecting(0, abi::CONNECT, &[value(0_u32), unspecified, value(length)]);
    if !is_reset {
        // Reading the error removes it.
        let (error, length) = (syscall_builder.words_argument(&[0])?, syscall_builder.words_argument(&[4])?);
        let read = [value(0_u32), value(SOL_SOCKET), value(SO_ERROR), error, length];
        syscall_builder.call_expecting(0, abi::GETSOCKOPT, &read);
    }
    set_options(syscall_builder, 0, socket, |_| true)
}

/// Connects descriptor 0 to the loopback interface. Fails if it is connected already.
fn connect(syscall_builder: &mut SyscallBuilder<'_>, socket: &Socket) -> Result<(), RestoreError> {
    /// Any port: nothing is sent to it before the connection ends.
    const PEER_PORT: u16 = 9;
    const IPV4_OFFSET: usize = 20;
    let mut peer = with_port(&loopback_address(socket.family), PEER_PORT);
    // An IPv6 socket with an IPv4 address reaches only IPv4 addresses.
    let own = parse_internet_address(socket.bind_address());
    if own.is_some_and(|own| own.is_ipv4()) && peer.len() > IPV4_OFFSET + 4 {
        peer[IPV4_OFFSET - 2..IPV4_OFFSET + 4].copy_from_slice(&[255, 255, 127, 0, 0, 1]);
    }
    let (bytes, length) = (syscall_builder.bytes_argument(&peer)?, value(peer.len() as u64));
    syscall_builder.call_may_fail(abi::CONNECT, &[value(0_u32), bytes, length]);
    Ok(())
}

/// Sets the window of the peer as on a connection over the loopback. SIOCOUTQ and TCP_INFO show it later. By this window, a
/// capture of the child detects that the socket was connected.
fn set_peer_window(syscall_builder: &mut SyscallBuilder<'_>, family: u32) -> Result<(), RestoreError> {
    let peers = if family == AF_INET6 { 65_464 } else { 65_483 };
    let (own, last) = (peers, 0);
    // struct tcp_repair_window: snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup.
    let window: [u32; 5] = [last, peers, peers, own, last];
    let bytes = syscall_builder.bytes_argument(window.as_bytes())?;
    let set = [value(0_u32), value(IPPROTO_TCP), value(TCP_REPAIR_WINDOW), bytes, value(size_of_val(&window) as u64)];
    syscall_builder.call_may_fail(abi::SETSOCKOPT, &set);
    Ok(())
}

/// Sets the ports from which connect(2) chooses (since Linux 6.3): the lowest in the low 16 bits, the highest in the others.
fn set_port_range(syscall_builder: &mut SyscallBuilder<'_>, range: u32) -> Result<(), RestoreError> {
    let bytes = syscall_builder.bytes_argument(&range.to_ne_bytes())?;
    let set = [value(0_u32), value(SOL_IP), value(IP_LOCAL_PORT_RANGE), bytes, value(4_u32)];
    syscall_builder.call_may_fail(abi::SETSOCKOPT, &set);
    Ok(())
}
