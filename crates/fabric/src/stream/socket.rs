//! Nonblocking stream sockets: connect, send, receive, with file descriptors where the socket can pass them.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use crate::Address;
use crate::protocol::Outbound;

/// Most file descriptors of one message: an owner sends one.
const DESCRIPTORS_MAX: usize = 2;

/// When an idle connection is first probed: a peer that vanished without a word is noticed, and its memory freed,
/// within half a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// Between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Probes without an answer that end a connection.
const KEEPALIVE_PROBES: u32 = 4;

/// How long sent bytes may stay without acknowledgement before the kernel ends a connection, in milliseconds.
const USER_TIMEOUT_MS: u32 = 30_000;

/// How a connection finds its rate. Reno has no pace and no guess: it doubles until something is lost, which between
/// nodes of a cluster is never or soon. What the machine uses for the Internet may hold such a link back: BBR sends by
/// timers that are coarse beside a round trip of 50 µs (a third of the rate, where it was measured), CUBIC takes the
/// delay of a full receiver for a full network. Below some milliseconds neither would be faster where packets are lost:
/// CUBIC is then Reno by design.
const CONGESTION_CONTROL: &str = "reno";

/// Begins to connect; [`connected`] tells when that is done.
pub(crate) fn begin_connect(address: &Address) -> io::Result<OwnedFd> {
    match address {
        Address::Tcp(to) => begin_connect_tcp(to),
        Address::Shm(path) => begin_connect_unix(path),
    }
}

fn begin_connect_tcp(to: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = new_socket(family)?;
    set_tcp_options(&socket)?;
    match connect(&socket, to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

fn begin_connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket(AddressFamily::UNIX)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Small frames leave at once, and dead peers are noticed.
pub(crate) fn set_tcp_options(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)?;
    // Only a help: every kernel has it, but a machine may forbid the choice.
    let _ = sockopt::set_tcp_congestion(socket, CONGESTION_CONTROL);
    Ok(())
}

/// Whether a connection that was begun is there.
pub(crate) fn connected(socket: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        return Ok(false);
    }
    sockopt::socket_error(socket)??;
    Ok(true)
}

/// Sends as much as the socket takes; `false` when it takes nothing now.
pub(crate) fn send(socket: &OwnedFd, outbound: &Outbound) -> io::Result<Option<usize>> {
    let (slices, count, descriptor) = outbound.slices();
    let fds: [BorrowedFd<'_>; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptor) = descriptor {
        fds = [descriptor.as_fd()];
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        assert!(fits, "there is space for one descriptor");
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, &slices[..count], &mut ancillary, flags) {
            Ok(sent) => return Ok(Some(sent)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Receives what there is, `Some(0)` at the end of the stream, `None` when there is nothing now. Descriptors that
/// come along are appended to `descriptors`; without it they are refused.
pub(crate) fn receive(
    socket: &OwnedFd,
    spaces: &mut [IoSliceMut<'_>; 2],
    descriptors: Option<&mut VecDeque<OwnedFd>>,
) -> io::Result<Option<usize>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let room = if descriptors.is_some() { &mut space[..] } else { &mut [] };
    let mut ancillary = RecvAncillaryBuffer::new(room);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = loop {
        match rustix::net::recvmsg(socket, spaces, &mut ancillary, flags) {
            Ok(message) => break message,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected file descriptors came along"));
    }
    if let Some(descriptors) = descriptors {
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
    }
    Ok(Some(message.bytes))
}
