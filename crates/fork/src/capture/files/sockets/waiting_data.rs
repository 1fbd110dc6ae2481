//! Data in the sockets of a running process that a capture would refuse, for the notes of `farfork check`. The process runs
//! on, so the data may be gone at the prepare.

use std::borrow::Cow;
use std::io;
use std::os::fd::BorrowedFd;

use farfork_sys::poll::poll_read;
use farfork_sys::sock_diag::{SockDiag, UnixSocket};
use farfork_sys::socket;
use farfork_sys::socket_abi::{AF_INET, AF_INET6, AF_NETLINK, SOCK_DGRAM, SOCK_STREAM};

use super::unix::{HIDDEN_RESET_REASON, UNREAD_PENDING_REASON, closed_clients_reason};
use super::{CONNECTED, LISTENING, SocketSpec, UNREAD_MESSAGES_REASON, URGENT_DATA_REASON, netlink, tcp, udp};

/// Returns why a socket could not be carried in its present state. `unix` is the kernel's report about a Unix socket.
pub(in super::super) fn waiting_data_reason(
    fd: BorrowedFd<'_>,
    unix: Option<&UnixSocket>,
    diagnosis: &SockDiag,
) -> io::Result<Option<Cow<'static, str>>> {
    let spec = SocketSpec::read(fd)?;
    if let Some(unix) = unix {
        return unix_reason(fd, spec, unix);
    }
    let reason = match spec.family {
        AF_NETLINK => poll_read(fd)?.is_some().then_some(netlink::UNREAD_REASON),
        AF_INET | AF_INET6 if spec.socket_type == SOCK_DGRAM => udp::waiting_data_reason(fd)?,
        AF_INET | AF_INET6 if spec.is_tcp() => tcp::waiting_data_reason(fd, spec, diagnosis)?,
        _ => None,
    };
    Ok(reason.map(Cow::Borrowed))
}

fn unix_reason(fd: BorrowedFd<'_>, spec: SocketSpec, unix: &UnixSocket) -> io::Result<Option<Cow<'static, str>>> {
    if unix.state == LISTENING {
        return Ok(closed_clients_reason(unix).map(Cow::Owned));
    }
    let readiness = poll_read(fd)?;
    let is_hidden = |unread| readiness.is_some_and(|it| it.has_error) && spec.socket_type != SOCK_STREAM && unread > 0;
    let reason = match unix.peer {
        _ if readiness.is_some_and(|it| it.is_urgent) => Some(URGENT_DATA_REASON),
        None if spec.socket_type == SOCK_DGRAM => readiness.map(|_| UNREAD_MESSAGES_REASON),
        Some(0) if unix.state == CONNECTED && socket::peer_unread_bytes(fd)? > 0 => Some(UNREAD_PENDING_REASON),
        _ if is_hidden(rustix::io::ioctl_fionread(fd)?) => Some(HIDDEN_RESET_REASON),
        _ => None,
    };
    Ok(reason.map(Cow::Borrowed))
}
