//! Unix datagram sockets that send to one of the process's own: connected when all of them are bound.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket, SocketState};

use super::super::RestoreError;
use super::super::layout::STEP_SOCKET;
use super::files::Bench;
use super::socket::UNIX;
use super::{number, socket, socket_file, value};

/// A socket that is still to be connected.
struct Sender<'a> {
    index: u32,
    socket: &'a Socket,
    peer: &'a [u8],
}

/// The kernel lets nobody connect to a socket that is connected with a third: whom others send to comes behind these.
pub(super) fn connect_all(bench: &mut Bench<'_, '_>, descriptor: &Descriptor) -> Result<(), RestoreError> {
    let mut left: Vec<Sender<'_>> = senders(descriptor).collect();
    while !left.is_empty() {
        let is_awaited =
            |one: &Sender<'_>| left.iter().any(|other| other.index != one.index && other.peer == one.socket.bound());
        // Two may send to each other.
        let next = left.iter().position(|one| !is_awaited(one)).unwrap_or(0);
        let Sender { index, socket, peer } = left.swap_remove(next);
        bench.about(STEP_SOCKET, index);
        let place = bench.place_of(index).ok_or(RestoreError::NotMade { number: bench.number_of(index) })?;
        let peer = socket_file::reached(descriptor, socket.kind, peer);
        let bytes = bench.script.bytes(&peer)?;
        bench.script.gives(0, number::CONNECT, &[value(place), bytes, value(peer.len() as u64)]);
        socket::shut_down(bench.script, place, socket);
    }
    Ok(())
}

fn senders(descriptor: &Descriptor) -> impl Iterator<Item = Sender<'_>> {
    descriptor.open_files.iter().zip(0..).filter_map(|(file, index)| match file {
        OpenFile::Socket(socket) if socket.family == UNIX => match &socket.state {
            SocketState::Idle { peer, .. } if !peer.is_empty() => Some(Sender { index, socket, peer }),
            _ => None,
        },
        _ => None,
    })
}
