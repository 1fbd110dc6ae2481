//! The two ends of a Unix connection between sockets of the child, with the data in transit. `socket` creates them after all
//! other Unix sockets, because a connection may need its listening socket.

use std::borrow::Cow;

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket, SocketState};

use super::super::RestoreError;
use super::super::plan_layout::STEP_SOCKET;
use super::ancillary_messages::{DeferredPair, has_ancillary_messages};
use super::open_files::{OpenFileBuilder, SocketOpenFile};
use super::socket::{
    SOCK_CLOEXEC, SocketContext, bind_socket, run_as_creator, send_received, set_nonblocking, shutdown_socket,
};
use super::socket_options::set_options;
use super::{SyscallBuilder, abi, socket_file, stream_memory, value};

/// Creates the two ends of a Unix connection. Returns the pair through which their messages with ancillary data are sent
/// later.
pub(super) fn create_unix_pair<'a>(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    ends: [SocketOpenFile<'a>; 2],
    through: &[u8],
    around: SocketContext<'_>,
) -> Result<Option<DeferredPair<'a>>, RestoreError> {
    let [SocketOpenFile { index, socket }, SocketOpenFile { index: other_index, socket: other }] = ends;
    open_file_builder.set_step(STEP_SOCKET, index);
    let sent_memory = |index| around.attributes(index).map_or(0, |attributes| attributes.sent_memory_bytes);
    let socket = &stream_memory::split_unread_data(socket, other, sent_memory(other_index))?;
    let other = &stream_memory::split_unread_data(other, socket, sent_memory(index))?;
    connect_pair(open_file_builder, descriptor, ends, through, around)?;
    let sends_later = has_ancillary_messages(socket) || has_ancillary_messages(other);
    if !sends_later {
        for (from, to) in [(1, socket), (0, other)] {
            send_received(open_file_builder.syscalls, from, to)?;
        }
        for (fd, socket) in [(0, socket), (1, other)] {
            shutdown_socket(open_file_builder.syscalls, fd, socket);
        }
    }
    for (fd, socket) in [(0, socket), (1, other)] {
        if !sends_later {
            set_options(open_file_builder.syscalls, fd, socket, |_| true)?;
        }
        set_nonblocking(open_file_builder.syscalls, fd, socket);
    }
    if through.is_empty() {
        bind_socket(open_file_builder.syscalls, ends[0], around)?;
    }
    open_file_builder.store_open_file(0, index);
    if other.bind_address().is_empty() {
        open_file_builder.store_open_file(1, other_index);
    } else {
        open_file_builder.syscalls.call_expecting(0, abi::DUP3, &[value(1_u32), value(0_u32), value(SOCK_CLOEXEC)]);
        open_file_builder.syscalls.call_expecting(0, abi::CLOSE, &[value(1_u32)]);
        bind_socket(open_file_builder.syscalls, ends[1], around)?;
        open_file_builder.store_open_file(0, other_index);
    }
    let places = (open_file_builder.slot_fd(index), open_file_builder.slot_fd(other_index));
    Ok(match (sends_later, places) {
        (true, (Some(one), Some(two))) => {
            let ends = [(one, socket), (two, other)].map(|(fd, end)| (fd, Some(Cow::Owned(end.clone()))));
            Some(DeferredPair { index, ends })
        }
        _ => None,
    })
}

/// Creates both ends of a connection, as descriptors 0 and 1.
fn connect_pair(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    ends: [SocketOpenFile<'_>; 2],
    through: &[u8],
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let [open_socket @ SocketOpenFile { index, socket }, SocketOpenFile { index: other_index, .. }] = ends;
    let kind = socket.kind | SOCK_CLOEXEC;
    let listener = find_listener(open_file_builder, descriptor, socket.kind, through);
    let through = socket_file::resolve_socket_address(descriptor, socket.kind, through);
    if let Some(listener) = listener {
        // The accepted end shows the credentials of the process that has connected.
        let creator = around.creator(other_index);
        run_as_creator(open_file_builder.syscalls, creator, |syscall_builder| {
            syscall_builder.call_expecting(
                0,
                abi::SOCKET,
                &[value(socket.family), value(kind), value(socket.protocol)],
            );
            Ok(())
        })?;
        // Bind with the stub's credentials: the child may not own the socket's file.
        bind_socket(open_file_builder.syscalls, open_socket, around)?;
        run_as_creator(open_file_builder.syscalls, creator, |syscall_builder| {
            connect_through(syscall_builder, 0, &through, listener)
        })
    } else {
        run_as_creator(open_file_builder.syscalls, around.creator(index), |syscall_builder| {
            create_pair(syscall_builder, socket, kind)
        })
    }
}

/// Connects descriptor `client`, which is 0 or 1, to the address of a listening socket. The accepted socket is the other one.
pub(super) fn connect_through(
    syscall_builder: &mut SyscallBuilder<'_>,
    client: u32,
    address: &[u8],
    listener: u32,
) -> Result<(), RestoreError> {
    let accept = [value(listener), value(0_u32), value(0_u32), value(SOCK_CLOEXEC)];
    let bytes = syscall_builder.bytes_argument(address)?;
    syscall_builder.call_expecting(0, abi::CONNECT, &[value(client), bytes, value(address.len() as u64)]);
    syscall_builder.call_expecting(u64::from(1 - client), abi::ACCEPT4, &accept);
    Ok(())
}

/// Creates two connected Unix sockets of the kind of `socket`, as descriptors 0 and 1.
pub(super) fn create_pair(
    syscall_builder: &mut SyscallBuilder<'_>,
    socket: &Socket,
    kind: u32,
) -> Result<(), RestoreError> {
    let ends = syscall_builder.words_argument(&[0])?;
    syscall_builder.call_expecting(
        0,
        abi::SOCKETPAIR,
        &[value(socket.family), value(kind), value(socket.protocol), ends],
    );
    Ok(())
}

/// The slot descriptor of a listening socket.
pub(super) fn find_listener(
    open_file_builder: &OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    wanted: u32,
    through: &[u8],
) -> Option<u32> {
    let is_it = |file: &OpenFile| matches!(file, OpenFile::Socket(Socket { kind, state: SocketState::Listening { address, .. }, .. }) if *kind == wanted && address == through);
    let index = descriptor.open_files.iter().position(is_it).filter(|_| !through.is_empty())?;
    open_file_builder.slot_fd(index as u32)
}
