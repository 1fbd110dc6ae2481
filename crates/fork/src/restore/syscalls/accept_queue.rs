//! Restores connections in the accept queue of a child's listening socket: connects them again, under the credentials of
//! the process that had connected them, and leaves them unaccepted.

use farfork_sys::socket_abi::{AF_UNIX, IPPROTO_TCP, TCP_REPAIR};
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Socket, SocketState};

use super::super::RestoreError;
use super::super::plan_layout::STEP_SOCKET;
use super::open_files::{OpenFileBuilder, SocketOpenFile};
use super::socket::{self, SOCK_CLOEXEC, SocketContext, run_as_creator};
use super::{abi, socket_file, socket_options, value};

/// Ends the repair mode of a socket.
const TCP_REPAIR_OFF: u32 = 0;

/// Connects the unaccepted connections in the order of the queue. Runs after the accepted connections are restored.
pub(super) fn connect_unaccepted(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let mut waiting = Vec::new();
    for open_socket in SocketOpenFile::all(descriptor) {
        if let SocketState::PendingAccept { through, turn, .. } = &open_socket.socket.state {
            waiting.push((*turn, open_socket, through.as_slice()));
        }
    }
    waiting.sort_by_key(|(turn, open_socket, _)| (*turn, open_socket.index));
    for (_, open_socket, through) in waiting {
        let SocketOpenFile { index, socket } = open_socket;
        open_file_builder.set_step(STEP_SOCKET, index);
        let through = socket_file::resolve_socket_address(descriptor, socket.kind, through);
        connect_one(open_file_builder, open_socket, &through, around)?;
        socket::shutdown_socket(open_file_builder.syscalls, 0, socket);
        socket::set_nonblocking(open_file_builder.syscalls, 0, socket);
        open_file_builder.store_open_file(0, index);
    }
    Ok(())
}

/// Connects one unaccepted connection, as descriptor 0.
fn connect_one(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    open_socket: SocketOpenFile<'_>,
    through: &[u8],
    around: SocketContext<'_>,
) -> Result<(), RestoreError> {
    let SocketOpenFile { index, socket } = open_socket;
    let Socket { family, kind, protocol, .. } = socket;
    let socket_arguments = [value(*family), value(kind | SOCK_CLOEXEC), value(*protocol)];
    let creator = around.creator(index).filter(|_| *family == AF_UNIX);
    run_as_creator(open_file_builder.syscalls, creator, |syscall_builder| {
        syscall_builder.call_expecting(0, abi::SOCKET, &socket_arguments);
        Ok(())
    })?;
    socket_options::set_options(open_file_builder.syscalls, 0, socket, |_| true)?;
    if *family == AF_UNIX {
        socket::bind_socket(open_file_builder.syscalls, open_socket, around)?;
    } else {
        bind_in_repair(open_file_builder.syscalls, socket.bind_address())?;
    }
    run_as_creator(open_file_builder.syscalls, creator, |syscall_builder| {
        let to = syscall_builder.bytes_argument(through)?;
        syscall_builder.call_expecting(0, abi::CONNECT, &[value(0_u32), to, value(through.len() as u64)]);
        Ok(())
    })
}

/// Binds to a loopback address in repair mode, which works even if another connection uses the port.
fn bind_in_repair(syscall_builder: &mut super::SyscallBuilder<'_>, address: &[u8]) -> Result<(), RestoreError> {
    let own = syscall_builder.bytes_argument(address)?;
    for (word, is_bound) in [(1_u32, false), (TCP_REPAIR_OFF, true)] {
        if is_bound {
            syscall_builder.call_expecting(0, abi::BIND, &[value(0_u32), own, value(address.len() as u64)]);
        }
        socket_options::set_u32_option(syscall_builder, 0, (IPPROTO_TCP, TCP_REPAIR), word)?;
    }
    Ok(())
}
