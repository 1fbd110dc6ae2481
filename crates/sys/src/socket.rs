//! Sockets of other processes: options, filters, addresses, and queued data, which stays in the queue.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Size of the longest option value, in bytes.
const OPTION_BYTES_MAX: usize = 256;

/// Reads an option (getsockopt(2)).
///
/// # Errors
/// As getsockopt(2): ENOPROTOOPT if the socket does not have the option.
pub fn read_option(socket: BorrowedFd<'_>, level: u32, name: u32) -> io::Result<Vec<u8>> {
    let mut value = vec![0_u8; OPTION_BYTES_MAX];
    let mut length = value.len() as libc::socklen_t;
    let (fd, level, name) = (socket.as_raw_fd(), level as libc::c_int, name as libc::c_int);
    // SAFETY: the kernel writes at most `length` bytes to `value`, and the length; both outlive the call.
    let failed = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(length as usize);
    Ok(value)
}

/// Reads the socket's filter (SO_GET_FILTER): its instructions, each a `struct sock_filter` of 8 bytes; empty without a
/// filter.
///
/// # Errors
/// EACCES if the filter does not consist of such instructions.
pub fn read_filter(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    const INSTRUCTION_BYTES: usize = 8;
    let read = |into: *mut libc::c_void, room: usize| -> io::Result<usize> {
        // The kernel counts in instructions, not in bytes.
        let mut count = room as libc::socklen_t;
        let (fd, level, name) = (socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_GET_FILTER);
        // SAFETY: the kernel writes at most `room` instructions to `into`, which has room for them, and the count.
        match unsafe { libc::getsockopt(fd, level, name, into, &raw mut count) } {
            0 => Ok(count as usize),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let count = read(std::ptr::null_mut(), 0)?;
    let mut instructions = vec![0_u8; count * INSTRUCTION_BYTES];
    if count > 0 {
        read(instructions.as_mut_ptr().cast(), count)?;
    }
    Ok(instructions)
}

/// Reads an option whose value is a number.
///
/// # Errors
/// As [`read_option`]; `InvalidData` if the value is not a number.
pub fn read_number_option(socket: BorrowedFd<'_>, level: u32, name: u32) -> io::Result<i32> {
    let value = read_option(socket, level, name)?;
    Ok(i32::from_ne_bytes(value.as_slice().try_into().map_err(|_| io::ErrorKind::InvalidData)?))
}

/// Reads the supplementary groups of the peer of a Unix socket (SO_PEERGROUPS).
///
/// # Errors
/// As getsockopt(2): ENODATA if the kernel knows no peer.
pub fn read_peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    /// Most processes have fewer groups. A long list takes longer to allocate than to read.
    const USUAL_GROUPS_MAX: usize = 32;
    /// NGROUPS_MAX.
    const GROUPS_MAX: usize = 65_536;
    match read_some_peer_groups(socket, USUAL_GROUPS_MAX) {
        Err(error) if error.raw_os_error() == Some(libc::ERANGE) => read_some_peer_groups(socket, GROUPS_MAX),
        groups => groups,
    }
}

/// Reads at most `count_max` groups; ERANGE if there are more.
fn read_some_peer_groups(socket: BorrowedFd<'_>, count_max: usize) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; count_max];
    let mut bytes = mem::size_of_val(groups.as_slice()) as libc::socklen_t;
    let (fd, level, name) = (socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS);
    // SAFETY: the kernel writes at most `bytes` bytes to `groups`, and the number of bytes; both outlive the call.
    let failed = unsafe { libc::getsockopt(fd, level, name, groups.as_mut_ptr().cast(), &raw mut bytes) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(bytes as usize / mem::size_of::<u32>());
    Ok(groups)
}

/// Sets an option whose value is a number (setsockopt(2)).
///
/// # Errors
/// As setsockopt(2).
pub fn set_number_option(socket: BorrowedFd<'_>, level: u32, name: u32, value: i32) -> io::Result<()> {
    let (fd, level, name) = (socket.as_raw_fd(), level as libc::c_int, name as libc::c_int);
    let length = mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which outlives the call.
    match unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads the socket's own address, in the form for bind(2). For a socket without an address, this is only the family.
///
/// # Errors
/// As getsockname(2).
pub fn local_address(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // SAFETY: as `address` requires.
    address(|at, length| unsafe { libc::getsockname(socket.as_raw_fd(), at, length) })
}

/// Reads the address of the peer.
///
/// # Errors
/// As getpeername(2): ENOTCONN if the socket is not connected.
pub fn peer_address(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // SAFETY: as `address` requires.
    address(|at, length| unsafe { libc::getpeername(socket.as_raw_fd(), at, length) })
}

/// Returns the size of the data that was sent from a Unix or UDP socket and that the peer has not read, in bytes. The size
/// includes the kernel's overhead (SIOCOUTQ). For UDP, it is data that has not left the socket.
///
/// # Errors
/// As ioctl(2).
pub fn peer_unread_bytes(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one `int`, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(bytes.cast_unsigned()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the file to which a Unix socket is bound, even if the file was renamed, as O_PATH and close-on-exec (SIOCUNIXFILE).
/// `None` if the socket is not bound to a file.
///
/// # Errors
/// As ioctl(2): EPERM without CAP_NET_ADMIN over the socket's network namespace.
pub fn open_bound_file(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    const SIOCUNIXFILE: libc::Ioctl = 0x89e0;
    // SAFETY: this request takes no argument, and accesses no memory of this process.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE) } {
        file @ 0.. => Ok(Some(own_fd(file))),
        _ => match io::Error::last_os_error() {
            none if none.kind() == io::ErrorKind::NotFound => Ok(None),
            error => Err(error),
        },
    }
}

/// Returns the address that `call` writes. `call` gets pointers to a buffer for the address and to the buffer's length. Omits
/// the null byte that the kernel appends to a Unix path of 108 bytes: bind(2) and connect(2) refuse an address of that length.
fn address(call: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; mem::size_of::<libc::sockaddr_storage>()];
    let mut length = bytes.len() as libc::socklen_t;
    if call(bytes.as_mut_ptr().cast(), &raw mut length) != 0 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate((length as usize).min(mem::size_of::<libc::sockaddr_un>()));
    Ok(bytes)
}

/// The result of a peek.
#[derive(Debug, Default)]
pub struct PeekedMessage {
    /// Number of bytes that were read.
    pub bytes: usize,
    /// Whether the message is longer than the buffer.
    pub is_truncated: bool,
    /// Copies of the descriptors in the message (SCM_RIGHTS), close-on-exec.
    pub files: Vec<OwnedFd>,
    /// Whether the message has more descriptors than this process may open.
    pub is_missing_files: bool,
    /// The sender, if the socket has SO_PASSCRED.
    pub sender: Option<MessageSender>,
}

/// The sender of a message (SCM_CREDENTIALS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageSender {
    /// Process id, in this process's pid namespace; 0 if it has none there, or if the kernel did not record it.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Size of the control buffer, in 8-byte words. All control data that the kernel sends fits in it: 253 descriptors,
/// credentials, a pidfd, a security label.
const CONTROL_WORDS: usize = 512;

/// Reads the next data of a socket and leaves it in the queue. With SO_PEEK_OFF set, each peek continues after the previous
/// one.
///
/// # Errors
/// `WouldBlock` if there is no (more) data; otherwise as recvmsg(2).
pub fn peek(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<PeekedMessage> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: all-zero bytes are a valid msghdr: no address.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), mem::size_of_val(&control));
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` describes `into` and `control`, which outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let has = |flag: libc::c_int| message.msg_flags & flag != 0;
    let mut peeked = PeekedMessage {
        bytes: received as usize,
        is_truncated: has(libc::MSG_TRUNC),
        is_missing_files: has(libc::MSG_CTRUNC),
        ..PeekedMessage::default()
    };
    peeked.parse_control(&control, message.msg_controllen);
    Ok(peeked)
}

/// Returns how many of the next `bytes` bytes of a stream precede the last piece in which they arrived. The kernel copies
/// piece by piece, and stops before a piece that it cannot store. So this function passes a null pointer as the buffer of
/// the last byte.
///
/// # Errors
/// As recvmsg(2).
pub fn bytes_before_last_piece(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let mut room = vec![0_u8; bytes.saturating_sub(1)];
    let mut vectors = [
        libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
        libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 },
    ];
    // SAFETY: all-zero bytes are a valid msghdr: no address, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len());
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `message` describes `room`, which outlives the call, and a byte at null, which cannot be written.
    match unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) } {
        received @ 0.. => Ok(received as usize),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
            error => Err(error),
        },
    }
}

impl PeekedMessage {
    /// Parses the control data: for each item a header of length, level and type, then the data.
    fn parse_control(&mut self, control: &[u64], control_bytes: usize) {
        const HEADER_BYTES: usize = 16;
        const SCM_PIDFD: i32 = 4;
        let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).take(control_bytes).collect();
        let mut at = 0;
        while let Some(header) = bytes.get(at..at + HEADER_BYTES) {
            let word = |from: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[from + byte]));
            let (length, level, kind) = (word(0) as usize, word(8), word(12));
            let Some(data) = bytes.get(at + HEADER_BYTES..at + length) else { return };
            let words: Vec<i32> =
                data.chunks_exact(4).map(|one| i32::from_ne_bytes([one[0], one[1], one[2], one[3]])).collect();
            match (level, kind, words.as_slice()) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS, fds) => self.files.extend(fds.iter().map(|fd| own_fd(*fd))),
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS, [pid, uid, gid]) => {
                    let (pid, uid, gid) = (*pid, uid.cast_unsigned(), gid.cast_unsigned());
                    self.sender = Some(MessageSender { pid, uid, gid });
                }
                (libc::SOL_SOCKET, SCM_PIDFD, [fd]) if *fd >= 0 => drop(own_fd(*fd)),
                _ => {}
            }
            at += length.next_multiple_of(mem::size_of::<usize>());
        }
    }
}

fn own_fd(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for this process, so it has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn peeked_descriptors_stay_queued() {
        let (one, other) = crate::fd_passing::seqpacket_pair().unwrap();
        let sent = crate::memfd::create("looked-at", false).unwrap();
        crate::fd_passing::send(one.as_fd(), b"two", &[sent.as_fd(), one.as_fd()]).unwrap();
        let mut room = [0; 8];
        for _ in 0..2 {
            let peeked = peek(other.as_fd(), &mut room).unwrap();
            assert_eq!((peeked.bytes, peeked.files.len(), peeked.is_missing_files), (3, 2, false));
            assert_eq!(peeked.sender, None);
        }
        assert_eq!(crate::fd_passing::receive(other.as_fd(), &mut room, 2).unwrap().1.len(), 2);
        crate::fd_passing::enable_sender_pid(other.as_fd()).unwrap();
        crate::fd_passing::send(one.as_fd(), b"whose", &[]).unwrap();
        let sender = peek(other.as_fd(), &mut room).unwrap().sender.unwrap();
        assert_eq!(sender.pid, std::process::id().cast_signed());
    }

    #[test]
    fn the_file_of_a_renamed_socket_is_found() {
        use std::os::unix::net::{UnixListener, UnixStream};
        let directory = tempfile::tempdir().unwrap();
        let (then, now) = (directory.path().join("then"), directory.path().join("now"));
        let listener = UnixListener::bind(&then).unwrap();
        std::fs::rename(&then, &now).unwrap();
        let file = open_bound_file(listener.as_fd()).unwrap().unwrap();
        assert_eq!(std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap(), now);
        assert!(open_bound_file(UnixStream::pair().unwrap().0.as_fd()).unwrap().is_none());
    }
}
