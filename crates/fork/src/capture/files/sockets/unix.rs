//! Unix sockets: queued messages with their descriptors and credentials, and connections that wait for accept(2).

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_sys::sock_diag::{SockDiag, UnixSocket};
use farfork_sys::socket::{self, MessageSender, PeekedMessage};
use farfork_sys::socket_abi::{AF_UNIX, SO_PASSCRED, SO_PEEK_OFF, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM, SOL_SOCKET};
use farfork_wire::descriptor::{FileStatus, SocketFile, SocketState, parse_unix_path};

use super::super::fd_kind::DELETED_SUFFIX;
use super::{CONNECTED, LISTENING, NO_RECEIVING, SocketContents, SocketSpec, SocketTable, URGENT_DATA_REASON};

/// Maximum size of a message in a socket's queue, in bytes: more than the kernel lets a process send by default.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A message in the queue of a socket.
#[derive(Debug, Default)]
pub(in super::super) struct QueuedMessage {
    pub(in super::super) bytes: Vec<u8>,
    /// This process's copies of the descriptors in the message.
    pub(in super::super) files: Vec<OwnedFd>,
    /// The sender, if the socket receives credentials and the sender is known.
    pub(in super::super) sender: Option<MessageSender>,
}

/// The path to which a Unix socket was bound. `None` for a connection: an accepted one has the path of its listening socket.
pub(in super::super) fn own_bound_path(fd: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let spec = SocketSpec::read(fd)?;
    if spec.family != AF_UNIX || (spec.socket_type != SOCK_DGRAM && !super::is_listening(fd)) {
        return Ok(None);
    }
    Ok(parse_unix_path(&socket::local_address(fd)?).map(<[u8]>::to_vec))
}

impl SocketContents {
    pub(super) fn read_unix(&mut self, fd: BorrowedFd<'_>, inode: u64, diagnosis: Option<&SockDiag>) -> io::Result<()> {
        // The socket is new since the survey. This error makes the capture retry.
        let diagnosis = diagnosis.ok_or(io::ErrorKind::NotFound)?;
        let unix_socket = diagnosis.unix_socket(inode as u32)?;
        (self.state, self.backlog, self.shutdown) =
            (unix_socket.state, unix_socket.backlog, unix_socket.shut_down.into());
        if unix_socket.state != LISTENING {
            self.read_queue(fd)?;
            if unix_socket.peer == Some(0) {
                self.unread_bytes = socket::peer_unread_bytes(fd)?;
            }
        } else if let Some(reason) = closed_clients_reason(&unix_socket) {
            self.set_refusal(reason);
        }
        let was_accepted =
            unix_socket.state == CONNECTED && self.spec.socket_type != SOCK_DGRAM && unix_socket.peer != Some(0);
        if self.is_bound_to_path() && !was_accepted {
            self.read_bound_path(fd)?;
        }
        if self.spec.socket_type == SOCK_STREAM && unix_socket.peer.is_some_and(|peer| peer != 0) {
            self.sent_memory_bytes = socket::peer_unread_bytes(fd)?;
        }
        self.creator = super::read_creator(fd)?;
        self.unix = Some(unix_socket);
        Ok(())
    }

    fn is_bound_to_path(&self) -> bool {
        self.address.get(2).is_some_and(|byte| *byte != 0)
    }

    /// Reads the present name and owner of the socket's file, which may have changed since bind(2).
    fn read_bound_path(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        const PERMISSIONS: u32 = 0o7777;
        let Some(file) = socket::open_bound_file(fd)? else { return Ok(()) };
        let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let (now, found) = (fs::read_link(&link)?, fs::metadata(&link)?);
        let status = FileStatus { mode: found.mode() & PERMISSIONS, uid: found.uid(), gid: found.gid() };
        match path_of(&now, &found) {
            Ok(path) => self.file = Some(SocketFile { path, status }),
            Err(reason) => self.set_refusal(reason),
        }
        Ok(())
    }

