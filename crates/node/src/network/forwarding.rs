//! Forwarding into and out of a child's network: its published ports and its egress, as long as the child lives.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use farfork_container::RunningContainer;
use farfork_sys::namespace;
use farfork_sys::process_identity::ProcessIdentity;

use super::ports::forward_ports;
use super::{BoundPort, EgressPolicy, EgressProxy, FanOutNetwork, NetworkMode};

/// The forwarding of one child. Dropping it closes its ports, and its egress unless other children share it.
#[derive(Debug, Default)]
pub(crate) struct ChildForwarding {
    /// Published ports of the node.
    published: Vec<BoundPort>,
    /// The egress of the child's network.
    egress_proxy: Option<Arc<EgressProxy>>,
}

impl ChildForwarding {
    /// Opens the requested egress in the network of the process, or in the network that its fan-out shares. Must be
    /// called within the runtime.
    ///
    /// # Errors
    /// The errors of [`EgressProxy::open`].
    pub(crate) fn open(
        published: Vec<BoundPort>,
        egress: &EgressPolicy,
        network: NetworkMode,
        process: BorrowedFd<'_>,
        fan_out: &FanOutNetwork,
    ) -> io::Result<Self> {
        let egress_proxy = match network {
            _ if egress.is_none() => None,
            NetworkMode::Shared => Some(fan_out.egress_proxy(egress)?),
            NetworkMode::Private | NetworkMode::Host => Some(Arc::new(open_proxy_in(egress, process)?)),
        };
        Ok(Self { published, egress_proxy })
    }

    /// Forwards connections to the published ports. Never returns; dropping the future ends all forwarding.
    pub(crate) async fn serve(self, container: Arc<RunningContainer>) {
        let Self { published, egress_proxy: _open } = self;
        forward_ports(published, &container).await;
    }
}

fn open_proxy_in(egress: &EgressPolicy, process: BorrowedFd<'_>) -> io::Result<EgressProxy> {
    EgressProxy::open(egress.clone(), || namespace::enter_network_of(process))
}

/// Egress proxies reopened for children of an earlier daemon, by network namespace. Children that share a network share
/// its proxy.
#[derive(Debug, Default)]
pub(crate) struct ReopenedProxies(HashMap<u64, Arc<EgressProxy>>);

impl ReopenedProxies {
    /// Reopens the forwarding of the child with this process identity. If the egress cannot be opened, the child
    /// continues without egress. Must be called within the runtime.
    pub(crate) fn reopen(&mut self, published: Vec<BoundPort>, egress: &EgressPolicy, child: &str) -> ChildForwarding {
        let egress_proxy = if egress.is_none() { Ok(None) } else { self.reopen_proxy(egress, child).map(Some) };
        let egress_proxy = egress_proxy.unwrap_or_else(|error| {
            tracing::warn!(process = child, %error, "cannot reopen the egress of a child");
            None
        });
        ChildForwarding { published, egress_proxy }
    }

    fn reopen_proxy(&mut self, egress: &EgressPolicy, child: &str) -> io::Result<Arc<EgressProxy>> {
        let child: ProcessIdentity = child.parse().map_err(|_| io::ErrorKind::InvalidData)?;
        let number = fs::metadata(format!("/proc/{}/ns/net", child.pid))?.ino();
        if let Some(egress_proxy) = self.0.get(&number) {
            return Ok(egress_proxy.clone());
        }
        let process = child.open()?.ok_or(io::ErrorKind::NotFound)?;
        let egress_proxy = Arc::new(open_proxy_in(egress, process.as_fd())?);
        self.0.insert(number, egress_proxy.clone());
        Ok(egress_proxy)
    }
}
