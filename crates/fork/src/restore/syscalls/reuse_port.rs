//! Listening sockets that were bound to one port with SO_REUSEPORT and no longer have the option. Each socket has the
//! option until all of them are bound.

use farfork_sys::socket_abi::{SO_REUSEPORT, SOL_SOCKET};
use farfork_wire::Descriptor;
use farfork_wire::descriptor::SocketState;

use super::super::RestoreError;
use super::super::plan_layout::STEP_SOCKET;
use super::SyscallBuilder;
use super::open_files::{OpenFileBuilder, SocketOpenFile};
use super::socket_options::set_u32_option;

/// Whether a listening socket needs SO_REUSEPORT to be bound, but did not have the option at capture.
pub(super) fn needs_reuse_port(descriptor: &Descriptor, open_socket: SocketOpenFile<'_>) -> bool {
    let SocketOpenFile { index, socket } = open_socket;
    let has_option = socket.options.iter().any(|option| (option.level, option.name) == (SOL_SOCKET, SO_REUSEPORT));
    let Some(port) = socket.internet_bind_address().map(|address| address.port()).filter(|_| !has_option) else {
        return false;
    };
    listening_sockets(descriptor).any(|other| {
        other.index != index && other.socket.internet_bind_address().is_some_and(|address| address.port() == port)
    })
}

/// Sets or clears SO_REUSEPORT of descriptor `fd`.
pub(super) fn set_reuse_port(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    is_on: bool,
) -> Result<(), RestoreError> {
    set_u32_option(syscall_builder, fd, (SOL_SOCKET, SO_REUSEPORT), is_on.into())
}

/// Clears SO_REUSEPORT again, when all sockets are bound.
pub(super) fn clear_reuse_port(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
) -> Result<(), RestoreError> {
    for open_socket in listening_sockets(descriptor) {
        let index = open_socket.index;
        if needs_reuse_port(descriptor, open_socket) {
            open_file_builder.set_step(STEP_SOCKET, index);
            let place = open_file_builder
                .slot_fd(index)
                .ok_or(RestoreError::UnsupportedOpenFile { number: open_file_builder.first_fd(index) })?;
            set_reuse_port(open_file_builder.syscalls, place, false)?;
        }
    }
    Ok(())
}

fn listening_sockets(descriptor: &Descriptor) -> impl Iterator<Item = SocketOpenFile<'_>> {
    SocketOpenFile::all(descriptor).filter(|one| matches!(one.socket.state, SocketState::Listening { .. }))
}