    /// Peeks at all queued messages in order, and leaves them there.
    fn read_queue(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        super::peek_at_offset(fd, 0, || {
            // Most queues are empty, and clearing a buffer takes longer than polling.
            let Some(readiness) = farfork_sys::poll::poll_read(fd)? else { return Ok(()) };
            self.is_reset = readiness.has_error;
            if readiness.is_urgent {
                // A peek with an offset would take the urgent byte for a message.
                self.set_refusal(URGENT_DATA_REASON.to_owned());
                return Ok(());
            }
            if self.spec.socket_type != SOCK_SEQPACKET || self.shutdown & NO_RECEIVING == 0 {
                return self.read_messages(fd);
            }
            // Only the credentials of its sender distinguish an empty message from the end of file.
            let before = socket::read_number_option(fd, SOL_SOCKET, SO_PASSCRED)?;
            socket::set_number_option(fd, SOL_SOCKET, SO_PASSCRED, 1)?;
            let read = self.read_messages(fd);
            socket::set_number_option(fd, SOL_SOCKET, SO_PASSCRED, before)?;
            if before == 0 {
                self.receive_queue.iter_mut().for_each(|message| message.sender = None);
            }
            read
        })
    }

    fn read_messages(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Reading the error would consume it. On a stream, a peek after the last byte reads it; on other sockets, the first
        // peek does.
        let mut left = if self.is_reset { rustix::io::ioctl_fionread(fd)? } else { u64::MAX };
        if self.is_reset && left > 0 && self.spec.socket_type != SOCK_STREAM {
            self.set_refusal(HIDDEN_RESET_REASON.to_owned());
            return Ok(());
        }
        let mut room = vec![0; MESSAGE_BYTES_MAX];
        while left > 0 {
            let peeked = match socket::peek(fd, &mut room) {
                Ok(peeked) => peeked,
                // The queue has no (more) data, or the socket is not connected.
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
            if peeked.is_missing_files {
                self.set_refusal(
                    "it has more descriptors in flight than can be peeked at; let the process receive them first"
                        .to_owned(),
                );
                return Ok(());
            }
            if peeked.is_truncated {
                self.set_refusal(format!("a message of more than {MESSAGE_BYTES_MAX} bytes waits in it"));
                return Ok(());
            }
            if peeked.bytes == 0 && self.is_end_of_file(&peeked) {
                return Ok(());
            }
            left = left.saturating_sub(peeked.bytes as u64);
            self.push_message(fd, &room[..peeked.bytes], peeked)?;
        }
        Ok(())
    }

    /// Whether an empty result of a peek is the end of file. A datagram socket has none: without a message, a peek fails.
    fn is_end_of_file(&self, peeked: &PeekedMessage) -> bool {
        match self.spec.socket_type {
            SOCK_STREAM => true,
            SOCK_SEQPACKET => self.shutdown & NO_RECEIVING != 0 && peeked.sender.is_none(),
            _ => false,
        }
    }

    /// Adds a message. In a stream, one peek may return bytes with descriptors together with earlier bytes without any. A
    /// reader may get the earlier bytes alone, so they are a separate message.
    fn push_message(&mut self, fd: BorrowedFd<'_>, bytes: &[u8], peeked: PeekedMessage) -> io::Result<()> {
        let PeekedMessage { files, sender, .. } = peeked;
        let sender = sender.filter(|sender| sender.pid != 0);
        let plain = if files.is_empty() || self.spec.socket_type != SOCK_STREAM {
            0
        } else {
            bytes_without_fds(fd, bytes.len())?
        };
        if plain > 0 {
            self.receive_queue.push(QueuedMessage { bytes: bytes[..plain].to_vec(), files: Vec::new(), sender });
        }
        self.receive_queue.push(QueuedMessage { bytes: bytes[plain..].to_vec(), files, sender });
        Ok(())
    }
}

/// Returns the path of a socket's file, which the kernel reports as `now`. `None` if the file has no name left.
fn path_of(now: &Path, found: &Metadata) -> Result<Option<String>, String> {
    let is_it = |path: &Path| {
        path.symlink_metadata().is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
    };
    let path = match now.as_os_str().as_bytes().strip_suffix(DELETED_SUFFIX) {
        Some(_) if found.nlink() == 0 => return Ok(None),
        // The name `before` was removed, but the file has other names, which the kernel does not show.
        Some(before) if !is_it(now) => {
            let directory = Path::new(OsStr::from_bytes(before)).parent().unwrap_or(Path::new("/"));
            let others = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
            others.into_iter().find(|path| is_it(path)).ok_or_else(|| {
                let directory = directory.display();
                format!("its file was linked to a name outside {directory} and is not carried; rename it instead")
            })?
        }
        _ => now.to_path_buf(),
    };
    let path = path.to_str().filter(|path| path.starts_with('/')).map(str::to_owned);
    path.map(Some).ok_or_else(|| format!("the path of its file, {}, is not absolute or not UTF-8", now.display()))
}

/// Of the last `bytes` before the peek offset, returns how many precede the bytes with descriptors.
fn bytes_without_fds(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let end = socket::read_number_option(fd, SOL_SOCKET, SO_PEEK_OFF)?;
    let begin = end - i32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData)?;
    socket::set_number_option(fd, SOL_SOCKET, SO_PEEK_OFF, begin)?;
    let plain = socket::bytes_before_last_piece(fd, bytes);
    socket::set_number_option(fd, SOL_SOCKET, SO_PEEK_OFF, end)?;
    plain
}

