//! A pager whose owners are in a simulated world, for tests. The processes that it serves, and their faults, are real.
//! Network and clock are simulated. The test calls the rounds of the pager's loop, in one thread.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use farfork_fabric::Address;
use farfork_fabric::sim::world::NodeId;
use farfork_fabric::sim::{self, World};
use farfork_wire::ChildId;

use super::control::protocol::PagerReply;
use super::keeper::PagerConfig;
use super::keeper::context::{KeeperContext, PagerError};
use super::keeper::trust_policy::TrustPolicy;
use super::owner_connections::{Lane, OwnerConnections, OwnerConnector};
use super::server::PagerServer;
use super::server::event_poller::EventSource;

/// A pager on a node of a simulated world.
pub struct SimulatedPager<'a> {
    server: PagerServer<'a>,
    world: World,
    node: NodeId,
}

/// Runs `scenario` with a pager on `node`, whose files are in `run_dir`.
///
/// # Errors
/// As for a real pager.
pub fn run_simulated_pager<T>(
    run_dir: &Path,
    world: &World,
    node: NodeId,
    scenario: impl FnOnce(&mut SimulatedPager<'_>) -> T,
) -> Result<T, PagerError> {
    let config = PagerConfig { run_dir: run_dir.to_owned(), credentials: None };
    let keeper_context = KeeperContext::open(&config)?;
    let peer_world = world.clone();
    let connect: OwnerConnector = Box::new(move |address, _| match address {
        Address::Sim(peer) => Ok(sim::connect(&peer_world, node, *peer, None)),
        other => Err(io::Error::other(format!("{other} is not an address of the simulated world"))),
    });
    let server = PagerServer::with_owners(
        &keeper_context,
        TrustPolicy::from_credentials(None),
        OwnerConnections::new(connect),
        world.local_time(node),
    );
    let server = server.map_err(|source| PagerError::System { action: "start", source })?;
    Ok(scenario(&mut SimulatedPager { server, world: world.clone(), node }))
}

impl SimulatedPager<'_> {
    /// Serves a child from now on, as `PagerClient::start_adoption`.
    ///
    /// # Errors
    /// The reason why the pager refuses.
    pub fn adopt(&mut self, child: ChildId, dir: &Path, uffd_socket: OwnedFd) -> Result<(), String> {
        match self.server.handle_adopt(child, dir, Some(uffd_socket)) {
            PagerReply::Done => Ok(()),
            refused => Err(format!("{refused:?}")),
        }
    }

    /// Releases a child. Returns whether its processes are gone.
    pub fn release(&mut self, child: &ChildId) -> bool {
        self.server.handle_release(child) != PagerReply::StillRunning
    }

    /// Whether the pager reads a child's page faults.
    pub fn is_serving(&self, child: &ChildId) -> bool {
        let served = self.server.child_key(child).and_then(|key| self.server.children.get(&key));
        served.is_some_and(|served| !served.child.spaces.is_empty())
    }

    /// Returns the reason if pages of a child are lost.
    pub fn loss_reason(&self, child: &ChildId) -> Option<&str> {
        let served = self.server.children.get(&self.server.child_key(child)?)?;
        served.child.loss_reason.as_deref()
    }

    /// Returns a descriptor that is readable while a process waits for the pager, or a message has arrived in the
    /// simulated world.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.server.poller.descriptor()
    }

    /// Whether a process waits for the pager.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn has_waiting_process(&mut self) -> io::Result<bool> {
        let mut ready = Vec::new();
        self.server.poller.wait(Duration::ZERO, &mut ready)?;
        Ok(ready.iter().any(|source| matches!(source, EventSource::Space(..) | EventSource::UffdSocket(_))))
    }

    /// Runs one round of the pager's loop: handles messages of processes, replies of owners, and due tasks.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn run_round(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        self.server.poller.wait(Duration::ZERO, &mut ready)?;
        self.server.now = self.world.local_time(self.node);
        for owner in self.server.owners.keys() {
            self.server.lanes_to_poll.extend([(owner, Lane::Demand), (owner, Lane::Bulk)]);
        }
        self.server.run_round(&ready);
        Ok(())
    }

    /// Returns when the next round is due, by the simulated clock.
    pub fn next_round_at(&self) -> Instant {
        let server = &self.server;
        if !server.completed_reads.is_empty() || !server.lanes_to_poll.is_empty() || server.cache_install_budget == 0 {
            return self.world.now();
        }
        let due = [server.owners.next_timeout(), server.retries.next_due()].into_iter().flatten();
        self.world.to_world_time(self.node, due.fold(server.next_sweep, Instant::min))
    }
}
