//! UDP sockets: directions that are shut down, errors, and unfinished datagrams.

use std::io;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use farfork_sys::poll::poll_read;
use farfork_sys::sock_diag::SockDiag;
use farfork_sys::socket;
use farfork_sys::socket_abi::{
    IP_RECVERR, IPV6_RECVERR, SO_COOKIE, SO_TIMESTAMPING, SO_ZEROCOPY, SOL_IP, SOL_IPV6, SOL_SOCKET,
};
use farfork_wire::descriptor::parse_internet_address;

use super::SocketContents;

const UNFINISHED_DATAGRAM_REASON: &str = "it has sent a part of a datagram, which waits for the rest (UDP_CORK, MSG_MORE) and \
     cannot be read: not carried; let the process finish the datagram first";

const QUEUED_ERROR_REASON: &str = "it has an unread error or time stamp (MSG_ERRQUEUE, SO_ERROR), which could not be read \
     without removing it: not carried; let the process read it first";

impl SocketContents {
    pub(super) fn read_udp(&mut self, fd: BorrowedFd<'_>, diagnosis: Option<&SockDiag>) -> io::Result<()> {
        self.read_udp_shutdown(fd, diagnosis)?;
        self.read_udp_error(fd)?;
        if has_unfinished_datagram(fd)? {
            self.set_refusal(UNFINISHED_DATAGRAM_REASON.to_owned());
        }
        Ok(())
    }

    /// Reads whether a UDP socket must still report an error. The kernel shows only that there is one. On a connected socket
    /// without a queue of errors, it is ECONNREFUSED: an ICMP message has reported that the peer's port is closed.
    fn read_udp_error(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if !poll_read(fd)?.is_some_and(|readiness| readiness.has_error) {
            return Ok(());
        }
        self.is_refused = self.peer.is_some() && !has_error_queue(fd);
        if !self.is_refused {
            self.set_refusal(QUEUED_ERROR_REASON.to_owned());
        }
        Ok(())
    }

    /// Reads which directions of a UDP socket are shut down. Only a connected socket can be shut down.
    fn read_udp_shutdown(&mut self, fd: BorrowedFd<'_>, diagnosis: Option<&SockDiag>) -> io::Result<()> {
        let ends = (parse_internet_address(&self.address), self.peer.as_deref().and_then(parse_internet_address));
        if let (Some(diagnosis), (Some(own), Some(peer))) = (diagnosis, ends) {
            let cookie = socket::read_option(fd, SOL_SOCKET, SO_COOKIE)?;
            let cookie = u64::from_ne_bytes(cookie.try_into().map_err(|_| io::ErrorKind::InvalidData)?);
            // A kernel without CONFIG_INET_UDP_DIAG does not show shut-down directions.
            let shutdown = diagnosis.udp_shutdown(own, peer, cookie).unwrap_or_default();
            self.shutdown = shutdown.unwrap_or(0).into();
        }
        Ok(())
    }
}

/// Returns why a UDP socket of a running process cannot be carried in its present state.
pub(super) fn waiting_data_reason(fd: BorrowedFd<'_>) -> io::Result<Option<&'static str>> {
    let has_error = poll_read(fd)?.is_some_and(|readiness| readiness.has_error);
    if has_error && (socket::peer_address(fd).is_err() || has_error_queue(fd)) {
        return Ok(Some(QUEUED_ERROR_REASON));
    }
    Ok(has_unfinished_datagram(fd)?.then_some(UNFINISHED_DATAGRAM_REASON))
}

/// Whether a part of a datagram was sent, and waits for the rest (UDP_CORK, MSG_MORE). The memory of a finished datagram counts
/// too, until the network device has sent it, so the count is read again.
fn has_unfinished_datagram(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const READS_MAX: u32 = 5;
    const READ_INTERVAL: Duration = Duration::from_millis(1);
    for read in 0..READS_MAX {
        if read > 0 {
            thread::sleep(READ_INTERVAL);
        }
        if socket::peer_unread_bytes(fd)? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether errors and time stamps of a socket are queued (MSG_ERRQUEUE).
fn has_error_queue(fd: BorrowedFd<'_>) -> bool {
    let options =
        [(SOL_IP, IP_RECVERR), (SOL_IPV6, IPV6_RECVERR), (SOL_SOCKET, SO_TIMESTAMPING), (SOL_SOCKET, SO_ZEROCOPY)];
    let is_set =
        |(level, name)| socket::read_option(fd, level, name).is_ok_and(|value| value.iter().any(|byte| *byte != 0));
    options.into_iter().any(is_set)
}
