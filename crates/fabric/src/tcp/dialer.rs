//! Connects TCP sockets, and sets their options.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, connect, sockopt};

use crate::stream::{SocketAttempt, create_socket};
use crate::transport::{self, ConnectAttempt, PlainStream};

/// Idle time before the first keepalive probe. A peer that vanished is noticed, and its memory freed, within half a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// Interval between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Number of unanswered probes after which the connection ends.
const KEEPALIVE_PROBES: u32 = 4;

/// How long sent bytes may stay without acknowledgement before the kernel ends a connection, in milliseconds.
const USER_TIMEOUT_MS: u32 = 30_000;

/// The congestion control algorithm. Reno does not pace, and does not estimate the bandwidth. It doubles its rate until a
/// packet is lost, which between nodes of a cluster happens never or soon.
///
/// The machine's default for the Internet may be slower on such a link. BBR paces with timers that are coarse compared with
/// a round trip of 50 µs; it reached a third of the rate in a measurement. CUBIC mistakes the delay of a busy receiver for a
/// full network. With round trips of less than some milliseconds, neither is faster when packets are lost: CUBIC then
/// behaves like Reno by design.
const CONGESTION_CONTROL: &str = "reno";

/// Connects to a socket address.
#[derive(Debug)]
pub struct TcpDialer {
    address: SocketAddr,
}

impl TcpDialer {
    /// Connects to this address.
    pub fn new(to: SocketAddr) -> Self {
        Self { address: to }
    }
}

impl transport::Dialer for TcpDialer {
    fn dial(&mut self) -> io::Result<Box<dyn ConnectAttempt>> {
        let family = if self.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = create_socket(family)?;
        set_socket_options(&socket)?;
        match connect(&socket, &self.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {
                Ok(Box::new(SocketAttempt::new(socket, |socket| Box::new(PlainStream::new(socket)))))
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Sets the options by which small frames are sent at once, and dead peers are noticed.
pub(super) fn set_socket_options(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)?;
    // Optional: every kernel has Reno, but a machine may forbid the choice.
    let _ = sockopt::set_tcp_congestion(socket, CONGESTION_CONTROL);
    Ok(())
}
