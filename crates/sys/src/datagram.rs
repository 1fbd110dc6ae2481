//! Receives IPv4 datagrams together with the address that each was sent to.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Makes the kernel pass the destination address of each datagram, for [`receive`].
///
/// # Errors
/// As setsockopt(2).
pub fn enable_destination(socket: BorrowedFd<'_>) -> io::Result<()> {
    crate::socket::set_number_option(socket, libc::IPPROTO_IP as u32, libc::IP_RECVORIGDSTADDR as u32, 1)
}

/// A received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Number of received bytes.
    pub bytes: usize,
    /// The sender.
    pub from: SocketAddrV4,
    /// The address that it was sent to.
    pub to: SocketAddrV4,
}

/// Receives a datagram from a socket with [`enable_destination`]. Bytes that do not fit are cut off.
///
/// # Errors
/// As recvmsg(2); `WouldBlock` if no datagram is queued and the socket is non-blocking; `InvalidData` if the destination is
/// missing.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
    const CONTROL_BYTES: usize = 64;
    #[repr(C, align(8))]
    struct ControlBuffer([u8; CONTROL_BYTES]);
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    // SAFETY: all-zero bytes are valid for these plain C structs.
    let (mut from, mut header): (libc::sockaddr_in, libc::msghdr) = unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    header.msg_name = (&raw mut from).cast();
    header.msg_namelen = mem::size_of_val(&from) as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES;
    // SAFETY: the kernel writes to the buffers that the header names, within their lengths; all outlive the call.
    let bytes = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
    let to = parse_destination(&header).ok_or(io::ErrorKind::InvalidData)?;
    Ok(ReceivedDatagram { bytes, from: address(from), to })
}

/// Returns the destination from the control messages of `header`, which recvmsg(2) has filled in.
fn parse_destination(header: &libc::msghdr) -> Option<SocketAddrV4> {
    // SAFETY: the header's control buffer is the one that the kernel wrote messages to, and that still exists. So the macros
    // stay inside it.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR) {
                return Some(address(libc::CMSG_DATA(found).cast::<libc::sockaddr_in>().read_unaligned()));
            }
            message = libc::CMSG_NXTHDR(header, found);
        }
        None
    }
}

fn address(raw: libc::sockaddr_in) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr)), u16::from_be(raw.sin_port))
}