impl SocketTable<'_> {
    /// Returns the state of a socket that waits to be accepted by a listening socket of the tree; `None` for other sockets.
    pub(super) fn pending_state(&self, inode: u64, contents: &SocketContents) -> Option<Result<SocketState, String>> {
        contents.unix.as_ref().filter(|unix| unix.peer == Some(0))?;
        let turn_at = |listener: &SocketContents| {
            let clients = &listener.unix.as_ref().filter(|unix| unix.state == LISTENING)?.pending_clients;
            clients.iter().position(|client| u64::from(*client) == inode)
        };
        let (listener, turn) = self.0.values().find_map(|listener| Some((listener, turn_at(listener)?)))?;
        let is_namesake = |other: &&SocketContents| {
            other.state == LISTENING && other.spec == listener.spec && other.bound_address() == listener.bound_address()
        };
        if self.0.values().filter(is_namesake).count() > 1 {
            return Some(Err(DUPLICATE_NAME_REASON.to_owned()));
        }
        if contents.unread_bytes > 0 {
            return Some(Err(UNREAD_PENDING_REASON.to_owned()));
        }
        if contents.connector.credentials().is_none() {
            return Some(Err(UNKNOWN_CONNECTOR_REASON.to_owned()));
        }
        let (address, through) = (contents.bound_address(), listener.bound_address());
        Some(Ok(SocketState::PendingAccept { address, through, turn: turn as u32 }))
    }
}

/// Returns why a listening socket cannot be carried. If a client has already closed its end, its data cannot be peeked at.
pub(super) fn closed_clients_reason(listener: &UnixSocket) -> Option<String> {
    let (clients, queued) = (&listener.pending_clients, listener.queued);
    (clients.len() != queued as usize || clients.contains(&0)).then(|| {
        format!(
            "it has {queued} pending connections, and some of their peers are closed: not carried; let the process accept \
             them first"
        )
    })
}

/// For a socket that waits to be accepted and has sent data: no process has the other end yet, so the data cannot be peeked
/// at.
pub(super) const UNREAD_PENDING_REASON: &str = "it is a pending connection with unread data, which cannot be peeked at \
     before accept(2): not carried; let the process accept it first";

/// The kernel shows who has connected a socket only after accept(2), and a server may authorise its client by that.
const UNKNOWN_CONNECTOR_REASON: &str = "it is a pending connection, and which user has connected it is unknown: the \
     processes that have the socket do not all have the user and the groups of its owner; let the process accept it first";

