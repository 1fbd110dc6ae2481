//! Connections that wait to be accepted by a listening socket of the child: it connects again, and does not accept.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket, SocketState};

use super::super::RestoreError;
use super::super::layout::STEP_SOCKET;
use super::files::Bench;
use super::socket::{self, SOCK_CLOEXEC, Surroundings, UNIX, as_owner};
use super::{number, socket_file, value};

const TCP: u32 = 6;
const TCP_REPAIR: u32 = 19;

/// In service again.
const REPAIRED: u32 = 0;

/// All of them, in the order in which they wait: behind those that were accepted.
pub(super) fn make(
    bench: &mut Bench<'_, '_>,
    descriptor: &Descriptor,
    around: Surroundings<'_>,
) -> Result<(), RestoreError> {
    let mut waiting = Vec::new();
    for (index, file) in descriptor.open_files.iter().enumerate() {
        if let OpenFile::Socket(socket) = file
            && let SocketState::Waiting { through, turn, .. } = &socket.state
        {
            waiting.push((*turn, index as u32, socket, through.as_slice()));
        }
    }
    waiting.sort_by_key(|(turn, index, ..)| (*turn, *index));
    for (_, index, socket, through) in waiting {
        bench.about(STEP_SOCKET, index);
        let through = socket_file::reached(descriptor, socket.kind, through);
        connect(bench, (index, socket), &through, around)?;
        socket::shut_down(bench.script, 0, socket);
        socket::set_modes(bench.script, 0, socket);
        bench.put_aside(0, index);
    }
    Ok(())
}

/// As descriptor 0.
fn connect(
    bench: &mut Bench<'_, '_>,
    (index, socket): (u32, &Socket),
    through: &[u8],
    around: Surroundings<'_>,
) -> Result<(), RestoreError> {
    let Socket { family, kind, protocol, .. } = socket;
    let born = [value(*family), value(kind | SOCK_CLOEXEC), value(*protocol)];
    let owner = around.owner.filter(|_| *family == UNIX);
    as_owner(bench.script, owner, |script| {
        script.gives(0, number::SOCKET, &born);
        Ok(())
    })?;
    socket::set_options(bench.script, 0, socket, |_| true)?;
    if *family == UNIX {
        socket::bind(bench.script, (index, socket), around)?;
    } else {
        bind_again(bench.script, socket.bound())?;
    }
    as_owner(bench.script, owner, |script| {
        let to = script.bytes(through)?;
        script.gives(0, number::CONNECT, &[value(0_u32), to, value(through.len() as u64)]);
        Ok(())
    })
}

/// Of the loopback; also where another connection has the port.
fn bind_again(script: &mut super::Script<'_>, address: &[u8]) -> Result<(), RestoreError> {
    let own = script.bytes(address)?;
    for (word, is_bound) in [(1_u32, false), (REPAIRED, true)] {
        if is_bound {
            script.gives(0, number::BIND, &[value(0_u32), own, value(address.len() as u64)]);
        }
        let at = script.bytes(&word.to_ne_bytes())?;
        script.gives(0, number::SETSOCKOPT, &[value(0_u32), value(TCP), value(TCP_REPAIR), at, value(4_u32)]);
    }
    Ok(())
}
