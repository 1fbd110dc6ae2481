//! A pager whose owners are in a simulated world, for tests: the processes that it serves, and their faults, are real; the
//! network and the time are the world's. Whoever calls it is its loop, in one thread.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use farfork_fabric::Address;
use farfork_fabric::sim::world::NodeId;
use farfork_fabric::sim::{self, World};
use farfork_wire::ChildId;

use super::control::protocol::Reply;
use super::keeper::PagerConfig;
use super::keeper::station::{PagerError, Station};
use super::keeper::trusting::Trusting;
use super::owners::{Connect, Lane, Owners};
use super::server::Server;
use super::server::watch::Source;

/// A pager on a node of a world.
pub struct SimulatedPager<'a> {
    server: Server<'a>,
    world: World,
    node: NodeId,
}

/// Has `course` play a pager on `node`, with its files in `run_dir`.
///
/// # Errors
/// As of a real one.
pub fn play<T>(
    run_dir: &Path,
    (world, node): (&World, NodeId),
    course: impl FnOnce(&mut SimulatedPager<'_>) -> T,
) -> Result<T, PagerError> {
    let config = PagerConfig { run_dir: run_dir.to_owned(), credentials: None };
    let station = Station::open(&config)?;
    let away = world.clone();
    let connect: Connect = Box::new(move |address, _| match address {
        Address::Sim(place) => Ok(sim::connect(&away, node, *place, None)),
        other => Err(io::Error::other(format!("{other} is not of this world"))),
    });
    let server = Server::with_owners(&station, Trusting::of(None), Owners::new(connect), world.now_at(node));
    let server = server.map_err(|source| PagerError::System { action: "begin", source })?;
    Ok(course(&mut SimulatedPager { server, world: world.clone(), node }))
}

impl SimulatedPager<'_> {
    /// Serves a child from now on, as `PagerClient::begin_adoption` has it.
    ///
    /// # Errors
    /// Why it does not.
    pub fn adopt(&mut self, child: ChildId, dir: &Path, uffd_socket: OwnedFd) -> Result<(), String> {
        match self.server.adopt(child, dir, Some(uffd_socket)) {
            Reply::Done => Ok(()),
            refused => Err(format!("{refused:?}")),
        }
    }

    /// Forgets a child whose processes are gone; whether they are.
    pub fn release(&mut self, child: &ChildId) -> bool {
        self.server.release(child) != Reply::StillRunning
    }

    /// Whether the pager hears a child's page faults.
    pub fn serves(&self, child: &ChildId) -> bool {
        let served = self.server.key_of(child).and_then(|key| self.server.children.get(&key));
        served.is_some_and(|served| !served.child.spaces.is_empty())
    }

    /// Why pages of a child are lost, if some are.
    pub fn loss(&self, child: &ChildId) -> Option<&str> {
        let served = self.server.children.get(&self.server.key_of(child)?)?;
        served.child.lost.as_deref()
    }

    /// Readable while a process waits for the pager, or something came for it from its world.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.server.watch.descriptor()
    }

    /// Whether a process waits for the pager.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn is_waited_for(&mut self) -> io::Result<bool> {
        let mut ready = Vec::new();
        self.server.watch.wait(Duration::ZERO, &mut ready)?;
        Ok(ready.iter().any(|source| matches!(source, Source::Space(..) | Source::Socket(_))))
    }

    /// One round of its loop: what processes say, what came for them, what is due.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn turn(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        self.server.watch.wait(Duration::ZERO, &mut ready)?;
        self.server.now = self.world.now_at(self.node);
        for owner in self.server.owners.keys() {
            self.server.to_poll.extend([(owner, Lane::Demand), (owner, Lane::Bulk)]);
        }
        self.server.round(&ready);
        Ok(())
    }

    /// When it wants its next turn, by a clock that is right.
    pub fn next_at(&self) -> Instant {
        let server = &self.server;
        if !server.arrived.is_empty() || !server.to_poll.is_empty() || server.cached_room == 0 {
            return self.world.now();
        }
        let due = [server.owners.next_timeout(), server.retries.next_due()].into_iter().flatten();
        self.world.right_time(self.node, due.fold(server.next_sweep, Instant::min))
    }
}
