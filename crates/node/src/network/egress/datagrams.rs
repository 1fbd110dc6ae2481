//! Forwards a child's datagrams to other hosts, and the replies to the child. Each flow has two sockets: one in the
//! child's network, bound to the destination's address, and one in the node's network.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket as StdSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use farfork_api::limits::EGRESS_FLOWS_MAX;
use farfork_sys::datagram::{ReceivedDatagram, receive};
use farfork_sys::namespace;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::EgressRules;
use crate::network::netns;

/// An idle flow is removed after this time. A flow to port 53 is removed earlier: the C library repeats a DNS query
/// after 5 s.
const FLOW_IDLE_MAX: Duration = Duration::from_secs(60);
const DNS_FLOW_IDLE_MAX: Duration = Duration::from_secs(5);
const DNS_PORT: u16 = 53;

/// Pause after a failed recvmsg(2).
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Size of receive buffers: the largest IPv4 datagram fits.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// The source and the destination of a datagram.
type FlowKey = (SocketAddrV4, SocketAddrV4);

/// Forwards datagrams to allowed destinations until the egress is closed. Then forwards the datagrams that are still
/// queued. `network` keeps the children's network namespace open.
pub(super) async fn serve_datagrams(
    socket: UdpSocket,
    rules: Arc<EgressRules>,
    network: OwnedFd,
    mut closed: watch::Receiver<()>,
) {
    let (network, outside, running) = (Arc::new(network), HashMap::new(), JoinSet::new());
    let mut flows = FlowTable { rules, network, closed: closed.clone(), sockets: outside, tasks: running };
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            received = socket.async_io(Interest::READABLE, || receive(socket.as_fd(), &mut buffer)) => match received {
                Ok(ReceivedDatagram { bytes, from, to }) => flows.forward_first((from, to), &buffer[..bytes]),
                // The machine may lack memory.
                Err(error) => {
                    tracing::debug!(%error, "a child's datagram is lost");
                    sleep(RETRY_INTERVAL).await;
                }
            },
            Some(ended) = flows.tasks.join_next() => flows.remove_flow(ended.ok()),
            Err(_) = closed.changed() => break,
        }
    }
    while let Ok(ReceivedDatagram { bytes, from, to }) = receive(socket.as_fd(), &mut buffer) {
        flows.forward_first((from, to), &buffer[..bytes]);
    }
    while flows.tasks.join_next().await.is_some() {}
}

/// All flows in use.
struct FlowTable {
    rules: Arc<EgressRules>,
    network: Arc<OwnedFd>,
    closed: watch::Receiver<()>,
    /// The socket of each flow in the node's network.
    sockets: HashMap<FlowKey, Arc<UdpSocket>>,
    tasks: JoinSet<FlowKey>,
}

impl FlowTable {
    /// Forwards a datagram of a flow that has no socket in the child's network yet. The datagram may be lost, like any
    /// datagram.
    fn forward_first(&mut self, ends: FlowKey, datagram: &[u8]) {
        let outside = match self.sockets.get(&ends) {
            Some(outside) => outside.clone(),
            None if self.sockets.len() >= EGRESS_FLOWS_MAX || !self.rules.allows(ends.1) => return,
            None => match self.open_flow(ends) {
                Ok(outside) => outside,
                Err(error) => {
                    tracing::debug!(to = %ends.1, %error, "cannot open a flow for a child's datagram");
                    return;
                }
            },
        };
        let _ = send(&outside, datagram, SendFlags::DONTWAIT);
    }

    fn open_flow(&mut self, ends: FlowKey) -> io::Result<Arc<UdpSocket>> {
        let outside = StdSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        outside.set_nonblocking(true)?;
        outside.connect(ends.1)?;
        let outside = Arc::new(UdpSocket::from_std(outside)?);
        self.sockets.insert(ends, outside.clone());
        let (network, closed, task_socket) = (self.network.clone(), self.closed.clone(), outside.clone());
        self.tasks.spawn(async move {
            if let Err(error) = forward_flow(ends, &task_socket, network, closed).await {
                tracing::debug!(to = %ends.1, %error, "cannot forward a child's datagrams");
            }
            ends
        });
        Ok(outside)
    }

    /// Removes a flow whose task has ended. If the task panicked (`None`), its flow is unknown, and stays.
    fn remove_flow(&mut self, ended: Option<FlowKey>) {
        if let Some(ends) = ended {
            self.sockets.remove(&ends);
        }
    }
}

/// Forwards datagrams both ways until the flow is idle, an ICMP error reports that the destination is unreachable, or
/// the egress is closed.
async fn forward_flow(
    ends: FlowKey,
    outside: &UdpSocket,
    network: Arc<OwnedFd>,
    mut closed: watch::Receiver<()>,
) -> io::Result<()> {
    let enter = move || namespace::enter_network(network.as_fd());
    let inside = UdpSocket::from_std(netns::create_in_netns(enter, move || bind_as_destination(ends)).await?)?;
    let idle_limit = if ends.1.port() == DNS_PORT { DNS_FLOW_IDLE_MAX } else { FLOW_IDLE_MAX };
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            ready = inside.readable() => ready.and_then(|()| forward_one(&inside, outside, &mut buffer))?,
            ready = outside.readable() => ready.and_then(|()| forward_one(outside, &inside, &mut buffer))?,
            () = sleep(idle_limit) => return Ok(()),
            Err(_) = closed.changed() => return forward_queued(inside, outside, &mut buffer),
        }
    }
}

/// Forwards one datagram, or drops it if the send buffer is full.
fn forward_one(from: &UdpSocket, to: &UdpSocket, buffer: &mut [u8]) -> io::Result<()> {
    let passed = from.try_recv(buffer).and_then(|bytes| Ok(send(to, &buffer[..bytes], SendFlags::DONTWAIT)?));
    match passed {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// Forwards all queued datagrams, including those that the runtime has not reported yet.
fn forward_queued(from: UdpSocket, to: &UdpSocket, buffer: &mut [u8]) -> io::Result<()> {
    let from = from.into_std()?;
    while let Ok(bytes) = from.recv(buffer) {
        send(to, &buffer[..bytes], SendFlags::DONTWAIT)?;
    }
    Ok(())
}

/// Creates a socket in the child's network that receives the child's datagrams to the destination. Replies that are
/// sent on it have the destination's address as their source.
fn bind_as_destination((child, other): FlowKey) -> io::Result<StdSocket> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    // Another socket of the child may send to the same destination.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &other)?;
    let socket = StdSocket::from(socket);
    socket.connect(child)?;
    Ok(socket)
}
