//! Data in the sockets of a running process that a capture would refuse, for the notes of `farfork check`. The process runs
//! on, so the data may be gone at the prepare.

use std::io;
use std::os::fd::BorrowedFd;

use farfork_sys::poll::poll_read;
use farfork_sys::sock_diag::UnixSocket;
use farfork_sys::socket;
use farfork_sys::socket_abi::{AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, SOCK_DGRAM};

use super::unix::UNREAD_PENDING_REASON;
use super::{CONNECTED, LISTENING, SocketSpec, UNREAD_MESSAGES_REASON, netlink, tcp, udp};

/// Returns why a socket could not be carried in its present state. `unix` is the kernel's report about a Unix socket.
pub(in super::super) fn waiting_data_reason(
    fd: BorrowedFd<'_>,
    unix: Option<&UnixSocket>,
) -> io::Result<Option<&'static str>> {
    let spec = SocketSpec::read(fd)?;
    let is_datagram = spec.socket_type == SOCK_DGRAM;
    let has_reason = match (spec.family, unix) {
        (AF_UNIX, Some(UnixSocket { peer: None, state, .. })) if is_datagram && *state != LISTENING => {
            (poll_read(fd)?.is_some(), UNREAD_MESSAGES_REASON)
        }
        (AF_UNIX, Some(UnixSocket { peer: Some(0), state: CONNECTED, .. })) => {
            (socket::peer_unread_bytes(fd)? > 0, UNREAD_PENDING_REASON)
        }
        (AF_NETLINK, _) => (poll_read(fd)?.is_some(), netlink::UNREAD_REASON),
        (AF_INET | AF_INET6, _) if is_datagram => (udp::has_unfinished_datagram(fd)?, udp::UNFINISHED_DATAGRAM_REASON),
        (AF_INET | AF_INET6, _) => (tcp::has_unsent_data(fd, spec)?, tcp::UNSENT_REASON),
        _ => return Ok(None),
    };
    let (is_refused, reason) = has_reason;
    Ok(is_refused.then_some(reason))
}
