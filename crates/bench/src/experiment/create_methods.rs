//! Creates children of one parent by each `CreateMethod`: farfork, and as floors local forks of the same amount of
//! memory that do the same work.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::fanout_client::{FanoutClient, HeldChild};
use super::local_cluster::BenchCluster;
use super::nodes::ClusterNode;
use crate::baseline::local_fanout::{ChildLatency, ChildNetwork, LOCAL_FANOUT, LocalFanout};
use crate::error::BenchError;
use crate::machine::program::RunningProgram;
use crate::workload::sparse::SPARSE;
use crate::workload::start_parent;

/// The method that creates a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CreateMethod {
    Farfork,
    /// A floor: the kernel's work for a child in a container.
    BareContainer,
    /// A floor: fork(2) into the namespaces of an existing container.
    LocalForkIntoNamespaces,
    /// A floor: fork(2).
    LocalFork,
}

impl CreateMethod {
    /// All methods, the closest floor first.
    pub(crate) const ALL: [Self; 4] =
        [Self::Farfork, Self::BareContainer, Self::LocalForkIntoNamespaces, Self::LocalFork];

    /// The methods that every machine supports.
    pub(crate) const ON_EVERY_MACHINE: [Self; 3] = [Self::Farfork, Self::LocalForkIntoNamespaces, Self::LocalFork];

    /// The text for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Farfork => "farfork",
            Self::BareContainer => "bare containers",
            Self::LocalForkIntoNamespaces => "fork() into namespaces",
            Self::LocalFork => "fork()",
        }
    }
}

/// Creates children by each method.
pub(crate) struct CreateMethods {
    farfork: FanoutClient,
    in_namespaces: LocalFanout,
    plain: LocalFanout,
    bare: Option<LocalFanout>,
    /// The seed's parent. It is killed when this value is dropped.
    _parent: RunningProgram,
    seed: String,
    /// Number of the next child.
    next: u64,
}

impl CreateMethods {
    /// Starts a parent of `mib` MiB. `client_factory` makes the client that requests the parent's children from the
    /// nodes. Local forks enter `containers` sets of namespaces with this kind of network in turn.
    pub(crate) async fn start(
        cluster: &mut BenchCluster,
        mib: u64,
        containers: u64,
        network: ChildNetwork,
        client_factory: impl AsyncFnOnce(&[ClusterNode], &str) -> Result<FanoutClient, BenchError>,
    ) -> Result<Self, BenchError> {
        SPARSE.install(cluster.machine())?;
        LOCAL_FANOUT.install(cluster.machine())?;
        let parent = start_parent(&SPARSE, cluster.machine(), mib, None)?;
        let seed = cluster.prepare(parent.pid()).await?.seed;
        let fanout_client = client_factory(cluster.nodes(), &seed).await?;
        let in_namespaces = LocalFanout::start(cluster.machine(), mib, containers, network)?;
        let plain = LocalFanout::start(cluster.machine(), mib, 0, ChildNetwork::Host)?;
        let mut creators =
            Self { farfork: fanout_client, in_namespaces, plain, bare: None, _parent: parent, seed, next: 1 };
        // The first children connect the nodes and fetch the descriptor.
        creators.create(CreateMethod::Farfork, cluster.nodes().len() as u64).await?;
        Ok(creators)
    }

    /// Adds the floor of bare containers.
    pub(crate) fn with_bare(self, bare: LocalFanout) -> Self {
        Self { bare: Some(bare), ..self }
    }

    /// The methods that this machine supports.
    pub(crate) fn available(&self) -> Vec<CreateMethod> {
        CreateMethod::ON_EVERY_MACHINE
            .into_iter()
            .chain(self.bare.is_some().then_some(CreateMethod::BareContainer))
            .collect()
    }

    /// Creates `count` children at once. Returns how long that took, and the latency of each child.
    pub(crate) async fn create(
        &mut self,
        by: CreateMethod,
        count: u64,
    ) -> Result<(Duration, Vec<ChildLatency>), BenchError> {
        let first = self.next;
        self.next += count;
        let began = Instant::now();
        match self.local_fanout(by) {
            Some(floor) => floor.fan_out(first, count),
            None => self.farfork.fan_out(first, count).await.map(|answers| (began.elapsed(), answers)),
        }
    }

    /// The program of a floor.
    fn local_fanout(&mut self, by: CreateMethod) -> Option<&mut LocalFanout> {
        match by {
            CreateMethod::Farfork => None,
            CreateMethod::BareContainer => Some(self.bare.as_mut().expect("bare containers are available")),
            CreateMethod::LocalForkIntoNamespaces => Some(&mut self.in_namespaces),
            CreateMethod::LocalFork => Some(&mut self.plain),
        }
    }

    /// Creates a child that keeps running, by a method that every machine supports.
    pub(crate) async fn create_held(&mut self, by: CreateMethod) -> Result<HeldChild, BenchError> {
        let number = self.next;
        self.next += 1;
        match self.local_fanout(by) {
            Some(floor) => floor.fork_held(number).map(HeldChild::of_first_node),
            None => self.farfork.start_held(number).await,
        }
    }

    /// Drops the seed, and stops the programs. Their children must have ended.
    pub(crate) async fn stop(self, cluster: &mut BenchCluster) -> Result<(), BenchError> {
        cluster.drop_seed(&self.seed).await
    }
}
