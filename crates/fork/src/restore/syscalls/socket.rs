//! Sockets that the child creates in its own network and file system, and under the credentials that their creator had, which
//! SO_PEERCRED returns. The other modules of this directory create special cases.

use farfork_sys::socket_abi::{
    AF_INET6, AF_NETLINK, AF_UNIX, IP_FREEBIND, IP_TRANSPARENT, IPV6_FREEBIND, LINGER_OF_RESET, SO_BINDTODEVICE,
    SO_LINGER, SO_SNDBUFFORCE, SOCK_STREAM, SOL_IP, SOL_IPV6, SOL_SOCKET,
};
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{
    Credentials, FileStatus, OpenFileAttributes, PeerCredentials, Socket, SocketMessage, SocketState,
};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::passed_objects::PassedObjects;
use super::super::plan_layout::STEP_SOCKET;
use super::ancillary_messages;
use super::open_files::{OpenFileBuilder, SocketOpenFile};
use super::socket_file::FileBoundSocket;
use super::socket_options::{set_option, set_options, set_u32_option};
use super::{
    SyscallBuilder, abi, accept_queue, disconnected_tcp, refused_connection, reuse_port, socket_file, tcp_connection,
    unix_closed_peer, unix_datagram, unix_pair, value,
};

pub(super) const SOCK_CLOEXEC: u32 = OFlags::CLOEXEC.bits();

pub(super) const MSG_DONTWAIT_NOSIGNAL: u32 = 0x40 | 0x4000;

/// The context in which sockets are created.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketContext<'a> {
    pub(super) descriptor: &'a Descriptor,
    pub(super) objects: &'a PassedObjects,
    pub(super) creators: SocketCreators<'a>,
}

/// The credentials under which a child creates its sockets.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct SocketCreators<'a> {
    /// The credentials with which the child runs. They create connections whose creator is unknown.
    pub(in super::super) child: &'a PeerCredentials,
    /// The credentials of the stub. They are set again after calls under other credentials.
    pub(in super::super) stub: &'a PeerCredentials,
}

/// The part of credentials that SO_PEERCRED and SO_PEERGROUPS show.
pub(in super::super) fn peer_credentials(credentials: &Credentials) -> PeerCredentials {
    let [uid, gid] = [credentials.uids[1], credentials.gids[1]];
    PeerCredentials { uid, gid, groups: credentials.groups.clone() }
}

/// A creator of sockets whose credentials differ from the stub's.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketCreator<'a> {
    credentials: &'a PeerCredentials,
    stub: &'a PeerCredentials,
}

impl<'a> SocketContext<'a> {
    /// The creator of the connection whose SO_PEERCRED the open file shows, or, if the connection waits to be accepted, its
    /// accepted end; `None` for the stub.
    pub(super) fn creator(&self, open_file: u32) -> Option<SocketCreator<'a>> {
        let SocketCreators { child, stub } = self.creators;
        let credentials = self.attributes(open_file).and_then(|attributes| attributes.peer.as_ref()).unwrap_or(child);
        (credentials != stub).then_some(SocketCreator { credentials, stub })
    }

    pub(super) fn attributes(&self, open_file: u32) -> Option<&'a OpenFileAttributes> {
        self.descriptor.attributes_of_file(open_file)
    }

    fn is_refused(&self, open_file: u32) -> bool {
        self.attributes(open_file).is_some_and(|attributes| attributes.is_refused)
    }
}

