//! Published ports of the node. The daemon accepts a connection, and connects to the loopback address in the child's
//! network. Bytes are copied both ways until both sides have closed. After the child's end, copying continues for at
//! most `DRAIN_TIMEOUT`.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use farfork_api::failure::Failure;
use farfork_api::limits::PUBLISHED_CONNECTIONS_MAX;
use farfork_api::v1;
use farfork_container::RunningContainer;
use farfork_sys::namespace;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tonic::Code;

use super::{connections, netns};

/// A port of the node that is forwarded to a port of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortMapping {
    /// Port on all IPv4 addresses of the node.
    pub(crate) node: u16,
    /// Port in the child's own network.
    pub(crate) child: u16,
}

/// A port of the node to which this daemon is bound.
#[derive(Debug)]
pub(crate) struct BoundPort {
    port: PortMapping,
    listener: TcpListener,
}

impl BoundPort {
    /// Binds all of the ports. If one fails, no port stays bound. Must be called within the runtime.
    ///
    /// # Errors
    /// A port is in use, or this process may not bind it.
    pub(crate) fn bind_all(ports: &[PortMapping]) -> Result<Vec<Self>, Failure> {
        ports.iter().map(|port| Self::bind(*port)).collect()
    }

    fn bind(port: PortMapping) -> Result<Self, Failure> {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port.node));
        let listen = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        let listener = listen().map_err(|error| {
            Failure::new(Code::FailedPrecondition, format!("port {} of the node", port.node), error)
                .with_next_step("publish another port, one for each child on this node, or find the process that uses it with `ss -ltnp` there (`ip netns exec ff-CLUSTER-NODE ss -ltnp` for a node of `farfork up`)")
        })?;
        Ok(Self { port, listener })
    }

    /// Forwards connections into the container until the future is dropped.
    async fn serve(self, container: Arc<RunningContainer>) {
        let Self { port, listener } = self;
        let forward = |stream| forward_connection(stream, container.clone(), port);
        connections::accept_and_forward(listener, port, PUBLISHED_CONNECTIONS_MAX, std::future::pending(), forward)
            .await;
    }
}

/// Forwards connections to these ports into the container. Never returns; dropping the future ends all forwarding.
pub(super) async fn forward_ports(published: Vec<BoundPort>, container: &Arc<RunningContainer>) {
    let mut serving = JoinSet::new();
    for one in published {
        serving.spawn(one.serve(container.clone()));
    }
    while serving.join_next().await.is_some() {}
    std::future::pending().await
}

/// Forwards one connection. If the child does not listen at the port, the connection is closed.
async fn forward_connection(outside: TcpStream, container: Arc<RunningContainer>, port: PortMapping) {
    match connect_inside(container, port.child).await {
        // An error needs no log: `copy_both_ways` has reset both connections.
        Ok(inside) => drop(connections::copy_both_ways(outside, inside).await),
        Err(error) => tracing::debug!(%port, %error, "cannot forward a connection to a published port"),
    }
}

async fn connect_inside(container: Arc<RunningContainer>, port: u16) -> io::Result<TcpStream> {
    let unconnected = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        Ok(std::net::TcpStream::from(socket))
    };
    let enter = move || namespace::enter_network_of(container.init().as_fd());
    let socket = netns::create_in_netns(enter, unconnected).await?;
    TcpSocket::from_std_stream(socket).connect((Ipv4Addr::LOCALHOST, port).into()).await
}

/// Formats as in `--publish`: `NODE:CHILD`.
impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node, self.child)
    }
}

impl TryFrom<v1::PublishedPort> for PortMapping {
    type Error = Failure;

    fn try_from(port: v1::PublishedPort) -> Result<Self, Failure> {
        let v1::PublishedPort { node, child } = port;
        let number = |number: u32| u16::try_from(number).ok().filter(|number| *number > 0);
        match (number(node), number(child)) {
            (Some(node), Some(child)) => Ok(Self { node, child }),
            _ => Err(Failure::new(Code::InvalidArgument, format!("ports {node}:{child}"), "ports are 1 to 65535")),
        }
    }
}

impl From<PortMapping> for v1::PublishedPort {
    fn from(port: PortMapping) -> Self {
        Self { node: port.node.into(), child: port.child.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::{BoundPort, PortMapping, v1};

    #[test]
    fn port_numbers_are_checked() {
        let port = |node, child| PortMapping::try_from(v1::PublishedPort { node, child });
        assert_eq!(port(8080, 80).unwrap().to_string(), "8080:80");
        for wrong in [(0, 80), (80, 0), (65_536, 80)] {
            assert!(port(wrong.0, wrong.1).is_err(), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_refused() {
        let free = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let node = free.local_addr().unwrap().port();
        let refused = BoundPort::bind_all(&[PortMapping { node, child: 80 }]).unwrap_err().to_string();
        assert!(refused.contains(&format!("port {node}")) && refused.contains("in use"), "{refused}");
        drop(free);
        BoundPort::bind_all(&[PortMapping { node, child: 80 }]).unwrap();
    }
}
