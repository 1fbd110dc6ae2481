//! Networks of children ([`NetworkMode`]), and forwarding into and out of a child's own network: published ports and
//! egress. `engine` selects the network at a child's start; `children` serves the forwarding.

mod connections;
mod egress;
mod forwarding;
mod netns;
mod ports;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use farfork_container::{Container, NetworkSpec};
use farfork_fork::restore::{RestoreError, enter_network, find_port_conflict};
use farfork_sys::namespace;
use farfork_wire::Descriptor;
use serde::{Deserialize, Serialize};

use farfork_api::v1;

pub use egress::EgressDestination;
pub(crate) use egress::{EgressPolicy, EgressProxy};
pub(crate) use forwarding::{ChildForwarding, ReopenedProxies};
pub(crate) use ports::{BoundPort, PortMapping};

/// The kind of network that a child is in.
///
/// ```text
///  private    each child alone with a loopback interface      --publish 8080:80: from the node's port 8080 to its 80
///                                                             --egress any: forwards what it sends to other hosts
///  shared     the children of one fork on this node, alone with one
///  host       the node's interfaces, addresses and ports
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NetworkMode {
    /// A network of its own.
    #[default]
    Private,
    /// A network shared by all children of its fork on this node.
    Shared,
    /// The node's network.
    Host,
}

/// The network that the children of one fork on this node share. It is created for the first child, and closed with the
/// last.
#[derive(Debug)]
pub(crate) struct FanOutNetwork {
    id: u64,
    namespace: Mutex<Option<Arc<OwnedFd>>>,
    egress_proxy: Mutex<Option<Arc<EgressProxy>>>,
}

impl Default for FanOutNetwork {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { id: LAST.fetch_add(1, Ordering::Relaxed), namespace: Mutex::default(), egress_proxy: Mutex::default() }
    }
}

impl FanOutNetwork {
    /// Number of this network, unique in this daemon.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn get_or_create(&self) -> io::Result<Arc<OwnedFd>> {
        let mut made = self.namespace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = &*made {
            return Ok(network.clone());
        }
        let thread = thread::Builder::new().name("network".to_owned()).spawn(namespace::unshare_network)?;
        let network =
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that creates the network panicked")))?;
        Ok(made.insert(Arc::new(network)).clone())
    }

    /// Returns the egress proxy of this network, and opens it on first use. All children of a fork have the same egress
    /// policy.
    fn egress_proxy(&self, egress: &EgressPolicy) -> io::Result<Arc<EgressProxy>> {
        let network = self.get_or_create()?;
        let mut egress_proxy = self.egress_proxy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(egress_proxy) = &*egress_proxy {
            return Ok(egress_proxy.clone());
        }
        let open = EgressProxy::open(egress.clone(), || namespace::enter_network(network.as_fd()))?;
        Ok(egress_proxy.insert(Arc::new(open)).clone())
    }
}

impl NetworkMode {
    /// Returns the network with which a container for this mode is built.
    pub(crate) fn to_container_spec(self) -> NetworkSpec {
        match self {
            Self::Private => NetworkSpec::Private,
            Self::Shared | Self::Host => NetworkSpec::Host,
        }
    }

    /// Makes a container that was built for this mode run its child in the mode's network.
    ///
    /// # Errors
    /// The network cannot be created or entered, or a port of the seed conflicts with the node's network. The container
    /// can no longer be used.
    pub(crate) fn enter(
        self,
        container: &Container,
        fan_out: &FanOutNetwork,
        descriptor: &Descriptor,
        limit: Duration,
    ) -> Result<(), RestoreError> {
        let object = |cause| RestoreError::CreateObject { object: "the network", cause };
        // In a container with its own users, only the privileged forker enters the network.
        if container.id_range().is_none() && container.network() != self.to_container_spec() {
            return Err(object(io::Error::other("the container was built for another network mode")));
        }
        match self {
            Self::Private => Ok(()),
            Self::Shared => {
                let network = fan_out.get_or_create().map_err(object)?;
                enter_network(container.control(), network.as_fd(), descriptor, limit)
            }
            Self::Host => match find_port_conflict(descriptor) {
                Some(socket) => Err(RestoreError::PortConflict { socket }),
                None => Ok(()),
            },
        }
    }
}

impl From<v1::Network> for NetworkMode {
    fn from(network: v1::Network) -> Self {
        match network {
            v1::Network::Unspecified | v1::Network::Private => Self::Private,
            v1::Network::Shared => Self::Shared,
            v1::Network::Host => Self::Host,
        }
    }
}

impl From<NetworkMode> for v1::Network {
    fn from(network: NetworkMode) -> Self {
        match network {
            NetworkMode::Private => Self::Private,
            NetworkMode::Shared => Self::Shared,
            NetworkMode::Host => Self::Host,
        }
    }
}
