//! Networks of children: their containers' own, one for all of a fan-out, or the node's; and what leads into a child's own, and out of it.
//!
//! ```text
//!  private    each child alone with a loopback interface      --publish 8080:80: the node's port 8080 leads to its port 80
//!                                                             --egress any: what it sends to others leads out by the node
//!  shared     the children of one fork on this node, alone with one
//!  host       the node's interfaces, addresses and ports
//! ```

mod connections;
mod doors;
mod egress;
mod inside;
mod ports;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use farfork_container::{Container, NetworkSpec};
use farfork_fork::restore::{RestoreError, enter_network, taking_socket};
use farfork_sys::namespace;
use farfork_wire::Descriptor;
use serde::{Deserialize, Serialize};

use crate::api::v1;

pub(crate) use doors::{Doors, Reopened};
pub use egress::Reach;
pub(crate) use egress::{Egress, Outlet};
pub(crate) use ports::{Port, Published};

/// Which network a child is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Network {
    /// Its own.
    #[default]
    Private,
    /// That of all children of its fork on this node.
    Shared,
    /// The node's.
    Host,
}

/// The network that the children of one fork on this node share: made for the first, gone with the last.
#[derive(Debug)]
pub(crate) struct FanOut {
    number: u64,
    made: Mutex<Option<Arc<OwnedFd>>>,
    outlet: Mutex<Option<Arc<Outlet>>>,
}

impl Default for FanOut {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { number: LAST.fetch_add(1, Ordering::Relaxed), made: Mutex::default(), outlet: Mutex::default() }
    }
}

impl FanOut {
    /// Tells it from all others of this daemon.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn network(&self) -> io::Result<Arc<OwnedFd>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = &*made {
            return Ok(network.clone());
        }
        let thread = thread::Builder::new().name("network".to_owned()).spawn(namespace::unshare_network)?;
        let network = thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes it panicked")))?;
        Ok(made.insert(Arc::new(network)).clone())
    }

    /// The way out of it, which is the same for all, as they were asked for together.
    fn outlet(&self, egress: &Egress) -> io::Result<Arc<Outlet>> {
        let network = self.network()?;
        let mut outlet = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outlet) = &*outlet {
            return Ok(outlet.clone());
        }
        let open = Outlet::open(egress.clone(), || namespace::enter_network(network.as_fd()))?;
        Ok(outlet.insert(Arc::new(open)).clone())
    }
}

impl Network {
    /// The network that a container is built with for it.
    pub(crate) fn of_container(self) -> NetworkSpec {
        match self {
            Self::Private => NetworkSpec::Own,
            Self::Shared | Self::Host => NetworkSpec::Nodes,
        }
    }

    /// Has all that is to run in a container, one that was built for it, be in this network.
    ///
    /// # Errors
    /// It cannot be made or entered, or is none for such a seed; the container is of no use any more.
    pub(crate) fn enter(
        self,
        container: &Container,
        fan_out: &FanOut,
        descriptor: &Descriptor,
        limit: Duration,
    ) -> Result<(), RestoreError> {
        let object = |cause| RestoreError::Object { object: "the network", cause };
        // Where its users are its own, only who bears the child is led there.
        if container.users().is_none() && container.network() != self.of_container() {
            return Err(object(io::Error::other("the container was built for another")));
        }
        match self {
            Self::Private => Ok(()),
            Self::Shared => {
                let network = fan_out.network().map_err(object)?;
                enter_network(container.control(), network.as_fd(), descriptor, limit)
            }
            Self::Host => match taking_socket(descriptor) {
                Some(socket) => Err(RestoreError::TakingSocket { socket }),
                None => Ok(()),
            },
        }
    }
}

impl From<v1::Network> for Network {
    fn from(network: v1::Network) -> Self {
        match network {
            v1::Network::Unspecified | v1::Network::Private => Self::Private,
            v1::Network::Shared => Self::Shared,
            v1::Network::Host => Self::Host,
        }
    }
}

impl From<Network> for v1::Network {
    fn from(network: Network) -> Self {
        match network {
            Network::Private => Self::Private,
            Network::Shared => Self::Shared,
            Network::Host => Self::Host,
        }
    }
}
