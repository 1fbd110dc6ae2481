//! Files of Unix sockets. bind(2) makes each where the socket's name says, which getsockname(2) then tells; from there it is
//! renamed to where it was when the process was captured, as by the program. Something else may have its first name by now.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket, SocketFile, SocketState};

use super::super::RestoreError;
use super::super::layout::STEP_SOCKET;
use super::super::objects::Objects;
use super::files::Bench;
use super::{Argument, Script, number, value};

/// AT_FDCWD.
const HERE: Argument = Argument::Value((-100_i32).cast_unsigned() as u64);
const RENAME_NOREPLACE: Argument = Argument::Value(1);

/// Binds descriptor 0, the socket of open file `index`, by the arguments `bound`.
pub(super) fn bind(
    script: &mut Script<'_>,
    (index, path, file): (u32, &[u8], &SocketFile),
    bound: &[Argument],
    objects: &Objects,
) -> Result<(), RestoreError> {
    let name = str::from_utf8(path).map_err(|error| RestoreError::Path { path: error.to_string() })?;
    let place = place_of(index, name, file);
    for path in [name, &place] {
        if !path.starts_with('/') || !objects.is_private(path) {
            return Err(RestoreError::SharedSocket { path: path.to_owned() });
        }
    }
    let (at, to) = (script.text(name)?, script.text(&place)?);
    if place == name {
        // As the parent's; in the child's layer it is another.
        script.may_fail(number::UNLINK, &[at]);
        script.gives(0, number::BIND, bound);
    } else {
        let aside = script.text(&beside(name, "aside"))?;
        script.may_fail(number::RENAME, &[at, aside]);
        script.gives(0, number::BIND, bound);
        script.gives(0, number::RENAME, &[at, to]);
        // Where the two are one place by way of a link, the new one has it.
        script.may_fail(number::RENAMEAT2, &[HERE, aside, HERE, at, RENAME_NOREPLACE]);
        script.may_fail(number::UNLINK, &[aside]);
    }
    script.gives(0, number::CHOWN, &[to, value(file.status.uid), value(file.status.gid)]);
    script.gives(0, number::CHMOD, &[to, value(file.status.mode)]);
    Ok(())
}

/// Where a socket of this kind and address is reached, while sockets are made: by its file, wherever that is.
pub(super) fn reached(descriptor: &Descriptor, kind: u32, address: &[u8]) -> Vec<u8> {
    let is_it = |socket: &Socket| socket.kind == kind && socket.bound() == address;
    let found = || files(descriptor).filter(|(_, socket, ..)| is_it(socket));
    let listens = |socket: &Socket| matches!(socket.state, SocketState::Listening { .. });
    let Some((index, _, name, file)) = found().find(|(_, socket, ..)| listens(socket)).or_else(|| found().next())
    else {
        return address.to_vec();
    };
    let place = place_of(index, &String::from_utf8_lossy(name), file);
    if place.as_bytes() == name { address.to_vec() } else { [&address[..2], place.as_bytes()].concat() }
}

/// Takes files away that the parent had removed, when all that goes through them is connected.
pub(super) fn remove(bench: &mut Bench<'_, '_>, descriptor: &Descriptor) -> Result<(), RestoreError> {
    for (index, _, name, file) in files(descriptor).filter(|(.., file)| file.path.is_none()) {
        bench.about(STEP_SOCKET, index);
        let place = bench.script.text(&place_of(index, &String::from_utf8_lossy(name), file))?;
        bench.script.gives(0, number::UNLINK, &[place]);
    }
    Ok(())
}

/// Sockets that have files: by which open file, with what name, and with which.
fn files(descriptor: &Descriptor) -> impl Iterator<Item = (u32, &Socket, &[u8], &SocketFile)> {
    descriptor.open_files.iter().zip(0..).filter_map(|(file, index)| match file {
        OpenFile::Socket(socket) => Some((index, socket, socket.bound_path()?, socket.file.as_ref()?)),
        _ => None,
    })
}

/// Where a file stands while sockets are made: where it was, or out of everybody's way if it was removed.
fn place_of(index: u32, name: &str, file: &SocketFile) -> String {
    file.path.clone().unwrap_or_else(|| beside(name, &index.to_string()))
}

/// In the same directory, so that it can be renamed.
fn beside(name: &str, what: &str) -> String {
    let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
    format!("{directory}/.farfork-{what}")
}
