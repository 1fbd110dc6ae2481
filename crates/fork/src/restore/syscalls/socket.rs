//! Sockets that the child creates in its own network and file system, and under its own credentials. So SO_PEERCRED
//! returns the child's credentials to a peer. The other modules of this directory create special cases.

use farfork_sys::socket_abi::{
    AF_INET6, AF_NETLINK, AF_UNIX, IP_FREEBIND, IP_TRANSPARENT, IPPROTO_TCP, IPV6_FREEBIND, SO_ATTACH_FILTER,
    SO_BINDTODEVICE, SO_LINGER, SO_SNDBUFFORCE, SOCK_STREAM, SOL_IP, SOL_IPV6, SOL_SOCKET, TCP_MAXSEG,
};
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Credentials, Socket, SocketMessage, SocketState};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::passed_objects::PassedObjects;
use super::super::plan_layout::STEP_SOCKET;
use super::ancillary_messages::{self, DeferredPair, has_ancillary_messages};
use super::open_files::{OpenFileBuilder, SocketOpenFile};
use super::socket_file::FileBoundSocket;
use super::{
    SyscallArgument, SyscallBuilder, abi, accept_queue, reuse_port, socket_file, tcp_connection, unix_datagram,
    unix_pair, value,
};

pub(super) const SOCK_CLOEXEC: u32 = OFlags::CLOEXEC.bits();

/// TCP_MAXSEG. It is not set for a connection, where it is the size that the two ends have negotiated.
pub(super) const MAXSEG_OPTION: (u32, u32) = (IPPROTO_TCP, TCP_MAXSEG);

pub(super) const MSG_DONTWAIT_NOSIGNAL: u32 = 0x40 | 0x4000;

/// The context in which sockets are created.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketContext<'a> {
    pub(super) objects: &'a PassedObjects,
    /// The child's credentials, if they differ from the stub's.
    pub(super) owner: Option<SocketOwner<'a>>,
}

/// The credentials with which a child runs.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct SocketOwner<'a> {
    pub(in super::super) credentials: &'a Credentials,
    /// Supplementary groups of the stub. They are set again after the calls with the owner's credentials.
    pub(in super::super) stub_groups: &'a [u32],
}

/// Creates all sockets. Listening sockets are first, because connections need them.
pub(super) fn create_sockets(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let mut late = Vec::new();
    for open_socket in SocketOpenFile::all(descriptor).filter(|one| !is_connection(one.socket)) {
        late.extend(create_unpaired_socket(open_file_builder, descriptor, open_socket, around)?);
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
    accept_queue::connect_unaccepted(open_file_builder, descriptor, around)?;
    socket_file::remove_unlinked_files(open_file_builder, descriptor)?;
    tcp_connection::create_tcp_connections(open_file_builder, descriptor)?;
    ancillary_messages::send_deferred(open_file_builder, around.objects, &late)
}

/// Creates a socket that is no end of a connection between sockets of the child. Returns the pair through which its messages
/// with ancillary data are sent later.
fn create_unpaired_socket<'a>(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    open_socket: SocketOpenFile<'a>,
    around: SocketContext<'_>,
) -> Result<Option<DeferredPair<'a>>, RestoreError> {
    let SocketOpenFile { index, socket } = open_socket;
    open_file_builder.set_step(STEP_SOCKET, index);
    let mut deferred = None;
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
            create_socket(open_file_builder.syscalls, socket)?;
            if shares_port {
                reuse_port::set_reuse_port(open_file_builder.syscalls, 0, true)?;
            }
            bind_socket(open_file_builder.syscalls, open_socket, around)?;
            run_as_owner(open_file_builder.syscalls, around.owner, |syscall_builder| {
                syscall_builder.call_expecting(0, abi::LISTEN, &[value(0_u32), value(*backlog)]);
                Ok(())
            })?;
        }
        _ if has_ancillary_messages(socket) => {
            let from = create_deferred_disconnected(open_file_builder, socket, around)?;
            let to = open_file_builder.next_slot_fd();
            deferred = Some(DeferredPair { index, ends: [(to, Some(socket)), (from, None)] });
        }
        _ => create_disconnected(open_file_builder.syscalls, socket, around)?,
    }
    set_nonblocking(open_file_builder.syscalls, 0, socket);
    open_file_builder.store_open_file(0, index);
    Ok(deferred)
}

/// Whether the socket is an end of a connection between sockets of the child, including unaccepted connections.
fn is_connection(socket: &Socket) -> bool {
    use SocketState::{PendingAccept, ShutDown, TcpPaired, UnixPaired};
    matches!(socket.state, UnixPaired { .. } | TcpPaired { .. } | ShutDown { .. } | PendingAccept { .. })
}

