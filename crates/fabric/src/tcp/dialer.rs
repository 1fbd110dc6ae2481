//! Connects TCP sockets, and sets their options.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, connect, sockopt};

use crate::stream::{SocketAttempt, create_socket};
use crate::transport::{self, ConnectAttempt, PlainStream};

/// Idle time before the first TCP keepalive probe. A peer whose machine has failed is detected, and its connection
/// closed, within half a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// Interval between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Number of unanswered probes after which the connection ends.
const KEEPALIVE_PROBES: u32 = 4;

/// Longest time that sent bytes may stay unacknowledged before the kernel closes the connection, in milliseconds.
const USER_TIMEOUT_MS: u32 = 30_000;

/// The congestion control algorithm. Reno neither paces nor estimates the bandwidth. It starts by doubling its rate in
/// each round trip until a packet is lost. With the short round trips of a cluster, it soon reaches the full rate.
///
/// The machine's default, chosen for the Internet, may be slower on such a link. BBR paces with timers that are coarse
/// compared with a round trip of 50 µs; in a measurement, it reached a third of the rate. CUBIC mistakes the delay of a
/// busy receiver for a full network. When packets are lost, CUBIC is no faster: with round trips under a few
/// milliseconds, it behaves like Reno by design.
const CONGESTION_CONTROL: &str = "reno";

/// Connects to a socket address.
#[derive(Debug)]
pub struct TcpDialer {
    address: SocketAddr,
}

impl TcpDialer {
    /// Creates a dialer for this address.
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

/// Sets the socket options: small frames are sent at once (TCP_NODELAY), and dead peers are detected (keepalive,
/// TCP_USER_TIMEOUT).
pub(super) fn set_socket_options(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)?;
    // Ignore errors: a machine may restrict the choice (net.ipv4.tcp_allowed_congestion_control).
    let _ = sockopt::set_tcp_congestion(socket, CONGESTION_CONTROL);
    Ok(())
}
