//! Runs `farfork bench peak`: for each workload, clients on several nodes fork children of a parent on another node, one
//! after another, for a given time.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::fork_load::ForkLoad;
use super::local_cluster::{BenchCluster, node_arguments};
use crate::error::BenchError;
use crate::machine;
use crate::parameters::peak::{PeakCase, PeakFigure, PeakParameters, PeakSampleKey};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::failures::FunctionFailures;
use crate::summary::peak::PeakSummary;
use crate::workload::fork_workload::{ForkWorkload, WorkloadParent};

/// Time for which children of os.fork() are counted.
const LOCAL_FORK_TIME: Duration = Duration::from_secs(1);

/// The fraction of the available memory that all children of a load may use.
const MEMORY_PART: f64 = 0.5;

/// Measures the cases one after the other. `show` may end the run before a case. `farfork` is the program that runs
/// daemons and clients. If a function fails, the summary has its error instead of figures, and the others are measured.
///
/// # Errors
/// A step failed for a reason other than the function, or all workloads failed: the error of the first.
pub async fn run_peak(
    plan: &PeakParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<PeakSummary, BenchError> {
    let mut run =
        PeakRun { plan, farfork: &farfork, samples: Samples::with_file(plan.samples_file.as_deref())?, done: 0 };
    let mut failures = FunctionFailures::default();
    for zygotes in plan.zygotes.iter().copied() {
        // Nodes keep the default number of zygotes, or none.
        let arguments = node_arguments(&[("--zygotes", (!zygotes).then_some(0))]);
        let mut cluster = BenchCluster::start_nodes(farfork.clone(), plan.child_nodes + 1, true, &arguments).await?;
        for workload in &plan.workloads {
            if !failures.contains(workload.name()) {
                let measured = run.measure_workload(&mut cluster, workload, zygotes, show).await;
                failures.record(workload.name(), measured)?;
            }
        }
        cluster.stop()?;
    }
    PeakSummary::new(plan, run.samples, failures.require_other(plan.workloads.len())?)
}

struct PeakRun<'a> {
    plan: &'a PeakParameters,
    farfork: &'a Path,
    samples: Samples<PeakSampleKey>,
    /// Number of completed cases.
    done: usize,
}

impl PeakRun<'_> {
    /// Measures all strategies with one seed.
    async fn measure_workload(
        &mut self,
        cluster: &mut BenchCluster,
        workload: &ForkWorkload,
        zygotes: bool,
        show: ProgressCallback<'_>,
    ) -> Result<(), BenchError> {
        report_progress(show, self.done, self.steps(), format!("starting {}", workload.name()))?;
        let mut parent = workload.start(cluster.scratch(), &self.plan.function_options)?;
        let seed = cluster.prepare(parent.pid()).await?.seed;
        let measured = self.measure_strategies(cluster, &mut parent, &seed, workload, zygotes, show).await;
        // While the clients ran, this thread answered no keep-alive probes, so the node has closed the connection.
        cluster.reconnect().await?;
        // Also after a failure: children that still run would take the processors from the next workload.
        cluster.drop_seed(&seed).await?;
        measured
    }

    async fn measure_strategies(
        &mut self,
        cluster: &BenchCluster,
        parent: &mut WorkloadParent,
        seed: &str,
        workload: &ForkWorkload,
        zygotes: bool,
        show: ProgressCallback<'_>,
    ) -> Result<(), BenchError> {
        for strategy in &self.plan.strategies {
            let case = PeakCase { workload: workload.name().to_owned(), zygotes, strategy: strategy.clone() };
            self.measure_case(cluster, parent, seed, &case, show).await?;
            self.done += 1;
        }
        Ok(())
    }

    async fn measure_case(
        &mut self,
        cluster: &BenchCluster,
        parent: &mut WorkloadParent,
        seed: &str,
        case: &PeakCase,
        show: ProgressCallback<'_>,
    ) -> Result<(), BenchError> {
        if let Some(per_s) = count_local_forks(parent)? {
            self.add(case, PeakFigure::LocalForkPerS, per_s)?;
        }
        let load = ForkLoad {
            farfork: self.farfork,
            nodes: &cluster.nodes()[1..],
            clients_per_node: self.clients_per_node(parent.resident_kib()),
            seed,
            task: parent.task(),
            strategy: &case.strategy,
            seconds: self.plan.seconds,
        };
        self.add(case, PeakFigure::Clients, (load.clients_per_node * load.nodes.len()) as f64)?;
        load.warm_up().await?;
        let (done, steps) = (self.done, self.steps());
        let mut intervals = Vec::new();
        let clients = load.run(&mut |interval| {
            intervals.push(interval.per_s);
            let description = format!("{}: {:.0} children/s", case.workload, interval.per_s);
            match report_progress(show, done, steps, description) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        for per_s in intervals {
            self.add(case, PeakFigure::IntervalPerS, per_s)?;
        }
        for client in clients {
            self.add(case, PeakFigure::ClientPerS, client.per_s)?;
            self.add(case, PeakFigure::ClientP50Ms, client.p50_ms)?;
            self.add(case, PeakFigure::ClientP99Ms, client.p99_ms)?;
        }
        Ok(())
    }

    /// The number of clients in the parameters, or fewer: each child may copy the whole memory of the parent, and all
    /// must fit into memory.
    fn clients_per_node(&self, resident_kib: u64) -> usize {
        let available_kib = machine::available_mib() as f64 * 1024.0 * MEMORY_PART;
        let fitting = available_kib / (resident_kib.max(1) as f64 * self.plan.child_nodes as f64);
        (fitting as usize).clamp(1, self.plan.clients)
    }

    fn steps(&self) -> usize {
        self.plan.zygotes.len() * self.plan.workloads.len() * self.plan.strategies.len()
    }

    fn add(&mut self, case: &PeakCase, figure: PeakFigure, value: f64) -> Result<(), BenchError> {
        self.samples.add(PeakSampleKey { case: case.clone(), figure }, value)
    }
}

/// Children of os.fork() per second that call the parent's function; `None` without a function.
fn count_local_forks(parent: &mut WorkloadParent) -> Result<Option<f64>, BenchError> {
    let Some(function) = parent.function() else { return Ok(None) };
    let (began, mut children) = (Instant::now(), 0_u32);
    while children == 0 || began.elapsed() < LOCAL_FORK_TIME {
        function.call_in_local_fork()?;
        children += 1;
    }
    Ok(Some(f64::from(children) / began.elapsed().as_secs_f64()))
}