/// Creates a socket as descriptor 0, with its options, and binds and connects it.
fn create_idle_socket(
    syscall_builder: &mut SyscallBuilder<'_>,
    open_socket: SocketOpenFile<'_>,
    peer: &[u8],
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let socket = open_socket.socket;
    create_socket(syscall_builder, socket)?;
    bind_socket(syscall_builder, open_socket, around)?;
    if peer.is_empty() {
        return Ok(());
    }
    let (bytes, length) = (syscall_builder.bytes_argument(peer)?, peer.len() as u64);
    let connect = |syscall_builder: &mut SyscallBuilder<'_>| {
        syscall_builder.call_expecting(0, abi::CONNECT, &[value(0_u32), bytes, value(length)])
    };
    if matches!(socket.family, AF_UNIX | AF_NETLINK) {
        connect(syscall_builder);
    } else {
        connect_without_route(syscall_builder, socket, connect)?;
    }
    shutdown_socket(syscall_builder, 0, socket);
    Ok(())
}

/// Creates a socket as descriptor 0, with its options.
fn create_socket(syscall_builder: &mut SyscallBuilder<'_>, socket: &Socket) -> Result<(), RestoreError> {
    let kind = socket.kind | SOCK_CLOEXEC;
    syscall_builder.call_expecting(0, abi::SOCKET, &[value(socket.family), value(kind), value(socket.protocol)]);
    set_options(syscall_builder, 0, socket, |_| true)
}

/// Connects a socket to a peer to which the network may have no route. connect(2) uses the loopback interface, which
/// accepts any IPv4 destination, and any source address. Later packets are routed as usual, or refused (ENETUNREACH),
/// as on a machine that has lost its network.
fn connect_without_route(
    syscall_builder: &mut SyscallBuilder<'_>,
    socket: &Socket,
    connect: impl FnOnce(&mut SyscallBuilder<'_>),
) -> Result<(), RestoreError> {
    const BINDTODEVICE_OPTION: (u32, u32) = (SOL_SOCKET, SO_BINDTODEVICE);
    const TRANSPARENT_OPTION: (u32, u32) = (SOL_IP, IP_TRANSPARENT);
    let has = |name| socket.options.iter().any(|option| (option.level, option.name) == name);
    if has(BINDTODEVICE_OPTION) {
        connect(syscall_builder);
        return Ok(());
    }
    let set = |syscall_builder: &mut SyscallBuilder<'_>, (level, name): (u32, u32), value_of: &[u8]| {
        let (bytes, length) = (syscall_builder.bytes_argument(value_of)?, value(value_of.len() as u64));
        syscall_builder.call_expecting(0, abi::SETSOCKOPT, &[value(0_u32), value(level), value(name), bytes, length]);
        Ok::<(), RestoreError>(())
    };
    set(syscall_builder, TRANSPARENT_OPTION, &1_u32.to_ne_bytes())?;
    set(syscall_builder, BINDTODEVICE_OPTION, b"lo\0")?;
    connect(syscall_builder);
    set(syscall_builder, BINDTODEVICE_OPTION, b"\0")?;
    set(syscall_builder, TRANSPARENT_OPTION, &u32::from(has(TRANSPARENT_OPTION)).to_ne_bytes())
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
    let (level, free) = if socket.family == AF_INET6 { (SOL_IPV6, IPV6_FREEBIND) } else { (SOL_IP, IP_FREEBIND) };
    let (on, length) = (syscall_builder.bytes_argument(&1_u32.to_ne_bytes())?, value(4_u32));
    syscall_builder.call_expecting(0, abi::SETSOCKOPT, &[value(0_u32), value(level), value(free), on, length]);
    syscall_builder.call_expecting(0, abi::BIND, &bound);
    // Both names set one flag, which is captured under its IPv4 name.
    let before = socket.options.iter().any(|option| (option.level, option.name) == (SOL_IP, IP_FREEBIND));
    let word = syscall_builder.bytes_argument(&u32::from(before).to_ne_bytes())?;
    syscall_builder.call_expecting(0, abi::SETSOCKOPT, &[value(0_u32), value(level), value(free), word, length]);
    Ok(())
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
    let room = syscall_builder.bytes_argument(&i32::try_from(bytes).unwrap_or(i32::MAX / 2).to_ne_bytes())?;
    syscall_builder.call_expecting(
        0,
        abi::SETSOCKOPT,
        &[value(from), value(SOL_SOCKET), value(SO_SNDBUFFORCE), room, value(4_u32)],
    );
    Ok(())
}

/// Sends a byte from a socket whose connection was reset. The other end is then closed with this byte unread, which
/// resets the connection again.
pub(super) fn send_unread_byte(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    socket: &Socket,
) -> Result<(), RestoreError> {
    if socket.state == (SocketState::PeerOutside { is_reset: true }) {
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

/// Creates a socket, as descriptor 0, whose other end is closed.
fn create_disconnected(
    syscall_builder: &mut SyscallBuilder<'_>,
    socket: &Socket,
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    if socket.family != AF_UNIX {
        return create_reset(syscall_builder, socket);
    }
    run_as_owner(syscall_builder, around.owner, |syscall_builder| {
        unix_pair::create_pair(syscall_builder, socket, socket.kind | SOCK_CLOEXEC)
    })?;
    send_received(syscall_builder, 1, socket)?;
    send_unread_byte(syscall_builder, 0, socket)?;
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(1_u32)]);
    set_options(syscall_builder, 0, socket, |_| true)
}

