//! Listening sockets that came by one port together (SO_REUSEPORT) and have the option no more: each has it while all of them are made.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket, SocketState};

use super::super::RestoreError;
use super::super::layout::STEP_SOCKET;
use super::files::Bench;
use super::{Script, number, value};

const SOL_SOCKET: u32 = 1;
const SO_REUSEPORT: u32 = 15;

/// Whether a listening socket needs the option to be bound, and does not have it.
pub(super) fn needs_option(descriptor: &Descriptor, (index, socket): (u32, &Socket)) -> bool {
    let has_option = socket.options.iter().any(|option| (option.level, option.name) == (SOL_SOCKET, SO_REUSEPORT));
    let Some(port) = socket.bound_to().map(|address| address.port()).filter(|_| !has_option) else { return false };
    listening(descriptor)
        .any(|(other, socket)| other != index && socket.bound_to().is_some_and(|address| address.port() == port))
}

/// Of descriptor `fd`.
pub(super) fn set_option(script: &mut Script<'_>, fd: u32, is_on: bool) -> Result<(), RestoreError> {
    let word = script.bytes(&u32::from(is_on).to_ne_bytes())?;
    let set = [value(fd), value(SOL_SOCKET), value(SO_REUSEPORT), word, value(4_u32)];
    script.gives(0, number::SETSOCKOPT, &set);
    Ok(())
}

/// All are bound.
pub(super) fn take_options(bench: &mut Bench<'_, '_>, descriptor: &Descriptor) -> Result<(), RestoreError> {
    for (index, socket) in listening(descriptor) {
        if needs_option(descriptor, (index, socket)) {
            bench.about(STEP_SOCKET, index);
            let place = bench.place_of(index).ok_or(RestoreError::NotMade { number: bench.number_of(index) })?;
            set_option(bench.script, place, false)?;
        }
    }
    Ok(())
}

fn listening(descriptor: &Descriptor) -> impl Iterator<Item = (u32, &Socket)> {
    descriptor.open_files.iter().zip(0..).filter_map(|(file, index)| match file {
        OpenFile::Socket(socket) if matches!(socket.state, SocketState::Listening { .. }) => Some((index, socket)),
        _ => None,
    })
}
