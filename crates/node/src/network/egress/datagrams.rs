//! Datagrams of a child to others, and their answers. Each pair of ends has a socket in the child's network, which is there in the other's
//! name, and one in the node's.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket as StdSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use farfork_sys::datagram::{Datagram, receive};
use farfork_sys::namespace;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Rules;
use crate::limits::EGRESS_FLOWS_MAX;
use crate::network::inside;

/// A pair of ends that nobody uses for so long is forgotten; one that asked for a name, when the C library asks again.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
const NAME_IDLE_LIMIT: Duration = Duration::from_secs(5);
const NAME_PORT: u16 = 53;

/// Until a daemon that could not receive one tries again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// No datagram is larger.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// A datagram's ends: who sent it, and to whom.
type Ends = (SocketAddrV4, SocketAddrV4);

/// Leads them where they may go, from the network held open as `network`, until the way out is closed, with those that have been sent by then: who
/// says something and ends is heard.
pub(super) async fn serve(socket: UdpSocket, rules: Arc<Rules>, network: OwnedFd, mut closed: watch::Receiver<()>) {
    let (network, outside, running) = (Arc::new(network), HashMap::new(), JoinSet::new());
    let mut flows = Flows { rules, network, closed: closed.clone(), outside, running };
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            received = socket.async_io(Interest::READABLE, || receive(socket.as_fd(), &mut buffer)) => match received {
                Ok(Datagram { bytes, from, to }) => flows.take((from, to), &buffer[..bytes]),
                // For want of memory, say.
                Err(error) => {
                    tracing::debug!(%error, "a child's datagram is lost");
                    sleep(RETRY_INTERVAL).await;
                }
            },
            Some(ended) = flows.running.join_next() => flows.forget(ended.ok()),
            Err(_) = closed.changed() => break,
        }
    }
    while let Ok(Datagram { bytes, from, to }) = receive(socket.as_fd(), &mut buffer) {
        flows.take((from, to), &buffer[..bytes]);
    }
    while flows.running.join_next().await.is_some() {}
}

/// All pairs of ends that are in use.
struct Flows {
    rules: Arc<Rules>,
    network: Arc<OwnedFd>,
    closed: watch::Receiver<()>,
    /// Of each, the socket in the node's network.
    outside: HashMap<Ends, Arc<UdpSocket>>,
    running: JoinSet<Ends>,
}

impl Flows {
    /// Takes a datagram for which no socket is connected in the child's network, as the first one. Like any that cannot be led, it
    /// may be lost.
    fn take(&mut self, ends: Ends, datagram: &[u8]) {
        let outside = match self.outside.get(&ends) {
            Some(outside) => outside.clone(),
            None if self.outside.len() >= EGRESS_FLOWS_MAX || !self.rules.allow(ends.1) => return,
            None => match self.begin(ends) {
                Ok(outside) => outside,
                Err(error) => {
                    tracing::debug!(to = %ends.1, %error, "a child's datagram leads nowhere");
                    return;
                }
            },
        };
        let _ = send(&outside, datagram, SendFlags::DONTWAIT);
    }

    fn begin(&mut self, ends: Ends) -> io::Result<Arc<UdpSocket>> {
        let outside = StdSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        outside.set_nonblocking(true)?;
        outside.connect(ends.1)?;
        let outside = Arc::new(UdpSocket::from_std(outside)?);
        self.outside.insert(ends, outside.clone());
        let (network, closed, led) = (self.network.clone(), self.closed.clone(), outside.clone());
        self.running.spawn(async move {
            if let Err(error) = lead(ends, &led, network, closed).await {
                tracing::debug!(to = %ends.1, %error, "a child's datagrams lead nowhere");
            }
            ends
        });
        Ok(outside)
    }

    /// `ended`: `None` of one that panicked, whose ends are not known; it is as if they were in use.
    fn forget(&mut self, ended: Option<Ends>) {
        if let Some(ends) = ended {
            self.outside.remove(&ends);
        }
    }
}

/// Leads datagrams both ways until nobody sends any, or the other says that nobody is there, or the way out is closed.
async fn lead(
    ends: Ends,
    outside: &UdpSocket,
    network: Arc<OwnedFd>,
    mut closed: watch::Receiver<()>,
) -> io::Result<()> {
    let enter = move || namespace::enter_network(network.as_fd());
    let inside = UdpSocket::from_std(inside::make(enter, move || in_the_name_of(ends)).await?)?;
    let idle_limit = if ends.1.port() == NAME_PORT { NAME_IDLE_LIMIT } else { IDLE_LIMIT };
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            ready = inside.readable() => ready.and_then(|()| pass(&inside, outside, &mut buffer))?,
            ready = outside.readable() => ready.and_then(|()| pass(outside, &inside, &mut buffer))?,
            () = sleep(idle_limit) => return Ok(()),
            Err(_) = closed.changed() => return pass_all(inside, outside, &mut buffer),
        }
    }
}

/// Passes one on, unless the next is full.
fn pass(from: &UdpSocket, to: &UdpSocket, buffer: &mut [u8]) -> io::Result<()> {
    let passed = from.try_recv(buffer).and_then(|bytes| Ok(send(to, &buffer[..bytes], SendFlags::DONTWAIT)?));
    match passed {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// Passes on all that wait, whether or not the runtime has heard of them.
fn pass_all(from: UdpSocket, to: &UdpSocket, buffer: &mut [u8]) -> io::Result<()> {
    let from = from.into_std()?;
    while let Ok(bytes) = from.recv(buffer) {
        send(to, &buffer[..bytes], SendFlags::DONTWAIT)?;
    }
    Ok(())
}

/// A socket in the child's network that gets what the child sends to the other, and whose datagrams come from there.
fn in_the_name_of((child, other): Ends) -> io::Result<StdSocket> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    // Another end of the child's may speak to the same.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &other)?;
    let socket = StdSocket::from(socket);
    socket.connect(child)?;
    Ok(socket)
}
