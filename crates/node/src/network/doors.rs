//! What leads into a child's own network, and out of it: the daemon's, for as long as the child lives.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use farfork_container::RunningContainer;

use super::ports::forward;
use super::{Egress, Outlet, Published};

/// Them. Dropping it closes them.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    /// Ports of the node.
    published: Vec<Published>,
    /// The way out.
    outlet: Option<Outlet>,
}

impl Doors {
    /// Ports that lead in, and no way out.
    pub(crate) fn of_ports(published: Vec<Published>) -> Self {
        Self { published, outlet: None }
    }

    /// Opens the way out of the network of a process, where one is asked for. Must be called within the runtime.
    ///
    /// # Errors
    /// As [`Outlet::open`].
    pub(crate) fn open_outlet(&mut self, egress: &Egress, process: BorrowedFd<'_>) -> io::Result<()> {
        if !egress.is_none() {
            self.outlet = Some(Outlet::open(egress.clone(), process)?);
        }
        Ok(())
    }

    /// Leads whoever comes. Never returns; what is under way ends when this is dropped.
    pub(crate) async fn serve(self, container: Arc<RunningContainer>) {
        let Self { published, outlet } = self;
        let out = async {
            if let Some(outlet) = outlet {
                outlet.serve(&container).await;
            }
        };
        tokio::join!(forward(published, &container), out);
    }
}