/// As `create_disconnected`, but the other end must still send. So the other end is stored. Returns its descriptor.
fn create_deferred_disconnected(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    socket: &Socket,
    around: SocketContext<'_>,
) -> Result<u32, RestoreError> {
    run_as_owner(open_file_builder.syscalls, around.owner, |syscall_builder| {
        unix_pair::create_pair(syscall_builder, socket, socket.kind | SOCK_CLOEXEC)
    })?;
    Ok(open_file_builder.store_descriptor(1))
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
    let at_once = syscall_builder.words_argument(&[1])?;
    syscall_builder.call_expecting(
        0,
        abi::SETSOCKOPT,
        &[value(2_u32), value(SOL_SOCKET), value(SO_LINGER), at_once, value(8_u32)],
    );
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

/// Sets the options that `wanted` selects.
pub(super) fn set_options(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    socket: &Socket,
    wanted: impl Fn((u32, u32)) -> bool,
) -> Result<(), RestoreError> {
    let is_idle = matches!(socket.state, SocketState::Unconnected { .. } | SocketState::Listening { .. });
    let is_wanted = |option: (u32, u32)| wanted(option) && (is_idle || option != MAXSEG_OPTION);
    for option in socket.options.iter().filter(|option| is_wanted((option.level, option.name))) {
        let (bytes, length) = match (option.level, option.name) {
            (SOL_SOCKET, SO_ATTACH_FILTER) => encode_sock_fprog(syscall_builder, &option.value)?,
            _ => (syscall_builder.bytes_argument(&option.value)?, option.value.len() as u64),
        };
        let set = [value(fd), value(option.level), value(option.name), bytes, value(length)];
        syscall_builder.call_expecting(0, abi::SETSOCKOPT, &set);
    }
    Ok(())
}

/// Encodes `struct sock_fprog`: the number of instructions, and their address.
fn encode_sock_fprog(
    syscall_builder: &mut SyscallBuilder<'_>,
    instructions: &[u8],
) -> Result<(SyscallArgument, u64), RestoreError> {
    const INSTRUCTION_BYTES: usize = 8;
    const SOCK_FPROG_BYTES: u32 = 16;
    let count = (instructions.len() / INSTRUCTION_BYTES) as u64;
    let (instructions, program) =
        (syscall_builder.writer.write_bytes(instructions)?, syscall_builder.words_argument(&[count, 0])?);
    if let SyscallArgument::PlanOffset(program) = program {
        syscall_builder.writer.add_relocation(program + size_of::<u64>() as u32, instructions);
    }
    Ok((program, SOCK_FPROG_BYTES.into()))
}

pub(super) fn set_nonblocking(syscall_builder: &mut SyscallBuilder<'_>, fd: u32, socket: &Socket) {
    let nonblocking = OFlags::from_bits_retain(socket.flags) & OFlags::NONBLOCK;
    if !nonblocking.is_empty() {
        syscall_builder.call_expecting(0, abi::FCNTL, &[value(fd), value(abi::F_SETFL), value(nonblocking.bits())]);
    }
}

/// Makes calls with the child's credentials, because the kernel records the credentials of a connection's creator.
pub(super) fn run_as_owner<'w>(
    syscall_builder: &mut SyscallBuilder<'w>,
    owner: Option<SocketOwner<'_>>,
    calls: impl FnOnce(&mut SyscallBuilder<'w>) -> Result<(), RestoreError>,
) -> Result<(), RestoreError> {
    const ID_UNCHANGED: u32 = u32::MAX;
    const ROOT: u32 = 0;
    let Some(SocketOwner { credentials: owner, stub_groups: groups_before }) = owner else {
        return calls(syscall_builder);
    };
    let become_one = |syscall_builder: &mut SyscallBuilder<'w>, call: u32, id: u32| {
        syscall_builder.call_expecting(0, call, &[value(ID_UNCHANGED), value(id), value(ID_UNCHANGED)]);
    };
    set_groups(syscall_builder, &owner.groups)?;
    become_one(syscall_builder, abi::SETRESGID, owner.gids[1]);
    become_one(syscall_builder, abi::SETRESUID, owner.uids[1]);
    calls(syscall_builder)?;
    become_one(syscall_builder, abi::SETRESUID, ROOT);
    become_one(syscall_builder, abi::SETRESGID, ROOT);
    set_groups(syscall_builder, groups_before)
}

/// Sets the supplementary groups of the calling thread.
fn set_groups(syscall_builder: &mut SyscallBuilder<'_>, groups: &[u32]) -> Result<(), RestoreError> {
    let bytes: Vec<u8> = groups.iter().flat_map(|group| group.to_ne_bytes()).collect();
    let list = syscall_builder.bytes_argument(&bytes)?;
    syscall_builder.call_expecting(0, abi::SETGROUPS, &[value(groups.len() as u64), list]);
    Ok(())
}
