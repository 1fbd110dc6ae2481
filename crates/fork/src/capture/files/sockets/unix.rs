//! Unix sockets: what waits in them, with the descriptors and credentials that come along, and who waits to be accepted.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use farfork_sys::socket::{self, Peeked, Sender};
use farfork_sys::socket_diagnosis::Diagnosis;
use farfork_wire::descriptor::SocketState;

use super::{LISTENING, SOL_SOCKET, STREAM, SocketContents, Sockets};

/// Most bytes of a message in a socket's queue: more than the kernel lets anybody send by default.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

const SO_PEEK_OFF: u32 = 42;

/// A message that waits in a socket.
#[derive(Debug, Default)]
pub(in super::super) struct Arrived {
    pub(in super::super) bytes: Vec<u8>,
    /// Our copies of the descriptors that come with it.
    pub(in super::super) files: Vec<OwnedFd>,
    /// Who sent it, where that is told and known.
    pub(in super::super) sender: Option<Sender>,
}

impl SocketContents {
    pub(super) fn read_unix(
        &mut self,
        fd: BorrowedFd<'_>,
        inode: u64,
        diagnosis: Option<&Diagnosis>,
    ) -> io::Result<()> {
        // One that was not there at the survey: once more.
        let diagnosis = diagnosis.ok_or(io::ErrorKind::NotFound)?;
        let told = diagnosis.unix_socket(inode as u32)?;
        (self.state, self.backlog, self.shut_down) = (told.state, told.backlog, told.shut_down.into());
        if told.state != LISTENING {
            self.read_queue(fd)?;
            if told.peer == Some(0) {
                self.unread_bytes = socket::unread_by_peer(fd)?;
            }
        } else if told.clients.len() != told.waiting as usize || told.clients.contains(&0) {
            // What somebody sent who has gone, nobody can look at.
            self.refuse(format!(
                "{} connections wait at it to be accepted, and not all of their other ends are open: not carried; let it accept them first",
                told.waiting
            ));
        }
        self.unix = Some(told);
        Ok(())
    }

    /// Looks at all that waits, from one to the next, and leaves it there.
    fn read_queue(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let before = socket::number_option(fd, SOL_SOCKET, SO_PEEK_OFF)?;
        socket::set_number_option(fd, SOL_SOCKET, SO_PEEK_OFF, 0)?;
        let read = self.read_messages(fd);
        socket::set_number_option(fd, SOL_SOCKET, SO_PEEK_OFF, before)?;
        read
    }

    fn read_messages(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Most queues are empty, and room for a message takes longer to clear than to ask.
        if !farfork_sys::wait::readable(fd, Instant::now())? {
            return Ok(());
        }
        let mut room = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let peeked = match socket::peek(fd, &mut room) {
                Ok(peeked) => peeked,
                // Nothing (more); or it is not connected.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected
                    ) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            if peeked.lacks_files {
                self.refuse("more descriptors are on their way in it than can be looked at".to_owned());
                return Ok(());
            }
            if peeked.is_cut {
                self.refuse(format!("a message of more than {MESSAGE_BYTES_MAX} bytes waits in it"));
                return Ok(());
            }
            let is_end = peeked.bytes == 0 && (self.birth.kind == STREAM || self.shut_down & 1 != 0);
            if is_end {
                return Ok(());
            }
            self.take(fd, &room[..peeked.bytes], peeked)?;
        }
    }

    /// Takes a message. In a stream one look may give a piece with descriptors together with plain ones before it, whose reader
    /// need not get them yet: they are told apart.
    fn take(&mut self, fd: BorrowedFd<'_>, bytes: &[u8], peeked: Peeked) -> io::Result<()> {
        let Peeked { files, sender, .. } = peeked;
        let sender = sender.filter(|sender| sender.pid != 0);
        let plain = if files.is_empty() || self.birth.kind != STREAM { 0 } else { plain_bytes(fd, bytes.len())? };
        if plain > 0 {
            self.received.push(Arrived { bytes: bytes[..plain].to_vec(), files: Vec::new(), sender });
        }
        self.received.push(Arrived { bytes: bytes[plain..].to_vec(), files, sender });
        Ok(())
    }
}

/// How many of the `bytes` behind which the next look begins come before those that have descriptors.
fn plain_bytes(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let end = socket::number_option(fd, SOL_SOCKET, SO_PEEK_OFF)?;
    let begin = end - i32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData)?;
    socket::set_number_option(fd, SOL_SOCKET, SO_PEEK_OFF, begin)?;
    let plain = socket::peek_all_but_last(fd, bytes);
    socket::set_number_option(fd, SOL_SOCKET, SO_PEEK_OFF, end)?;
    plain
}

impl Sockets<'_> {
    /// The state of one that waits to be accepted by another of the process; `None` where it does not.
    pub(super) fn unix_waiting(&self, inode: u64, contents: &SocketContents) -> Option<Result<SocketState, String>> {
        contents.unix.as_ref().filter(|unix| unix.peer == Some(0))?;
        let turn_at = |listener: &SocketContents| {
            let clients = &listener.unix.as_ref().filter(|unix| unix.state == LISTENING)?.clients;
            clients.iter().position(|client| u64::from(*client) == inode)
        };
        let (listener, turn) = self.0.values().find_map(|listener| Some((listener, turn_at(listener)?)))?;
        if contents.unread_bytes > 0 {
            return Some(Err(UNREAD_WAITING.to_owned()));
        }
        let (address, through) = (contents.bound(), listener.bound());
        Some(Ok(SocketState::Waiting { address, through, turn: turn as u32 }))
    }
}

/// Who waits to be accepted and has sent something: its other end is nobody's yet, so that nobody can look into it.
pub(super) const UNREAD_WAITING: &str = "what was sent in it waits with it to be accepted by a socket of the process, where nobody can look: not carried; \
     let it be accepted first";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use farfork_sys::fdpass;

    #[test]
    fn descriptors_stay_with_their_piece_of_a_stream() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let sent = farfork_sys::memfd::create("on-its-way", false).unwrap();
        one.write_all(&[1; 700]).unwrap();
        fdpass::send(one.as_fd(), b"with", &[sent.as_fd()]).unwrap();
        one.write_all(b"behind").unwrap();
        let inode = std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&other))).unwrap();
        let diagnosis = Diagnosis::open(std::process::id() as i32).unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&inode);
        for _ in 0..2 {
            let contents = super::super::read(&other.try_clone().unwrap().into(), inode, Some(&diagnosis)).unwrap();
            let pieces: Vec<(usize, usize)> =
                contents.received.iter().map(|one| (one.bytes.len(), one.files.len())).collect();
            assert_eq!(pieces, [(700, 0), (4, 1), (6, 0)]);
        }
    }
}