/// The error must not be consumed, so the messages after it cannot be peeked at.
pub(super) const HIDDEN_RESET_REASON: &str = "it has unread messages after an error (ECONNRESET: its peer was closed before it \
     had read everything), and peeking would consume the error: not carried; let the process read it first";

/// A child's socket connects again by name, so the name must identify one listening socket.
const DUPLICATE_NAME_REASON: &str = "it is a pending connection of one of several listening sockets with the \
     same name: not carried; let the process accept it first";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use farfork_sys::fd_passing;

    fn contents_of(socket: impl AsFd) -> (u64, SocketContents) {
        let socket = socket.as_fd().try_clone_to_owned().unwrap();
        let inode = fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino();
        let diagnosis = SockDiag::open(std::process::id().cast_signed()).unwrap();
        (inode, super::super::read_socket(&socket, inode, Some(&diagnosis)).unwrap())
    }

    #[test]
    fn a_socket_linked_only_in_another_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir_in(&directory).unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        fs::hard_link(&path, other.path().join("socket")).unwrap();
        assert_eq!(contents_of(&listener).1.file.unwrap().path.as_deref(), path.to_str());
        fs::remove_file(&path).unwrap();
        let refusal = contents_of(&listener).1.refusal.unwrap();
        assert!(refusal.contains("linked to a name outside"), "{refusal}");
    }

    #[test]
    fn a_connection_to_one_of_two_listeners_of_one_name_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        let mut all = BTreeMap::from([contents_of(&listener), contents_of(&waiting)]);
        let (inode, mut contents) = contents_of(&waiting);
        let refusal = SocketTable(&all).build_socket(inode, &contents, 0).unwrap_err();
        assert_eq!(refusal, UNKNOWN_CONNECTOR_REASON);
        let status = farfork_sys::process::ProcStatus::read(std::process::id().cast_signed()).unwrap();
        let owner = FileStatus { mode: 0o777, uid: status.uids[3], gid: status.gids[3] };
        contents.add_holder(owner, [&status]);
        assert!(SocketTable(&all).build_socket(inode, &contents, 0).is_ok());
        fs::remove_file(&path).unwrap();
        all.extend([contents_of(UnixListener::bind(&path).unwrap())]);
        assert_eq!(SocketTable(&all).build_socket(inode, &contents, 0).unwrap_err(), DUPLICATE_NAME_REASON);
    }

    #[test]
    fn empty_messages_before_the_end_of_file_are_read() {
        let (one, other) = fd_passing::seqpacket_pair().unwrap();
        for bytes in [&b""[..], b"two", b""] {
            rustix::net::send(&one, bytes, rustix::net::SendFlags::empty()).unwrap();
        }
        drop(one);
        let (_, contents) = contents_of(&other);
        let messages: Vec<&[u8]> = contents.receive_queue.iter().map(|message| &*message.bytes).collect();
        assert_eq!(messages, [&b""[..], b"two", b""]);
        assert!(contents.receive_queue.iter().all(|message| message.sender.is_none()));
        assert_eq!(socket::read_number_option(other.as_fd(), SOL_SOCKET, SO_PASSCRED).unwrap(), 0);
    }

    #[test]
    fn passed_descriptors_keep_their_position_in_a_stream() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let sent = farfork_sys::memfd::create("on-its-way", false).unwrap();
        one.write_all(&[1; 700]).unwrap();
        fd_passing::send(one.as_fd(), b"with", &[sent.as_fd()]).unwrap();
        one.write_all(b"behind").unwrap();
        for _ in 0..2 {
            let (_, contents) = contents_of(&other);
            let pieces: Vec<(usize, usize)> =
                contents.receive_queue.iter().map(|one| (one.bytes.len(), one.files.len())).collect();
            assert_eq!(pieces, [(700, 0), (4, 1), (6, 0)]);
        }
    }
}
