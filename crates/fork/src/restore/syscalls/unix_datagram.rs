//! Connects Unix datagram sockets that send to another socket of the child. Runs when all sockets are bound.

use farfork_sys::socket_abi::AF_UNIX;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket, SocketState};

use super::super::RestoreError;
use super::super::plan_layout::STEP_SOCKET;
use super::open_files::OpenFileBuilder;
use super::{abi, socket, socket_file, value};

/// A socket that is not connected yet.
struct DatagramSender<'a> {
    index: u32,
    socket: &'a Socket,
    peer: &'a [u8],
}

/// Connects each socket after the sockets that send to it: connect(2) refuses a peer that is connected to a third
/// socket.
pub(super) fn connect_datagram_sockets(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
) -> Result<(), RestoreError> {
    let mut left: Vec<DatagramSender<'_>> = unconnected_senders(descriptor).collect();
    while !left.is_empty() {
        let is_awaited = |one: &DatagramSender<'_>| {
            left.iter().any(|other| other.index != one.index && other.peer == one.socket.bind_address())
        };
        // If the rest sends to each other in a cycle, begin with any of them.
        let next = left.iter().position(|one| !is_awaited(one)).unwrap_or(0);
        let DatagramSender { index, socket, peer } = left.swap_remove(next);
        open_file_builder.set_step(STEP_SOCKET, index);
        let place = open_file_builder
            .slot_fd(index)
            .ok_or(RestoreError::UnsupportedOpenFile { number: open_file_builder.first_fd(index) })?;
        let peer = socket_file::resolve_socket_address(descriptor, socket.kind, peer);
        let bytes = open_file_builder.syscalls.bytes_argument(&peer)?;
        open_file_builder.syscalls.call_expecting(0, abi::CONNECT, &[value(place), bytes, value(peer.len() as u64)]);
        socket::shutdown_socket(open_file_builder.syscalls, place, socket);
    }
    Ok(())
}

fn unconnected_senders(descriptor: &Descriptor) -> impl Iterator<Item = DatagramSender<'_>> {
    descriptor.open_files.iter().zip(0..).filter_map(|(file, index)| match file {
        OpenFile::Socket(socket) if socket.family == AF_UNIX => match &socket.state {
            SocketState::Unconnected { peer, .. } if !peer.is_empty() => Some(DatagramSender { index, socket, peer }),
            _ => None,
        },
        _ => None,
    })
}