/// Creates all sockets. Listening sockets are first, because connections need them.
pub(super) fn create_sockets(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let mut late = Vec::new();
    for open_socket in SocketOpenFile::all(descriptor).filter(|one| !is_connection(one.socket)) {
        create_unpaired_socket(open_file_builder, descriptor, open_socket, around)?;
    }
    reuse_port::clear_reuse_port(open_file_builder, descriptor)?;
    unix_datagram::connect_datagram_sockets(open_file_builder, descriptor)?;
    for open_socket @ SocketOpenFile { index, socket } in SocketOpenFile::all(descriptor) {
        let SocketState::UnixPaired { pair, end: 0, through, .. } = &socket.state else { continue };
        let is_other = |other: &Socket| matches!(other.state, SocketState::UnixPaired { pair: theirs, end: 1, .. } if theirs == *pair);
        let other_end = SocketOpenFile::all(descriptor)
            .find(|one| is_other(one.socket))
            .ok_or(RestoreError::UnsupportedOpenFile { number: open_file_builder.first_fd(index) })?;
        late.extend(unix_pair::create_unix_pair(
            open_file_builder,
            descriptor,
            [open_socket, other_end],
            through,
            around,
        )?);
    }
    late.extend(unix_closed_peer::create_sockets(open_file_builder, descriptor, true, around)?);
    accept_queue::connect_unaccepted(open_file_builder, descriptor, around)?;
    late.extend(unix_closed_peer::create_sockets(open_file_builder, descriptor, false, around)?);
    socket_file::remove_unlinked_files(open_file_builder, descriptor)?;
    tcp_connection::create_tcp_connections(open_file_builder, descriptor)?;
    ancillary_messages::send_deferred(open_file_builder, around.objects, &late)?;
    set_inode_status(open_file_builder, descriptor, around);
    Ok(())
}

/// Sets the mode and the owner of the inode of each socket.
fn set_inode_status(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    around: SocketContext<'_>,
) {
    const NEW_MODE: u32 = 0o777;
    let roots = FileStatus { mode: NEW_MODE, uid: 0, gid: 0 };
    for SocketOpenFile { index, .. } in SocketOpenFile::all(descriptor) {
        let status = around.attributes(index).and_then(|attributes| attributes.status);
        // Some calls under the child's credentials create sockets, too.
        let is_roots = status.is_none() && around.creator(index).is_none();
        let Some(fd) = open_file_builder.slot_fd(index).filter(|_| !is_roots) else { continue };
        let FileStatus { mode, uid, gid } = status.unwrap_or(roots);
        open_file_builder.set_step(STEP_SOCKET, index);
        open_file_builder.syscalls.call_expecting(0, abi::FCHOWN, &[value(fd), value(uid), value(gid)]);
        if mode != NEW_MODE {
            open_file_builder.syscalls.call_expecting(0, abi::FCHMOD, &[value(fd), value(mode)]);
        }
    }
}

/// Creates a socket that is no end of a connection between sockets of the child.
fn create_unpaired_socket(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    open_socket: SocketOpenFile<'_>,
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let SocketOpenFile { index, socket } = open_socket;
    open_file_builder.set_step(STEP_SOCKET, index);
    match &socket.state {
        // Connected later (`unix_datagram`): its peer may not exist yet.
        SocketState::Unconnected { peer, .. } if socket.family == AF_UNIX => {
            create_idle_socket(open_file_builder.syscalls, open_socket, &[], around)?;
            if peer.is_empty() {
                shutdown_socket(open_file_builder.syscalls, 0, socket);
            }
        }
        SocketState::Unconnected { peer, .. } => {
            create_idle_socket(open_file_builder.syscalls, open_socket, peer, around)?
        }
        SocketState::Listening { backlog, .. } => {
            let shares_port = reuse_port::needs_reuse_port(descriptor, open_socket);
            create_socket(open_file_builder.syscalls, open_socket, around)?;
            if shares_port {
                reuse_port::set_reuse_port(open_file_builder.syscalls, 0, true)?;
            }
            bind_socket(open_file_builder.syscalls, open_socket, around)?;
            run_as_creator(open_file_builder.syscalls, around.creator(index), |syscall_builder| {
                syscall_builder.call_expecting(0, abi::LISTEN, &[value(0_u32), value(*backlog)]);
                Ok(())
            })?;
        }
        SocketState::Disconnected { shown_port, is_reset, .. } => {
            let syscalls = &mut *open_file_builder.syscalls;
            disconnected_tcp::create_disconnected_tcp(syscalls, open_socket, *shown_port, *is_reset, around)?;
        }
        _ if around.is_refused(index) => refused_connection::create_refused(open_file_builder.syscalls, socket)?,
        _ => create_reset(open_file_builder.syscalls, socket)?,
    }
    set_nonblocking(open_file_builder.syscalls, 0, socket);
    open_file_builder.store_open_file(0, index);
    Ok(())
}

