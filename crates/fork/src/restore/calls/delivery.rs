//! Messages with open files, or with their senders' credentials (sendmsg(2)): sent when all that may be on its way in a socket
//! has been made, sockets among them. A socket that has one such message gets all of its messages then, in their order.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Message, OpenFile, Sender, SharedKind, Socket};

use super::super::RestoreError;
use super::super::descriptors::reopen_flags;
use super::super::layout::STEP_SOCKET;
use super::super::objects::Objects;
use super::files::Bench;
use super::socket::{self, MSG_DONTWAIT_NOSIGNAL};
use super::{number, value};

const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const SCM_CREDENTIALS: u32 = 2;

/// Bytes of `struct cmsghdr`, and what its data are aligned to.
const HEADER_BYTES: usize = 16;
const ALIGNMENT: usize = 8;

/// Two ends that stand, and what is still to be sent between them.
#[derive(Debug)]
pub(super) struct Late<'a> {
    /// For messages.
    pub(super) index: u32,
    /// The ends, by descriptors, each with the socket that it is; `None` for one that is closed when it has sent.
    pub(super) ends: [(u32, Option<&'a Socket>); 2],
}

/// Whether a socket's messages must wait until all else is there.
pub(super) fn is_late(socket: &Socket) -> bool {
    socket.received.iter().any(|message| !message.files.is_empty() || message.sender.is_some())
}

/// Opens what has a path and is on its way in a socket; what else there is, is made by others.
pub(super) fn open_files(bench: &mut Bench<'_, '_>, descriptor: &Descriptor) -> Result<(), RestoreError> {
    let sockets = descriptor.open_files.iter().filter_map(|file| match file {
        OpenFile::Socket(socket) => Some(socket),
        _ => None,
    });
    let mut wanted: Vec<u32> =
        sockets.flat_map(|socket| &socket.received).flat_map(|one| &one.files).copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    for index in wanted {
        let (path, flags, offset) = match &descriptor.open_files[index as usize] {
            OpenFile::Regular { path, flags, offset } | OpenFile::Directory { path, flags, offset } => {
                (path, *flags, *offset)
            }
            OpenFile::Device { path, flags } => (path, *flags, 0),
            OpenFile::Memory { object, flags, offset } => match &descriptor.shared_objects[*object as usize].kind {
                SharedKind::Named { path, .. } => (path, *flags, *offset),
                _ => continue,
            },
            _ => continue,
        };
        bench.about(STEP_SOCKET, index);
        let path = bench.script.text(path)?;
        bench.script.gives(0, number::OPEN, &[path, value(reopen_flags(flags)), value(0_u32)]);
        if offset != 0 {
            bench.script.gives(offset, number::LSEEK, &[value(0_u32), value(offset), value(0_u32)]);
        }
        bench.put_aside(0, index);
    }
    Ok(())
}

/// Sends what is still to be sent. Options come after it, as sizes of buffers are among them.
pub(super) fn send_all(bench: &mut Bench<'_, '_>, objects: &Objects, late: &[Late<'_>]) -> Result<(), RestoreError> {
    for Late { index, ends: [one, other] } in late {
        bench.about(STEP_SOCKET, *index);
        for ((from, _), (_, to)) in [(other, one), (one, other)] {
            let Some(to) = to else { continue };
            socket::make_room(bench.script, *from, to)?;
            to.received.iter().try_for_each(|message| send(bench, objects, *from, message))?;
        }
        let known = || [one, other].into_iter().filter_map(|(fd, socket)| Some((*fd, (*socket)?)));
        known().try_for_each(|(fd, socket)| socket::leave_unread(bench.script, fd, socket))?;
        known().for_each(|(fd, socket)| socket::shut_down(bench.script, fd, socket));
        for (fd, socket) in [one, other] {
            match socket {
                Some(socket) => socket::set_options(bench.script, *fd, socket, |_| true)?,
                None => bench.script.gives(0, number::CLOSE, &[value(*fd)]),
            }
        }
    }
    Ok(())
}

/// `struct msghdr`: no name; the bytes, in one piece; what comes along; no flags.
fn send(bench: &mut Bench<'_, '_>, objects: &Objects, from: u32, message: &Message) -> Result<(), RestoreError> {
    let control = control(bench, objects, message)?;
    let writer = &mut *bench.script.writer;
    let (bytes, control_at) = (writer.append(&message.bytes)?, writer.append(&control)?);
    let vector = writer.append(&words(&[0, message.bytes.len() as u64]))?;
    writer.point(vector, bytes);
    let header = writer.append(&words(&[0, 0, 0, 1, 0, control.len() as u64, 0]))?;
    writer.point(header + 16, vector);
    if !control.is_empty() {
        writer.point(header + 32, control_at);
    }
    let arguments = [value(from), super::Argument::Place(header), value(MSG_DONTWAIT_NOSIGNAL)];
    bench.script.gives(message.bytes.len() as u64, number::SENDMSG, &arguments);
    Ok(())
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Descriptors and credentials, each behind a `struct cmsghdr`: length, level, type.
fn control(bench: &Bench<'_, '_>, objects: &Objects, message: &Message) -> Result<Vec<u8>, RestoreError> {
    let mut control = Vec::new();
    let mut add = |kind: u32, data: &[u32]| {
        let bytes = HEADER_BYTES + size_of_val(data);
        control.extend(words(&[bytes as u64]));
        [SOL_SOCKET, kind].iter().chain(data).for_each(|word| control.extend(word.to_ne_bytes()));
        control.resize(control.len().next_multiple_of(ALIGNMENT), 0);
    };
    if !message.files.is_empty() {
        let place = |file: &u32| {
            let own = bench.place_of(*file).or_else(|| objects.of_open_file(*file).map(|slot| bench.fd_base + slot));
            own.ok_or(RestoreError::NotMade { number: *file })
        };
        add(SCM_RIGHTS, &message.files.iter().map(place).collect::<Result<Vec<u32>, _>>()?);
    }
    if let Some(Sender { pid, uid, gid }) = message.sender {
        add(SCM_CREDENTIALS, &[pid, uid, gid]);
    }
    Ok(control)
}
