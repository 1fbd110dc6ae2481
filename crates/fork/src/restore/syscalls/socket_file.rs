//! Files of Unix sockets. bind(2) creates each at the socket's name, which getsockname(2) then returns. If the program
//! had renamed the file, it is then renamed to its path at capture: the socket's name may now be another file's.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Socket, SocketFile, SocketState, parse_unix_path};

use super::super::RestoreError;
use super::super::passed_objects::PassedObjects;
use super::super::plan_layout::STEP_SOCKET;
use super::open_files::{OpenFileBuilder, SocketOpenFile};
use super::{SyscallArgument, SyscallBuilder, abi, value};

const AT_FDCWD: SyscallArgument = SyscallArgument::Value((-100_i32).cast_unsigned() as u64);
const RENAME_NOREPLACE: SyscallArgument = SyscallArgument::Value(1);

/// A socket with a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileBoundSocket<'a> {
    open_socket: SocketOpenFile<'a>,
    /// The path to which the socket is bound.
    name: &'a [u8],
    /// The file at capture.
    file: &'a SocketFile,
}

impl<'a> FileBoundSocket<'a> {
    /// Returns the socket; `None` if it has no file.
    pub(super) fn new(open_socket: SocketOpenFile<'a>) -> Option<Self> {
        let SocketOpenFile { socket, .. } = open_socket;
        Some(Self { open_socket, name: socket.bind_path()?, file: socket.file.as_ref()? })
    }

    /// Returns the path of the file during the restore: its path at capture, or a temporary path if the parent had
    /// removed the file.
    fn current_path(&self) -> String {
        let temporary = || sibling_path(&String::from_utf8_lossy(self.name), &self.open_socket.index.to_string());
        self.file.path.clone().unwrap_or_else(temporary)
    }
}

/// Binds descriptor 0, a socket with a file, by bind(2) with the arguments `bound`.
pub(super) fn bind_socket_file(
    syscall_builder: &mut SyscallBuilder<'_>,
    bound_socket: &FileBoundSocket<'_>,
    bound: &[SyscallArgument],
    objects: &PassedObjects,
) -> Result<(), RestoreError> {
    let FileBoundSocket { name, file, .. } = *bound_socket;
    let name = str::from_utf8(name).map_err(|error| RestoreError::InvalidPath { path: error.to_string() })?;
    let place = bound_socket.current_path();
    for path in [name, &place] {
        if !path.starts_with('/') || !objects.is_private_path(path) {
            return Err(RestoreError::SharedSocketPath { path: path.to_owned() });
        }
    }
    let (at, to) = (syscall_builder.text_argument(name)?, syscall_builder.text_argument(&place)?);
    if place == name {
        // Remove the parent's file, if it exists. This affects only the child's layer.
        syscall_builder.call_may_fail(abi::UNLINK, &[at]);
        syscall_builder.call_expecting(0, abi::BIND, bound);
    } else {
        let aside = syscall_builder.text_argument(&sibling_path(name, "aside"))?;
        syscall_builder.call_may_fail(abi::RENAME, &[at, aside]);
        syscall_builder.call_expecting(0, abi::BIND, bound);
        syscall_builder.call_expecting(0, abi::RENAME, &[at, to]);
        // Put back the other file with the socket's name. RENAME_NOREPLACE: if a link makes both paths the same, the
        // new file stays.
        syscall_builder.call_may_fail(abi::RENAMEAT2, &[AT_FDCWD, aside, AT_FDCWD, at, RENAME_NOREPLACE]);
        syscall_builder.call_may_fail(abi::UNLINK, &[aside]);
    }
    syscall_builder.call_expecting(0, abi::CHOWN, &[to, value(file.status.uid), value(file.status.gid)]);
    syscall_builder.call_expecting(0, abi::CHMOD, &[to, value(file.status.mode)]);
    Ok(())
}

/// Binds descriptor `fd` to a name only to show it. The file of a path is removed, and a file that now has the path is kept. The
/// socket has no name if another socket has it, or if the path is shared with other processes.
pub(super) fn bind_name(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    address: &[u8],
    objects: &PassedObjects,
) -> Result<(), RestoreError> {
    if address.is_empty() {
        return Ok(());
    }
    let (bytes, length) = (syscall_builder.bytes_argument(address)?, address.len() as u64);
    let bound = [value(fd), bytes, value(length)];
    let Some(name) = parse_unix_path(address) else {
        syscall_builder.call_may_fail(abi::BIND, &bound);
        return Ok(());
    };
    let Ok(name) = str::from_utf8(name) else { return Ok(()) };
    if !name.starts_with('/') || !objects.is_private_path(name) {
        return Ok(());
    }
    let (at, aside) =
        (syscall_builder.text_argument(name)?, syscall_builder.text_argument(&sibling_path(name, "aside"))?);
    syscall_builder.call_may_fail(abi::RENAME, &[at, aside]);
    syscall_builder.call_may_fail(abi::BIND, &bound);
    syscall_builder.call_may_fail(abi::UNLINK, &[at]);
    syscall_builder.call_may_fail(abi::RENAME, &[aside, at]);
    Ok(())
}

/// Returns the address during the restore of a socket that was bound to `address`: the current path of its file, if it
/// has one.
pub(super) fn resolve_socket_address(descriptor: &Descriptor, kind: u32, address: &[u8]) -> Vec<u8> {
    let is_it = |socket: &Socket| socket.kind == kind && socket.bind_address() == address;
    let found = || file_bound_sockets(descriptor).filter(|one| is_it(one.open_socket.socket));
    let listens = |one: &FileBoundSocket<'_>| matches!(one.open_socket.socket.state, SocketState::Listening { .. });
    let Some(bound_socket) = found().find(listens).or_else(|| found().next()) else {
        return address.to_vec();
    };
    let place = bound_socket.current_path();
    if place.as_bytes() == bound_socket.name { address.to_vec() } else { [&address[..2], place.as_bytes()].concat() }
}

/// Removes the files that the parent had removed. Runs when all connections through them exist.
pub(super) fn remove_unlinked_files(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
) -> Result<(), RestoreError> {
    for bound_socket in file_bound_sockets(descriptor).filter(|one| one.file.path.is_none()) {
        open_file_builder.set_step(STEP_SOCKET, bound_socket.open_socket.index);
        let place = open_file_builder.syscalls.text_argument(&bound_socket.current_path())?;
        open_file_builder.syscalls.call_expecting(0, abi::UNLINK, &[place]);
    }
    Ok(())
}

fn file_bound_sockets(descriptor: &Descriptor) -> impl Iterator<Item = FileBoundSocket<'_>> {
    SocketOpenFile::all(descriptor).filter_map(FileBoundSocket::new)
}

/// Returns a path in the same directory, so that the file can be renamed.
fn sibling_path(name: &str, what: &str) -> String {
    let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
    format!("{directory}/.farfork-{what}")
}