/// Whether the socket needs another socket of the child, or a temporary other end that has sent data.
fn is_connection(socket: &Socket) -> bool {
    use SocketState::{PeerOutside, PendingAccept, ShutDown, TcpPaired, UnixPaired, UnixPeerOutside};
    match socket.state {
        UnixPaired { .. } | TcpPaired { .. } | ShutDown { .. } | PendingAccept { .. } => true,
        UnixPeerOutside { .. } => true,
        PeerOutside { .. } => socket.family == AF_UNIX || tcp_connection::is_reset_with_data(socket),
        _ => false,
    }
}

/// Creates a socket as descriptor 0, with its options, and binds and connects it.
fn create_idle_socket(
    syscall_builder: &mut SyscallBuilder<'_>,
    open_socket: SocketOpenFile<'_>,
    peer: &[u8],
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let socket = open_socket.socket;
    create_socket(syscall_builder, open_socket, around)?;
    bind_socket(syscall_builder, open_socket, around)?;
    if peer.is_empty() {
        return Ok(());
    }
    let (bytes, length) = (syscall_builder.bytes_argument(peer)?, peer.len() as u64);
    let connect = |syscall_builder: &mut SyscallBuilder<'_>| {
        syscall_builder.call_expecting(0, abi::CONNECT, &[value(0_u32), bytes, value(length)]);
        Ok(())
    };
    if matches!(socket.family, AF_UNIX | AF_NETLINK) {
        connect(syscall_builder)?;
    } else {
        connect_without_route(syscall_builder, socket, connect)?;
    }
    shutdown_socket(syscall_builder, 0, socket);
    Ok(())
}

/// Creates a socket as descriptor 0, with its options.
fn create_socket(
    syscall_builder: &mut SyscallBuilder<'_>,
    SocketOpenFile { index, socket }: SocketOpenFile<'_>,
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let kind = socket.kind | SOCK_CLOEXEC;
    syscall_builder.call_expecting(0, abi::SOCKET, &[value(socket.family), value(kind), value(socket.protocol)]);
    if around.is_refused(index) {
        refused_connection::refuse_datagram(syscall_builder, socket.family)?;
    }
    set_options(syscall_builder, 0, socket, |_| true)
}

