//! Messages with file descriptors between processes of one machine (unix(7), SCM_RIGHTS), over sockets that keep
//! message boundaries.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Maximum number of descriptors of one message: the kernel's SCM_MAX_FD.
pub const FDS_PER_MESSAGE_MAX: usize = 253;

/// Creates a connected pair of SOCK_SEQPACKET sockets, both close-on-exec.
///
/// # Errors
/// As socketpair(2).
pub fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok(pair)
}

/// Creates a connected pair of SOCK_STREAM sockets, both close-on-exec.
///
/// # Errors
/// As socketpair(2).
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message with copies of `fds`. `bytes` must not be empty: a receiver takes an empty message for end of file.
///
/// # Errors
/// As sendmsg(2); EPIPE if the other end is closed (no SIGPIPE is raised).
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, bytes, fds, SendFlags::NOSIGNAL)
}

fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
    debug_assert!(!bytes.is_empty() && fds.len() <= FDS_PER_MESSAGE_MAX);
    let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(fds).size()];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let sent = rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Creates a datagram socket that is connected to itself. A message stays in the socket until a process that has the socket
/// open receives it. The socket's name is random, so that no other process can guess it.
///
/// # Errors
/// As socket(2), bind(2), connect(2).
pub fn self_connected_socket() -> io::Result<OwnedFd> {
    let name = format!("farfork-{:016x}", RandomState::new().build_hasher().finish());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// As [`send`], but never waits.
///
/// # Errors
/// As [`send`]; `WouldBlock` if the socket's buffer is full.
pub fn try_send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Like [`try_send`], but passes the descriptor with this number. The kernel or an earlier process has opened it in this
/// process's descriptor table.
///
/// # Errors
/// As [`try_send`]; EBADF if the number is not open; `InvalidInput` if it is negative.
pub fn try_send_raw_fd(socket: BorrowedFd<'_>, bytes: &[u8], number: RawFd) -> io::Result<()> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: borrowed for this call alone. The kernel only looks up the number, which need not be open.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    try_send(socket, bytes, &[fd])
}

/// Sets the size of a socket's send buffer. With CAP_NET_ADMIN it may exceed the system's limit.
///
/// # Errors
/// As setsockopt(2).
pub fn set_send_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    if rustix::net::sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    Ok(())
}

/// Receives one message into `into`, with at most `fds_max` descriptors (close-on-exec). Returns the message's length; 0 if
/// the other end is closed.
///
/// # Errors
/// As recvmsg(2); `InvalidData` if the message or its descriptors did not fit.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8], fds_max: usize) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_with(socket, into, (fds_max, 0), RecvFlags::empty()).map(|(bytes, fds, _)| (bytes, fds))
}

/// Like [`receive`], but leaves the message in the socket and never waits. The returned descriptors are copies, and the
/// message keeps its own. So no descriptor is lost if the process is killed after this call.
///
/// # Errors
/// As [`receive`]; `WouldBlock` when there is no message.
pub fn peek(socket: BorrowedFd<'_>, into: &mut [u8], fds_max: usize) -> io::Result<(usize, Vec<OwnedFd>)> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    receive_with(socket, into, (fds_max, 0), flags).map(|(bytes, fds, _)| (bytes, fds))
}

/// Like [`peek`], but also returns the pid of the message's sender as this process sees it, if [`enable_sender_pid`] was
/// called for the socket.
///
/// # Errors
/// As [`peek`].
pub fn peek_with_sender(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    fds_max: usize,
) -> io::Result<(usize, Vec<OwnedFd>, Option<i32>)> {
    receive_with(socket, into, (fds_max, 1), RecvFlags::PEEK | RecvFlags::DONTWAIT)
}

fn receive_with(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    (fds_max, senders_max): (usize, usize),
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>, Option<i32>)> {
    let room = match senders_max {
        0 => rustix::cmsg_space!(ScmRights(fds_max)),
        _ => rustix::cmsg_space!(ScmRights(fds_max), ScmCredentials(senders_max)),
    };
    let mut space = vec![MaybeUninit::uninit(); room];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(into)], &mut ancillary, flags)?;
    let (mut fds, mut sender) = (Vec::new(), None);
    for message in ancillary.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(passed) => fds.extend(passed),
            RecvAncillaryMessage::ScmCredentials(known) => sender = Some(known.pid.as_raw_nonzero().get()),
            _ => {}
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    Ok((received.bytes, fds, sender))
}

/// Makes the kernel pass the sender's pid with each message (SO_PASSCRED).
///
/// # Errors
/// As setsockopt(2).
pub fn enable_sender_pid(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Receives one message without descriptors, and the pid of its sender as this process sees it. The socket needs
/// [`enable_sender_pid`]. Returns the message's length; 0 if the other end is closed.
///
/// # Errors
/// As recvmsg(2); `InvalidData` if the sender's pid is missing.
pub fn receive_with_sender(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, i32)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(into)], &mut ancillary, flags)?;
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid.as_raw_nonzero().get()),
        _ => None,
    });
    match sender {
        Some(pid) => Ok((received.bytes, pid)),
        None if received.bytes == 0 => Ok((0, 0)),
        None => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// Returns the id of the process that was at the other end of a Unix socket when it was connected (SO_PEERCRED); `None` if
/// that process has no id in this process's pid namespace.
///
/// # Errors
/// As getsockopt(2).
pub fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `peer`, a plain structure of integers that lives here.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((peer.pid > 0).then_some(peer.pid)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_bytes_arrive_together() {
        let (a, b) = seqpacket_pair().unwrap();
        let (c, d) = seqpacket_pair().unwrap();
        send(a.as_fd(), b"two", &[c.as_fd(), d.as_fd()]).unwrap();
        let mut bytes = [0; 16];
        let (length, fds) = receive(b.as_fd(), &mut bytes, 4).unwrap();
        assert_eq!((&bytes[..length], fds.len()), (&b"two"[..], 2));
        send(a.as_fd(), b"stays", &[c.as_fd()]).unwrap();
        assert_eq!(peek(b.as_fd(), &mut bytes, 1).unwrap().1.len(), 1);
        assert_eq!(receive(b.as_fd(), &mut bytes, 1).unwrap().1.len(), 1);
        enable_sender_pid(b.as_fd()).unwrap();
        send(a.as_fd(), b"whose", &[c.as_fd()]).unwrap();
        let (_, fds, sender) = peek_with_sender(b.as_fd(), &mut bytes, 1).unwrap();
        assert_eq!((fds.len(), sender), (1, Some(std::process::id() as i32)));
        assert_eq!(receive_with_sender(b.as_fd(), &mut bytes).unwrap(), (5, std::process::id() as i32));
        assert_eq!(peek(b.as_fd(), &mut bytes, 1).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(peer_pid(b.as_fd()).unwrap(), Some(std::process::id() as i32));
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut bytes, 0).unwrap().0, 0);
    }
}
