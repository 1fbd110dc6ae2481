//! Sockets of other processes: what they are, and what waits in them, without taking it out.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{mem, ptr};

/// Most bytes of an option that is read.
const OPTION_BYTES_MAX: usize = 256;

/// Reads an option (getsockopt(2)).
///
/// # Errors
/// As getsockopt(2): ENOPROTOOPT where the socket knows no such option.
pub fn option(socket: BorrowedFd<'_>, level: u32, name: u32) -> io::Result<Vec<u8>> {
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

/// Reads an option that is a number.
///
/// # Errors
/// As [`option`]; `InvalidData` where it is no number.
pub fn number_option(socket: BorrowedFd<'_>, level: u32, name: u32) -> io::Result<i32> {
    let value = option(socket, level, name)?;
    Ok(i32::from_ne_bytes(value.as_slice().try_into().map_err(|_| io::ErrorKind::InvalidData)?))
}

/// Sets an option that is a number (setsockopt(2)).
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

/// The socket's own address, as bind(2) takes it: the family alone where it has none.
///
/// # Errors
/// As getsockname(2).
pub fn own_address(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // SAFETY: as `address` asks for.
    address(|at, length| unsafe { libc::getsockname(socket.as_raw_fd(), at, length) })
}

/// The address that it is connected with.
///
/// # Errors
/// As getpeername(2): ENOTCONN where it is with none.
pub fn peer_address(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // SAFETY: as `address` asks for.
    address(|at, length| unsafe { libc::getpeername(socket.as_raw_fd(), at, length) })
}

/// `call` gets a place for an address, and for its length.
fn address(call: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; mem::size_of::<libc::sockaddr_storage>()];
    let mut length = bytes.len() as libc::socklen_t;
    if call(bytes.as_mut_ptr().cast(), &raw mut length) != 0 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(length as usize);
    Ok(bytes)
}

/// What one look into a socket gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peeked {
    /// How many bytes.
    pub bytes: usize,
    /// Whether the message is longer than the room for it.
    pub is_cut: bool,
    /// Whether descriptors or credentials come with it.
    pub has_ancillary: bool,
}

/// Looks at what is next in a socket, and leaves it there; descriptors that come with it are not taken either. With
/// SO_PEEK_OFF set, each look goes on behind the last.
///
/// # Errors
/// `WouldBlock` where nothing is (more); else as recvmsg(2).
pub fn peek(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Peeked> {
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: all-zero bytes are a valid msghdr: no address, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen, message.msg_control) = (&raw mut vector, 1, ptr::null_mut());
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `message` describes `into`; both outlive the call. There is no room for control data.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let has = |flag: libc::c_int| message.msg_flags & flag != 0;
    Ok(Peeked { bytes: received as usize, is_cut: has(libc::MSG_TRUNC), has_ancillary: has(libc::MSG_CTRUNC) })
}
