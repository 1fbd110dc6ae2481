//! What leads into a child's network, and out of it: the daemon's, for as long as the child lives.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use farfork_container::RunningContainer;
use farfork_sys::identity::ProcessIdentity;
use farfork_sys::namespace;

use super::ports::forward;
use super::{Egress, FanOut, Network, Outlet, Published};

/// Them. Dropping it closes them, but for a way out that others share.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    /// Ports of the node.
    published: Vec<Published>,
    /// The way out.
    outlet: Option<Arc<Outlet>>,
}

impl Doors {
    /// Opens a way out, where one is asked for, of the network that a child is to be in: that of the process, or of its fan-out. Must be called
    /// within the runtime.
    ///
    /// # Errors
    /// As [`Outlet::open`].
    pub(crate) fn open(
        published: Vec<Published>,
        egress: &Egress,
        (network, process, fan_out): (Network, BorrowedFd<'_>, &FanOut),
    ) -> io::Result<Self> {
        let outlet = match network {
            _ if egress.is_none() => None,
            Network::Shared => Some(fan_out.outlet(egress)?),
            Network::Private | Network::Host => Some(Arc::new(of_process(egress, process)?)),
        };
        Ok(Self { published, outlet })
    }

    /// Leads whoever comes. Never returns; what is under way ends when this is dropped.
    pub(crate) async fn serve(self, container: Arc<RunningContainer>) {
        let Self { published, outlet: _open } = self;
        forward(published, &container).await;
    }
}

fn of_process(egress: &Egress, process: BorrowedFd<'_>) -> io::Result<Outlet> {
    Outlet::open(egress.clone(), || namespace::enter_network_of(process))
}

/// Doors of an earlier daemon's children, which are opened again: children that share a network share its way out.
#[derive(Debug, Default)]
pub(crate) struct Reopened(HashMap<u64, Arc<Outlet>>);

impl Reopened {
    /// Those of a child, which is the process of that identity. Where its way out cannot be opened, it has none. Must be called within the
    /// runtime.
    pub(crate) fn doors(&mut self, published: Vec<Published>, egress: &Egress, child: &str) -> Doors {
        let outlet = if egress.is_none() { Ok(None) } else { self.outlet(egress, child).map(Some) };
        let outlet = outlet.unwrap_or_else(|error| {
            tracing::warn!(process = child, %error, "a child has no way out of its network any more");
            None
        });
        Doors { published, outlet }
    }

    fn outlet(&mut self, egress: &Egress, child: &str) -> io::Result<Arc<Outlet>> {
        let child: ProcessIdentity = child.parse().map_err(|_| io::ErrorKind::InvalidData)?;
        let number = fs::metadata(format!("/proc/{}/ns/net", child.pid))?.ino();
        if let Some(outlet) = self.0.get(&number) {
            return Ok(outlet.clone());
        }
        let process = child.open()?.ok_or(io::ErrorKind::NotFound)?;
        let outlet = Arc::new(of_process(egress, process.as_fd())?);
        self.0.insert(number, outlet.clone());
        Ok(outlet)
    }
}
