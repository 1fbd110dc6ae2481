//! Pauses processes between two requests by each `PauseMethod`: farfork's children, and as floors local forks that do
//! the same work, paused by a bare freezer and by SIGSTOP.

use std::time::Duration;

use serde::Serialize;

use super::local_cluster::BenchCluster;
use super::warm_children::WarmChildren;
use crate::baseline::paused_forks::{PAUSED_FORKS, PausedForks};
use crate::error::BenchError;
use crate::workload::functions::FunctionOptions;
use crate::workload::parent_root::ParentRoot;
use crate::workload::warm_function::{ExpectedValue, FunctionRun, WarmWorkload};

/// The mechanism that pauses and unpauses a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PauseMethod {
    /// Requests to the child's node.
    Farfork,
    /// The child's freezer, opened by a client of its node.
    FarforkHandle,
    /// A floor: a local fork, and the freezer of its control group.
    BareFreezer,
    /// A floor: a local fork, SIGSTOP and SIGCONT.
    Signals,
}

impl PauseMethod {
    pub(crate) const ALL: [Self; 4] = [Self::Farfork, Self::FarforkHandle, Self::BareFreezer, Self::Signals];

    /// farfork by requests, and the floors.
    pub(crate) const REQUESTS_AND_FLOORS: [Self; 3] = [Self::Farfork, Self::BareFreezer, Self::Signals];

    /// The text for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Farfork => "farfork by requests",
            Self::FarforkHandle => "farfork",
            Self::BareFreezer => "a bare freezer",
            Self::Signals => "signals",
        }
    }
}

/// One set of processes for each method.
pub(crate) struct PauseMethods {
    farfork: WarmChildren,
    /// `None` on machines without the unified hierarchy of control groups.
    freezer: Option<PausedForks>,
    /// `None` for functions: one floor is enough, and the freezer is the lower one.
    signals: Option<PausedForks>,
    /// How the values are checked.
    expected: ExpectedValue,
    /// The number of the next request to a floor.
    next: u64,
}

impl PauseMethods {
    /// Starts a parent without children, with a root of its own if `root` is given, and `forks` local forks for each floor.
    pub(crate) async fn start(
        cluster: &mut BenchCluster,
        workload: &WarmWorkload,
        function_options: &FunctionOptions,
        root: Option<&ParentRoot>,
        forks: usize,
    ) -> Result<Self, BenchError> {
        PAUSED_FORKS.install(cluster.machine())?;
        let parent = workload.start(cluster.machine(), function_options, root)?;
        let expected = parent.expected.clone();
        // Make the seed first: it would include local forks of the parent.
        let mut farfork = WarmChildren::start(cluster, parent).await?;
        let (freezer, signals) = match (workload, farfork.function()) {
            (WarmWorkload::Steps { steps, .. }, _) => {
                let frozen = PausedForks::start_frozen(cluster.machine(), *steps, forks)?;
                (frozen, Some(PausedForks::start_stopped(cluster.machine(), *steps, forks)?))
            }
            (_, Some(function)) => {
                let (machine, checked) = (cluster.machine(), expected.clone());
                let started = PausedForks::start_frozen_functions(machine, function, checked, forks);
                (started.map_err(|error| expected.describe_failure(error))?, None)
            }
            (_, None) => (None, None),
        };
        Ok(Self { farfork, freezer, signals, expected, next: 1 })
    }

    /// Starts children until there are at least `count`.
    pub(crate) async fn ensure_children(&mut self, cluster: &mut BenchCluster, count: usize) -> Result<(), BenchError> {
        let ensured = self.farfork.ensure_children(cluster, count).await;
        ensured.map_err(|error| self.expected.describe_failure(error))
    }

    /// Makes `parallel` processes work concurrently for `time`. Each runs turns one after the other, at least one, with
    /// a gap before each. Returns the elapsed time and all turns; no turns if the machine lacks this floor.
    pub(crate) async fn run(
        &mut self,
        by: PauseMethod,
        parallel: usize,
        time: Duration,
        gap: Duration,
    ) -> Result<(Duration, Vec<FunctionRun>), BenchError> {
        let run = self.run_by(by, parallel, time, gap).await;
        run.map_err(|error| self.expected.describe_failure(error))
    }

    async fn run_by(
        &mut self,
        by: PauseMethod,
        parallel: usize,
        time: Duration,
        gap: Duration,
    ) -> Result<(Duration, Vec<FunctionRun>), BenchError> {
        let halts = match by {
            PauseMethod::Farfork => return self.farfork.run(parallel, time, gap).await,
            PauseMethod::FarforkHandle => return self.farfork.run_with_handles(parallel, time, gap).await,
            PauseMethod::BareFreezer => self.freezer.as_mut(),
            PauseMethod::Signals => self.signals.as_mut(),
        };
        let Some(halts) = halts else { return Ok((time, Vec::new())) };
        let (took, turns) = halts.run(parallel, time, gap, self.next)?;
        self.next += (turns.len() * parallel) as u64;
        Ok((took, turns))
    }

    /// Stops the processes.
    pub(crate) async fn stop(self, cluster: &mut BenchCluster) -> Result<(), BenchError> {
        self.farfork.stop(cluster).await
    }
}