/// Connects a socket to a peer to which the network may have no route. connect(2) uses the loopback interface, which
/// accepts any IPv4 destination, and any source address. Later packets are routed as usual, or refused (ENETUNREACH),
/// as on a machine that has lost its network.
pub(super) fn connect_without_route(
    syscall_builder: &mut SyscallBuilder<'_>,
    socket: &Socket,
    connect: impl FnOnce(&mut SyscallBuilder<'_>) -> Result<(), RestoreError>,
) -> Result<(), RestoreError> {
    const BINDTODEVICE_OPTION: (u32, u32) = (SOL_SOCKET, SO_BINDTODEVICE);
    const TRANSPARENT_OPTION: (u32, u32) = (SOL_IP, IP_TRANSPARENT);
    let has = |name| socket.options.iter().any(|option| (option.level, option.name) == name);
    if has(BINDTODEVICE_OPTION) {
        return connect(syscall_builder);
    }
    set_u32_option(syscall_builder, 0, TRANSPARENT_OPTION, 1)?;
    set_option(syscall_builder, 0, BINDTODEVICE_OPTION, b"lo\0")?;
    connect(syscall_builder)?;
    set_option(syscall_builder, 0, BINDTODEVICE_OPTION, b"\0")?;
    set_u32_option(syscall_builder, 0, TRANSPARENT_OPTION, has(TRANSPARENT_OPTION).into())
}

/// Binds a socket to its address, if it has one.
pub(super) fn bind_socket(
    syscall_builder: &mut SyscallBuilder<'_>,
    open_socket: SocketOpenFile<'_>,
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let socket = open_socket.socket;
    let address = socket.bind_address();
    if address.is_empty() {
        return Ok(());
    }
    let (bytes, length) = (syscall_builder.bytes_argument(address)?, address.len() as u64);
    let bound = [value(0_u32), bytes, value(length)];
    if let Some(bound_socket) = FileBoundSocket::new(open_socket) {
        return socket_file::bind_socket_file(syscall_builder, &bound_socket, &bound, around.objects);
    }
    if matches!(socket.family, AF_UNIX | AF_NETLINK) {
        syscall_builder.call_expecting(0, abi::BIND, &bound);
        return Ok(());
    }
    // The child's network may lack the parent's address: bind it nevertheless (IP_FREEBIND).
    let freebind = if socket.family == AF_INET6 { (SOL_IPV6, IPV6_FREEBIND) } else { (SOL_IP, IP_FREEBIND) };
    set_u32_option(syscall_builder, 0, freebind, 1)?;
    syscall_builder.call_expecting(0, abi::BIND, &bound);
    // Both names set one flag, which is captured under its IPv4 name.
    let before = socket.options.iter().any(|option| (option.level, option.name) == (SOL_IP, IP_FREEBIND));
    set_u32_option(syscall_builder, 0, freebind, before.into())
}

/// Sends the data that `to` had received. `from` is the descriptor of the other end.
pub(super) fn send_received(
    syscall_builder: &mut SyscallBuilder<'_>,
    from: u32,
    to: &Socket,
) -> Result<(), RestoreError> {
    grow_send_buffer(syscall_builder, from, to)?;
    for SocketMessage { bytes: message, .. } in &to.received_messages {
        let (bytes, length) = (syscall_builder.bytes_argument(message)?, message.len() as u64);
        syscall_builder.call_expecting(
            length,
            abi::SENDTO,
            &[value(from), bytes, value(length), value(MSG_DONTWAIT_NOSIGNAL)],
        );
    }
    Ok(())
}

/// Makes the sender's buffer large enough for the data that `to` had received. The final buffer size is set later.
pub(super) fn grow_send_buffer(
    syscall_builder: &mut SyscallBuilder<'_>,
    from: u32,
    to: &Socket,
) -> Result<(), RestoreError> {
    /// Buffer space of a message in addition to its bytes.
    const MESSAGE_OVERHEAD_BYTES: usize = 2048;
    if to.received_messages.is_empty() {
        return Ok(());
    }
    let bytes: usize = to.received_messages.iter().map(|message| message.bytes.len() + MESSAGE_OVERHEAD_BYTES).sum();
    let room = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    set_u32_option(syscall_builder, from, (SOL_SOCKET, SO_SNDBUFFORCE), room.cast_unsigned())
}

/// Sends a byte from a socket whose connection was reset. The other end is then closed with this byte unread, which
/// resets the connection again.
pub(super) fn send_unread_byte(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    socket: &Socket,
) -> Result<(), RestoreError> {
    use SocketState::{PeerOutside, UnixPeerOutside};
    if matches!(socket.state, PeerOutside { is_reset: true } | UnixPeerOutside { is_reset: true, .. }) {
        let byte = syscall_builder.bytes_argument(&[0])?;
        syscall_builder.call_expecting(1, abi::SENDTO, &[value(fd), byte, value(1_u32), value(MSG_DONTWAIT_NOSIGNAL)]);
    }
    Ok(())
}

pub(super) fn shutdown_socket(syscall_builder: &mut SyscallBuilder<'_>, fd: u32, socket: &Socket) {
    // The argument of shutdown(2) is the kernel's flags minus 1.
    if let Some(how @ 0..=2) = socket.shutdown_flags.checked_sub(1) {
        syscall_builder.call_expecting(0, abi::SHUTDOWN, &[value(fd), value(how)]);
    }
}

/// Creates a TCP connection over loopback whose other end closes it with RST (SO_LINGER of 0 s).
fn create_reset(syscall_builder: &mut SyscallBuilder<'_>, socket: &Socket) -> Result<(), RestoreError> {
    let loopback = loopback_address(socket.family);
    let (length, kind) = (loopback.len() as u64, SOCK_STREAM | SOCK_CLOEXEC);
    let (address, length_word) =
        (syscall_builder.bytes_argument(&loopback)?, syscall_builder.words_argument(&[length])?);
    syscall_builder.call_expecting(0, abi::SOCKET, &[value(socket.family), value(kind), value(0_u32)]);
    set_options(syscall_builder, 0, socket, |_| true)?;
    syscall_builder.call_expecting(1, abi::SOCKET, &[value(socket.family), value(kind), value(0_u32)]);
    syscall_builder.call_expecting(0, abi::BIND, &[value(1_u32), address, value(length)]);
    syscall_builder.call_expecting(0, abi::LISTEN, &[value(1_u32), value(1_u32)]);
    // Get the listener's port, which connect(2) needs.
    syscall_builder.call_expecting(0, abi::GETSOCKNAME, &[value(1_u32), address, length_word]);
    syscall_builder.call_expecting(0, abi::CONNECT, &[value(0_u32), address, value(length)]);
    syscall_builder.call_expecting(2, abi::ACCEPT4, &[value(1_u32), value(0_u32), value(0_u32), value(SOCK_CLOEXEC)]);
    set_option(syscall_builder, 2, (SOL_SOCKET, SO_LINGER), &LINGER_OF_RESET)?;
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(2_u32)]);
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(1_u32)]);
    Ok(())
}

