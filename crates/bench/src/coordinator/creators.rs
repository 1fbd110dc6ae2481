//! Who makes children of one parent: farfork, and, as floors, local forks of as much memory that do the same.

use std::time::{Duration, Instant};

use farfork_cluster::local::LocalNode;
use serde::Serialize;

use super::cluster::Cluster;
use super::crowd::Crowd;
use crate::baseline::crowd::{Answered, CROWD, ChildNetwork, LocalCrowd};
use crate::error::BenchError;
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::Parent;
use crate::workload::sparse::SPARSE;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Creator {
    Farfork,
    /// A floor: fork(2), into the namespaces of a container that was there before.
    LocalForkIntoNamespaces,
    /// A floor: fork(2).
    LocalFork,
}

impl Creator {
    pub(crate) const ALL: [Self; 3] = [Self::Farfork, Self::LocalForkIntoNamespaces, Self::LocalFork];
}

/// All of them.
pub(super) struct Creators {
    crowd: Crowd,
    in_namespaces: LocalCrowd,
    plain: LocalCrowd,
    /// Kept running.
    _parent: Parent,
    seed: String,
    /// The number of the next child.
    next: u64,
}

/// A child that stays when it has answered.
pub(super) struct Held {
    pub(super) pid: i32,
    /// Its id, if it is farfork's; others end with the next that is made.
    pub(super) child: Option<String>,
}

impl Creators {
    /// Of a parent of so many MiB, whose children `crowd` asks the nodes for; local forks go into so many containers with such
    /// networks.
    pub(super) async fn start(
        cluster: &mut Cluster,
        mib: u64,
        containers: (u64, ChildNetwork),
        crowd: impl AsyncFnOnce(&[LocalNode], &str) -> Result<Crowd, BenchError>,
    ) -> Result<Self, BenchError> {
        let (program, floor) = (SPARSE.install(cluster.scratch())?, CROWD.install(cluster.scratch())?);
        let parent = Parent::start(&SPARSE, &program, mib, PAYLOAD_PATH.as_ref())?;
        let seed = cluster.prepare(parent.pid()).await?.seed;
        let crowd = crowd(cluster.nodes(), &seed).await?;
        let in_namespaces = LocalCrowd::start(&floor, mib, containers)?;
        let plain = LocalCrowd::start(&floor, mib, (0, ChildNetwork::Host))?;
        let mut creators = Self { crowd, in_namespaces, plain, _parent: parent, seed, next: 1 };
        // The first connects nodes, and brings the descriptor.
        creators.create(Creator::Farfork, cluster.nodes().len() as u64).await?;
        Ok(creators)
    }

    /// Has so many made at once; how long it took, and what became of each.
    pub(super) async fn create(&mut self, by: Creator, count: u64) -> Result<(Duration, Vec<Answered>), BenchError> {
        let first = self.next;
        self.next += count;
        let began = Instant::now();
        match by {
            Creator::Farfork => self.crowd.fan_out(first, count).await.map(|answers| (began.elapsed(), answers)),
            Creator::LocalForkIntoNamespaces => self.in_namespaces.fan_out(first, count),
            Creator::LocalFork => self.plain.fan_out(first, count),
        }
    }

    /// Has one made that stays.
    pub(super) async fn hold(&mut self, by: Creator) -> Result<Held, BenchError> {
        let number = self.next;
        self.next += 1;
        let local = |pid| Held { pid, child: None };
        match by {
            Creator::Farfork => self.crowd.hold(number).await.map(|(child, pid)| Held { pid, child: Some(child) }),
            Creator::LocalForkIntoNamespaces => self.in_namespaces.hold(number).map(local),
            Creator::LocalFork => self.plain.hold(number).map(local),
        }
    }

    /// Ends them, when their children have ended.
    pub(super) async fn end(self, cluster: &mut Cluster) -> Result<(), BenchError> {
        cluster.drop_seed(&self.seed).await
    }
}
