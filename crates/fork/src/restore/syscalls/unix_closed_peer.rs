//! Unix sockets whose other end is closed in a child. Both ends get their names, which getsockname(2), getpeername(2) and
//! recvmsg(2) return, as far as nothing else in the child's network and file system has them.

use std::borrow::Cow;

use farfork_sys::socket_abi::{AF_UNIX, SOCK_DGRAM};
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Socket, SocketState, is_chosen_unix_name};

use super::super::RestoreError;
use super::super::plan_layout::STEP_SOCKET;
use super::ancillary_messages::{DeferredPair, has_ancillary_messages};
use super::open_files::{OpenFileBuilder, SocketOpenFile};
use super::socket::{SOCK_CLOEXEC, SocketContext, run_as_creator, send_received, send_unread_byte, set_nonblocking};
use super::socket_options::set_options;
use super::{SyscallArgument, abi, socket_file, unix_pair, value};

/// Creates the sockets whose connection leads through a listening socket of the child (`through_listeners`), or all others.
/// Returns the pairs through which messages with ancillary data are sent later.
pub(super) fn create_sockets<'a>(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &'a Descriptor,
    through_listeners: bool,
    around: SocketContext<'_>,
) -> Result<Vec<DeferredPair<'a>>, RestoreError> {
    let mut deferred = Vec::new();
    for open_socket @ SocketOpenFile { index, socket } in SocketOpenFile::all(descriptor) {
        let [address, peer]: [&[u8]; 2] = match &socket.state {
            _ if socket.family != AF_UNIX => continue,
            SocketState::UnixPeerOutside { address, peer, .. } => [address, peer],
            SocketState::PeerOutside { .. } => [&[], &[]],
            _ => continue,
        };
        let listener = |name: &[u8]| unix_pair::find_listener(open_file_builder, descriptor, socket.kind, name);
        let (own_listener, peers_listener) = (listener(address), listener(peer));
        let has_listener = own_listener.is_some() || peers_listener.is_some();
        if has_listener != through_listeners {
            continue;
        }
        open_file_builder.set_step(STEP_SOCKET, index);
        let ends = ClosedPeerEnds { open_socket, own_name: address, peers_name: peer };
        match (own_listener, peers_listener) {
            (Some(listener), _) => ends.accept(open_file_builder, descriptor, listener, around)?,
            (None, Some(listener)) => ends.connect(open_file_builder, descriptor, listener, around)?,
            (None, None) => ends.pair(open_file_builder, around)?,
        }
        deferred.extend(ends.close_other(open_file_builder)?);
    }
    Ok(deferred)
}

/// A socket, to be descriptor 0, and its temporary other end, to be descriptor 1.
#[derive(Debug, Clone, Copy)]
struct ClosedPeerEnds<'a> {
    open_socket: SocketOpenFile<'a>,
    own_name: &'a [u8],
    peers_name: &'a [u8],
}

impl<'a> ClosedPeerEnds<'a> {
    /// Connects the other end to the socket's listener, and accepts the socket.
    fn accept(
        self,
        open_file_builder: &mut OpenFileBuilder<'_, '_>,
        descriptor: &Descriptor,
        listener: u32,
        around: SocketContext<'_>,
    ) -> Result<(), RestoreError> {
        let SocketOpenFile { index, socket } = self.open_socket;
        let creator = around.creator(index);
        let syscalls = &mut *open_file_builder.syscalls;
        run_as_creator(syscalls, creator, |syscalls| {
            syscalls.call_expecting(0, abi::SOCKET, &new_socket(socket));
            syscalls.call_expecting(1, abi::DUP3, &[value(0_u32), value(1_u32), value(SOCK_CLOEXEC)]);
            syscalls.call_expecting(0, abi::CLOSE, &[value(0_u32)]);
            Ok(())
        })?;
        socket_file::bind_name(syscalls, 1, self.peers_name, around.objects)?;
        let through = socket_file::resolve_socket_address(descriptor, socket.kind, self.own_name);
        run_as_creator(syscalls, creator, |syscalls| unix_pair::connect_through(syscalls, 1, &through, listener))
    }

    /// Connects the socket to the listener of the other end, and accepts the other end.
    fn connect(
        self,
        open_file_builder: &mut OpenFileBuilder<'_, '_>,
        descriptor: &Descriptor,
        listener: u32,
        around: SocketContext<'_>,
    ) -> Result<(), RestoreError> {
        let socket = self.open_socket.socket;
        let syscalls = &mut *open_file_builder.syscalls;
        syscalls.call_expecting(0, abi::SOCKET, &new_socket(socket));
        socket_file::bind_name(syscalls, 0, self.own_name, around.objects)?;
        let through = socket_file::resolve_socket_address(descriptor, socket.kind, self.peers_name);
        unix_pair::connect_through(syscalls, 0, &through, listener)
    }

    /// Creates the two ends without a listener.
    fn pair(
        self,
        open_file_builder: &mut OpenFileBuilder<'_, '_>,
        around: SocketContext<'_>,
    ) -> Result<(), RestoreError> {
        let SocketOpenFile { index, socket } = self.open_socket;
        let syscalls = &mut *open_file_builder.syscalls;
        run_as_creator(syscalls, around.creator(index), |syscalls| {
            unix_pair::create_pair(syscalls, socket, socket.kind | SOCK_CLOEXEC)
        })?;
        if self.may_bind_own_name() {
            socket_file::bind_name(syscalls, 0, self.own_name, around.objects)?;
        }
        socket_file::bind_name(syscalls, 1, self.peers_name, around.objects)
    }

    /// Whether the socket is bound to its own name. An accepted socket has the abstract name of its listener. When the listener
    /// is closed, the program may bind another socket to that name, so the name must stay free. A socket whose peer has no
    /// name was probably accepted: most clients have none.
    fn may_bind_own_name(&self) -> bool {
        let is_path = self.own_name.get(2).is_some_and(|byte| *byte != 0);
        let is_datagram = self.open_socket.socket.kind == SOCK_DGRAM;
        is_path || is_datagram || !self.peers_name.is_empty() || is_chosen_unix_name(self.own_name)
    }

    /// Sends the received data from the other end, and closes it. Messages with ancillary data are sent later.
    fn close_other(
        self,
        open_file_builder: &mut OpenFileBuilder<'_, '_>,
    ) -> Result<Option<DeferredPair<'a>>, RestoreError> {
        let SocketOpenFile { index, socket } = self.open_socket;
        let mut deferred = None;
        if has_ancillary_messages(socket) {
            let from = open_file_builder.store_descriptor(1);
            let to = open_file_builder.next_slot_fd();
            deferred = Some(DeferredPair { index, ends: [(to, Some(Cow::Borrowed(socket))), (from, None)] });
        } else {
            send_received(open_file_builder.syscalls, 1, socket)?;
            send_unread_byte(open_file_builder.syscalls, 0, socket)?;
            open_file_builder.syscalls.call_expecting(0, abi::CLOSE, &[value(1_u32)]);
            set_options(open_file_builder.syscalls, 0, socket, |_| true)?;
        }
        set_nonblocking(open_file_builder.syscalls, 0, socket);
        open_file_builder.store_open_file(0, index);
        Ok(deferred)
    }
}

/// The arguments of socket(2).
fn new_socket(socket: &Socket) -> [SyscallArgument; 3] {
    [value(socket.family), value(socket.kind | SOCK_CLOEXEC), value(socket.protocol)]
}