/// Returns the address of the loopback interface, with port 0.
pub(super) fn loopback_address(family: u32) -> Vec<u8> {
    let mut address = vec![0; if family == AF_INET6 { 28 } else { 16 }];
    address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    if family == AF_INET6 {
        address[23] = 1;
    } else {
        address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    }
    address
}

pub(super) fn set_nonblocking(syscall_builder: &mut SyscallBuilder<'_>, fd: u32, socket: &Socket) {
    let nonblocking = OFlags::from_bits_retain(socket.flags) & OFlags::NONBLOCK;
    if !nonblocking.is_empty() {
        syscall_builder.call_expecting(0, abi::FCNTL, &[value(fd), value(abi::F_SETFL), value(nonblocking.bits())]);
    }
}

/// Makes calls under the credentials of a creator, because the kernel records the credentials of a connection's creator.
pub(super) fn run_as_creator<'w>(
    syscall_builder: &mut SyscallBuilder<'w>,
    creator: Option<SocketCreator<'_>>,
    calls: impl FnOnce(&mut SyscallBuilder<'w>) -> Result<(), RestoreError>,
) -> Result<(), RestoreError> {
    const ID_UNCHANGED: u32 = u32::MAX;
    let Some(SocketCreator { credentials, stub }) = creator else {
        return calls(syscall_builder);
    };
    let become_one = |syscall_builder: &mut SyscallBuilder<'w>, call: u32, id: u32| {
        syscall_builder.call_expecting(0, call, &[value(ID_UNCHANGED), value(id), value(ID_UNCHANGED)]);
    };
    set_groups(syscall_builder, &credentials.groups)?;
    become_one(syscall_builder, abi::SETRESGID, credentials.gid);
    become_one(syscall_builder, abi::SETRESUID, credentials.uid);
    // Files are accessed as the stub: the creator may since have lost the access to a socket's path.
    syscall_builder.call_may_fail(abi::SETFSUID, &[value(stub.uid)]);
    calls(syscall_builder)?;
    become_one(syscall_builder, abi::SETRESUID, stub.uid);
    become_one(syscall_builder, abi::SETRESGID, stub.gid);
    set_groups(syscall_builder, &stub.groups)
}

/// Sets the supplementary groups of the calling thread.
fn set_groups(syscall_builder: &mut SyscallBuilder<'_>, groups: &[u32]) -> Result<(), RestoreError> {
    let bytes: Vec<u8> = groups.iter().flat_map(|group| group.to_ne_bytes()).collect();
    let list = syscall_builder.bytes_argument(&bytes)?;
    syscall_builder.call_expecting(0, abi::SETGROUPS, &[value(groups.len() as u64), list]);
    Ok(())
}
