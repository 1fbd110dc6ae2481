//! Who has processes stand still between two requests: farfork its children, and, as floors, a bare freezer and signals local
//! forks that do the same.

use std::time::Duration;

use super::cluster::Cluster;
use super::warm::Warm;
use crate::baseline::halts::{HALTS, Halts};
use crate::error::BenchError;
use crate::plan::by::Pauser;
use crate::workload::turns::Turn;

/// All of them.
pub(super) struct Pausers {
    warm: Warm,
    /// Not on each machine.
    frozen: Option<Halts>,
    stopped: Halts,
    /// The number of the next request to a floor.
    next: u64,
}

impl Pausers {
    /// With a parent of so many MiB for farfork's children, none of which there are yet, and so many local forks. What all of them
    /// run takes so many steps.
    pub(super) async fn start(cluster: &mut Cluster, mib: u64, steps: u64, forks: usize) -> Result<Self, BenchError> {
        let floor = HALTS.install(cluster.scratch())?;
        let frozen = Halts::frozen(&floor, steps, forks)?;
        let stopped = Halts::stopped(&floor, steps, forks)?;
        let warm = Warm::start(cluster, mib, steps).await?;
        Ok(Self { warm, frozen, stopped, next: 1 })
    }

    /// Has at least so many children of farfork's ready.
    pub(super) async fn grow(&mut self, cluster: &mut Cluster, count: usize) -> Result<(), BenchError> {
        self.warm.grow(cluster, count).await
    }

    /// Has so many take turns for so long, each at least one, with a gap before each; how long it took, and each turn. There
    /// are none where the machine has no such floor.
    pub(super) async fn run(
        &mut self,
        by: Pauser,
        parallel: usize,
        time: Duration,
        gap: Duration,
    ) -> Result<(Duration, Vec<Turn>), BenchError> {
        let halts = match by {
            Pauser::Farfork => return self.warm.run(parallel, time, gap).await,
            Pauser::BareFreezer => self.frozen.as_mut(),
            Pauser::Signals => Some(&mut self.stopped),
        };
        let Some(halts) = halts else { return Ok((time, Vec::new())) };
        let (took, turns) = halts.run(parallel, time, gap, self.next)?;
        self.next += (turns.len() * parallel) as u64;
        Ok((took, turns))
    }

    /// Ends them.
    pub(super) async fn end(self, cluster: &mut Cluster) -> Result<(), BenchError> {
        self.warm.end(cluster).await
    }
}
