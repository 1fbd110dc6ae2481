//! Connects TCP sockets, and sets their options.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, connect, sockopt};

use crate::stream::{SocketAttempt, create_socket};
use crate::transport::{self, ConnectAttempt, PlainStream};

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

/// Connects to a socket address.
#[derive(Debug)]
pub struct TcpDialer {
    address: SocketAddr,
}

impl TcpDialer {
    /// To this address.
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

/// Small frames leave at once, and dead peers are noticed.
pub(super) fn set_socket_options(socket: &OwnedFd) -> io::Result<()> {
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
