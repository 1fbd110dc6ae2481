//! Pauses processes between two requests by each `PauseMethod`: farfork its children, and as floors a bare freezer and
//! SIGSTOP local forks that do the same work.

use std::time::Duration;

use super::local_cluster::BenchCluster;
use super::warm_children::WarmChildren;
use crate::baseline::paused_forks::{PAUSED_FORKS, PausedForks};
use crate::error::BenchError;
use crate::parameters::methods::PauseMethod;
use crate::workload::warm_function::FunctionRun;

/// All of them.
pub(super) struct PauseMethods {
    farfork: WarmChildren,
    /// Not on each machine.
    freezer: Option<PausedForks>,
    signals: PausedForks,
    /// The number of the next request to a floor.
    next: u64,
}

impl PauseMethods {
    /// With a parent of so many MiB for farfork's children, none of which there are yet, and so many local forks. What all of them
    /// run takes so many steps.
    pub(super) async fn start(
        cluster: &mut BenchCluster,
        mib: u64,
        steps: u64,
        forks: usize,
    ) -> Result<Self, BenchError> {
        let floor = PAUSED_FORKS.install(cluster.scratch())?;
        let frozen = PausedForks::start_frozen(&floor, steps, forks)?;
        let stopped = PausedForks::start_stopped(&floor, steps, forks)?;
        let warm = WarmChildren::start(cluster, mib, steps).await?;
        Ok(Self { farfork: warm, freezer: frozen, signals: stopped, next: 1 })
    }

    /// Has at least so many children of farfork's ready.
    pub(super) async fn ensure_children(&mut self, cluster: &mut BenchCluster, count: usize) -> Result<(), BenchError> {
        self.farfork.ensure_children(cluster, count).await
    }

    /// Has so many take turns for so long, each at least one, with a gap before each; how long it took, and each turn. There
    /// are none where the machine has no such floor.
    pub(super) async fn run(
        &mut self,
        by: PauseMethod,
        parallel: usize,
        time: Duration,
        gap: Duration,
    ) -> Result<(Duration, Vec<FunctionRun>), BenchError> {
        let halts = match by {
            PauseMethod::Farfork => return self.farfork.run(parallel, time, gap).await,
            PauseMethod::BareFreezer => self.freezer.as_mut(),
            PauseMethod::Signals => Some(&mut self.signals),
        };
        let Some(halts) = halts else { return Ok((time, Vec::new())) };
        let (took, turns) = halts.run(parallel, time, gap, self.next)?;
        self.next += (turns.len() * parallel) as u64;
        Ok((took, turns))
    }

    /// Ends them.
    pub(super) async fn stop(self, cluster: &mut BenchCluster) -> Result<(), BenchError> {
        self.farfork.stop(cluster).await
    }
}
