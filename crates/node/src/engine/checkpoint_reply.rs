//! The reply to a checkpoint request. A child inherits the unanswered request of its parent, and gets its own reply
//! before it runs. The reply carries a file for the child's result, the payload, and the child's end of a channel.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use farfork_program::Reply;
use farfork_sys::{fd_passing, memfd};
use farfork_wire::descriptor::OpenFile;
use farfork_wire::{ChildId, SeedId};

use super::start::{Assignment, ChildAssignment, StartRequest};
use crate::children::OutputStream;

/// The identity that the reply gives a child.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChildIdentity<'a> {
    pub(super) child: &'a ChildId,
    pub(super) seed: &'a SeedId,
    /// Its position among the children of its fork.
    pub(super) index: u32,
}

/// A reply that can be sent once the child's identity is known.
#[derive(Debug)]
pub(super) struct CheckpointReply {
    socket: OwnedFd,
    /// The file for the child's result.
    result: File,
    /// The child's end of its channel.
    channel: Option<OwnedFd>,
}

/// The sockets of a child for which a reply was opened. All are `None` if the parent did not wait for a reply.
#[derive(Debug, Default)]
pub(super) struct OpenedReply {
    /// The reply, if it is still to be sent.
    pub(super) reply: Option<CheckpointReply>,
    /// The child's end of the socket that carries the reply.
    pub(super) checkpoint_socket: Option<OwnedFd>,
    /// The daemon's end of the child's channel, if the child has one.
    pub(super) channel: Option<OwnedFd>,
}

/// Opens the sockets and files of a child's reply. Sends the reply if the child's identity is known
/// (`Assignment::Immediate`).
///
/// # Errors
/// As socketpair(2), open(2) and sendmsg(2).
pub(super) fn open_reply(
    start_request: StartRequest<'_>,
    child: &ChildId,
    directory: &Path,
    assignment: Assignment<'_>,
) -> io::Result<OpenedReply> {
    let StartRequest { source, options, .. } = start_request;
    let waits = |file: &OpenFile| matches!(file, OpenFile::CheckpointSocket { is_caller: true, .. });
    if !source.descriptor.open_files.iter().any(waits) {
        return Ok(OpenedReply::default());
    }
    let result = OpenOptions::new()
        .create_new(true)
        .append(true)
        .mode(0o600)
        .open(directory.join(OutputStream::Result.file_name()))?;
    let (ours, checkpoint_socket) = fd_passing::seqpacket_pair()?;
    let (channel, of_child) = options.channel.then(fd_passing::stream_pair).transpose()?.unzip();
    let mut reply = Some(CheckpointReply { socket: ours, result, channel: of_child });
    if let Assignment::Immediate(ChildAssignment { index, payload }) = assignment
        && let Some(reply) = reply.take()
    {
        reply.send(ChildIdentity { child, seed: &source.key.seed, index }, payload)?;
    }
    Ok(OpenedReply { reply, checkpoint_socket: Some(checkpoint_socket), channel })
}

impl CheckpointReply {
    /// Sends the reply and closes the socket: the child reads the reply, and then end of file.
    ///
    /// # Errors
    /// As memfd_create(2), write(2) and sendmsg(2).
    pub(super) fn send(self, identity: ChildIdentity<'_>, payload: Option<&[u8]>) -> io::Result<()> {
        let ChildIdentity { child, seed, index } = identity;
        let payload = payload.map(create_sealed_memfd).transpose()?;
        let mut fds = vec![self.result.as_fd()];
        fds.extend(payload.as_ref().map(File::as_fd));
        fds.extend(self.channel.as_ref().map(OwnedFd::as_fd));
        let answer = Reply::Child { child, seed, index, has_payload: payload.is_some() }.encode();
        fd_passing::send(self.socket.as_fd(), &answer, &fds)
    }
}

/// Creates a memfd with these contents, open for reading only.
fn create_sealed_memfd(contents: &[u8]) -> io::Result<File> {
    let mut memfd = memfd::create("payload", true)?;
    memfd.write_all(contents)?;
    memfd::seal_read_only(&memfd)
}

#[cfg(test)]
mod tests {
    use super::create_sealed_memfd;
    use std::io::{Read as _, Write as _};

    #[test]
    fn a_payload_can_be_read_and_never_written() {
        let mut payload = create_sealed_memfd(b"12").unwrap();
        let mut text = String::new();
        payload.read_to_string(&mut text).unwrap();
        assert_eq!(text, "12");
        assert!(payload.write_all(b"x").is_err());
    }
}
