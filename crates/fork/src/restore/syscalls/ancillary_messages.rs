//! Socket messages with open files or with sender credentials (sendmsg(2)). They are sent when every object that a
//! message can hold exists, sockets included. If a socket has such a message, all its messages are sent at that time,
//! in order.

use std::borrow::Cow;

use farfork_sys::socket_abi::SOL_SOCKET;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{MessageSender, OpenFile, SharedObjectKind, Socket, SocketMessage};
use zerocopy::IntoBytes;

use super::super::RestoreError;
use super::super::file_descriptors::reopen_flags;
use super::super::passed_objects::PassedObjects;
use super::super::plan_layout::STEP_SOCKET;
use super::open_files::OpenFileBuilder;
use super::socket::{self, MSG_DONTWAIT_NOSIGNAL};
use super::{abi, socket_options, value};

const SCM_RIGHTS: u32 = 1;
const SCM_CREDENTIALS: u32 = 2;

/// Size of `struct cmsghdr`, and the alignment of its data.
const CMSGHDR_BYTES: usize = 16;
const CMSG_ALIGNMENT: usize = 8;

/// Two connected ends, and the messages that are still to be sent between them.
#[derive(Debug)]
pub(super) struct DeferredPair<'a> {
    /// Index of the open file, for error reports.
    pub(super) index: u32,
    /// The ends: each a descriptor and its socket; `None` for a temporary end that is closed after it has sent.
    pub(super) ends: [(u32, Option<Cow<'a, Socket>>); 2],
}

/// Whether a socket's messages must wait until all other objects exist.
pub(super) fn has_ancillary_messages(socket: &Socket) -> bool {
    socket.received_messages.iter().any(|message| !message.files.is_empty() || message.sender.is_some())
}

/// Opens the files with a path that are in a socket's messages (SCM_RIGHTS). Other modules create the other objects.
pub(super) fn open_passed_files(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
) -> Result<(), RestoreError> {
    let sockets = descriptor.open_files.iter().filter_map(|file| match file {
        OpenFile::Socket(socket) => Some(socket),
        _ => None,
    });
    let mut wanted: Vec<u32> =
        sockets.flat_map(|socket| &socket.received_messages).flat_map(|one| &one.files).copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    for index in wanted {
        let (path, flags, offset) = match &descriptor.open_files[index as usize] {
            OpenFile::Regular { path, flags, offset } | OpenFile::Directory { path, flags, offset } => {
                (path, *flags, *offset)
            }
            OpenFile::Device { path, flags } => (path, *flags, 0),
            OpenFile::MemFd { object, flags, offset } => match &descriptor.shared_objects[*object as usize].kind {
                SharedObjectKind::PosixShm { path, .. } => (path, *flags, *offset),
                _ => continue,
            },
            _ => continue,
        };
        open_file_builder.set_step(STEP_SOCKET, index);
        let path = open_file_builder.syscalls.text_argument(path)?;
        open_file_builder.syscalls.call_expecting(0, abi::OPEN, &[path, value(reopen_flags(flags)), value(0_u32)]);
        if offset != 0 {
            open_file_builder.syscalls.call_expecting(offset, abi::LSEEK, &[value(0_u32), value(offset), value(0_u32)]);
        }
        open_file_builder.store_open_file(0, index);
    }
    Ok(())
}

/// Sends the deferred messages. Socket options are set afterwards, because they include the buffer sizes.
pub(super) fn send_deferred(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    objects: &PassedObjects,
    late: &[DeferredPair<'_>],
) -> Result<(), RestoreError> {
    for DeferredPair { index, ends: [one, other] } in late {
        open_file_builder.set_step(STEP_SOCKET, *index);
        for ((from, _), (_, to)) in [(other, one), (one, other)] {
            let Some(to) = to else { continue };
            socket::grow_send_buffer(open_file_builder.syscalls, *from, to)?;
            to.received_messages
                .iter()
                .try_for_each(|message| send_message(open_file_builder, objects, *from, message))?;
        }
        let known = || [one, other].into_iter().filter_map(|(fd, socket)| Some((*fd, socket.as_deref()?)));
        known().try_for_each(|(fd, socket)| socket::send_unread_byte(open_file_builder.syscalls, fd, socket))?;
        known().for_each(|(fd, socket)| socket::shutdown_socket(open_file_builder.syscalls, fd, socket));
        for (fd, socket) in [one, other] {
            match socket {
                Some(socket) => socket_options::set_options(open_file_builder.syscalls, *fd, socket, |_| true)?,
                None => open_file_builder.syscalls.call_expecting(0, abi::CLOSE, &[value(*fd)]),
            }
        }
    }
    Ok(())
}

/// Sends one message with a `struct msghdr`: no name, one buffer, the control data, no flags.
fn send_message(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    objects: &PassedObjects,
    from: u32,
    message: &SocketMessage,
) -> Result<(), RestoreError> {
    let control = encode_control(open_file_builder, objects, message)?;
    let writer = &mut *open_file_builder.syscalls.writer;
    let (bytes, control_at) = (writer.write_bytes(&message.bytes)?, writer.write_bytes(&control)?);
    let vector = writer.write_bytes([0, message.bytes.len() as u64].as_bytes())?;
    writer.add_relocation(vector, bytes);
    let header = writer.write_bytes([0, 0, 0, 1, 0, control.len() as u64, 0].as_bytes())?;
    writer.add_relocation(header + 16, vector);
    if !control.is_empty() {
        writer.add_relocation(header + 32, control_at);
    }
    let arguments = [value(from), super::SyscallArgument::PlanOffset(header), value(MSG_DONTWAIT_NOSIGNAL)];
    open_file_builder.syscalls.call_expecting(message.bytes.len() as u64, abi::SENDMSG, &arguments);
    Ok(())
}

/// Encodes descriptors and credentials, each after a `struct cmsghdr`: length, level, type.
fn encode_control(
    open_file_builder: &OpenFileBuilder<'_, '_>,
    objects: &PassedObjects,
    message: &SocketMessage,
) -> Result<Vec<u8>, RestoreError> {
    let mut control = Vec::new();
    let mut add = |kind: u32, data: &[u32]| {
        let bytes = CMSGHDR_BYTES + size_of_val(data);
        control.extend((bytes as u64).to_ne_bytes());
        [SOL_SOCKET, kind].iter().chain(data).for_each(|word| control.extend(word.to_ne_bytes()));
        control.resize(control.len().next_multiple_of(CMSG_ALIGNMENT), 0);
    };
    if !message.files.is_empty() {
        let place = |file: &u32| {
            let own = open_file_builder
                .slot_fd(*file)
                .or_else(|| objects.slot_of_open_file(*file).map(|slot| open_file_builder.fd_base + slot));
            own.ok_or(RestoreError::UnsupportedOpenFile { number: *file })
        };
        add(SCM_RIGHTS, &message.files.iter().map(place).collect::<Result<Vec<u32>, _>>()?);
    }
    if let Some(MessageSender { pid, uid, gid }) = message.sender {
        add(SCM_CREDENTIALS, &[pid, uid, gid]);
    }
    Ok(control)
}
