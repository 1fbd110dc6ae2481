//! Who makes children of one parent: farfork, and, as floors, local forks of as much memory that do the same.

use std::time::{Duration, Instant};

use farfork_cluster::local::LocalNode;

use super::cluster::Cluster;
use super::crowd::Crowd;
use crate::baseline::crowd::{Answered, CROWD, ChildNetwork, LocalCrowd};
use crate::error::BenchError;
use crate::plan::by::Creator;
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::Parent;
use crate::workload::sparse::SPARSE;

/// All of them.
pub(super) struct Creators {
    crowd: Crowd,
    in_namespaces: LocalCrowd,
    plain: LocalCrowd,
    bare: Option<LocalCrowd>,
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
        let mut creators = Self { crowd, in_namespaces, plain, bare: None, _parent: parent, seed, next: 1 };
        // The first connects nodes, and brings the descriptor.
        creators.create(Creator::Farfork, cluster.nodes().len() as u64).await?;
        Ok(creators)
    }

    /// With bare containers, too.
    pub(super) fn with_bare(self, bare: LocalCrowd) -> Self {
        Self { bare: Some(bare), ..self }
    }

    /// Those that there are.
    pub(super) fn all(&self) -> Vec<Creator> {
        Creator::EVERYWHERE.into_iter().chain(self.bare.is_some().then_some(Creator::BareContainer)).collect()
    }

    /// Has so many made at once; how long it took, and what became of each.
    pub(super) async fn create(&mut self, by: Creator, count: u64) -> Result<(Duration, Vec<Answered>), BenchError> {
        let first = self.next;
        self.next += count;
        let began = Instant::now();
        match self.floor(by) {
            Some(floor) => floor.fan_out(first, count),
            None => self.crowd.fan_out(first, count).await.map(|answers| (began.elapsed(), answers)),
        }
    }

    /// The program of a floor.
    fn floor(&mut self, by: Creator) -> Option<&mut LocalCrowd> {
        match by {
            Creator::Farfork => None,
            Creator::BareContainer => Some(self.bare.as_mut().expect("it is one of all")),
            Creator::LocalForkIntoNamespaces => Some(&mut self.in_namespaces),
            Creator::LocalFork => Some(&mut self.plain),
        }
    }

    /// Has one made that stays, by one of those that there are everywhere.
    pub(super) async fn hold(&mut self, by: Creator) -> Result<Held, BenchError> {
        let number = self.next;
        self.next += 1;
        match self.floor(by) {
            Some(floor) => floor.hold(number).map(|pid| Held { pid, child: None }),
            None => self.crowd.hold(number).await.map(|(child, pid)| Held { pid, child: Some(child) }),
        }
    }

    /// Ends them, when their children have ended.
    pub(super) async fn end(self, cluster: &mut Cluster) -> Result<(), BenchError> {
        cluster.drop_seed(&self.seed).await
    }
}
