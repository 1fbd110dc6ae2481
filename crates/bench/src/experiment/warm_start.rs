//! Runs `farfork bench warm-start`: a number of paused children, each of which runs a function when it is unpaused.
//! They run in turn with local forks that are paused by SIGSTOP or by a bare freezer. The number doubles as long as
//! that increases the rate.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::local_cluster::BenchCluster;
use super::pause_methods::PauseMethods;
use crate::error::BenchError;
use crate::parameters::methods::PauseMethod;
use crate::parameters::warm_start::{WarmStartFigure, WarmStartParameters, WarmStartSampleKey};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::{Samples, Spread};
use crate::summary::failures::FunctionFailures;
use crate::summary::warm_start::WarmStartSummary;
use crate::workload::parent_root::ParentRoot;
use crate::workload::warm_function::{FunctionRun, WarmWorkload};

/// Maximum number of children at the same time.
const PARALLEL_MAX: usize = 64;

/// The search continues only if twice as many children raise the rate at least by this factor.
const GAIN_MIN: f64 = 1.03;

/// Measures the programs one after the other. `show` may end the run before a step. `farfork` is the program that runs
/// the daemon. If a function fails, the summary has its error instead of figures, and the others are measured.
///
/// # Errors
/// A step failed for a reason other than the function, or all functions failed: the error of the first.
pub async fn run_warm_start(
    plan: &WarmStartParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<WarmStartSummary, BenchError> {
    let mut samples = Samples::with_file(plan.samples_file.as_deref())?;
    let mut cluster = BenchCluster::start_nodes(farfork.clone(), 1, true, &[]).await?;
    // Dropped before the cluster, whose scratch directory it is in.
    let root = plan.root.as_deref().map(|root| mount_root(plan, root, &farfork, &cluster)).transpose()?;
    let (mut measured, mut failures) = (Vec::new(), FunctionFailures::default());
    for workload in &plan.workloads {
        report_progress(show, 0, 1, format!("starting {}", workload.name()))?;
        let parallel = measure_workload(plan, workload, root.as_ref(), &mut cluster, &mut samples, show).await;
        if let Some(parallel) = failures.record(workload.name(), parallel)? {
            measured.push((workload.name().to_owned(), parallel));
        }
    }
    drop(root);
    cluster.stop()?;
    WarmStartSummary::new(plan, measured, samples, failures.require_other(plan.workloads.len())?)
}

/// Measures one program. Returns the numbers of parallel children that were measured.
async fn measure_workload(
    plan: &WarmStartParameters,
    workload: &WarmWorkload,
    root: Option<&ParentRoot>,
    cluster: &mut BenchCluster,
    samples: &mut Samples<WarmStartSampleKey>,
    show: ProgressCallback<'_>,
) -> Result<Vec<usize>, BenchError> {
    let mut run = WarmStartRun::start(plan, workload, root, cluster, samples).await?;
    let parallel = run.measure(cluster, show).await;
    // Also if it failed: children that still run would take the processors from the next program.
    run.pausers.stop(cluster).await?;
    parallel
}

/// Mounts the parents' root in the scratch directory of the cluster.
fn mount_root(
    plan: &WarmStartParameters,
    directory: &Path,
    farfork: &Path,
    cluster: &BenchCluster,
) -> Result<ParentRoot, BenchError> {
    let sources: Vec<_> = plan.workloads.iter().filter_map(WarmWorkload::source).collect();
    ParentRoot::mount(directory, farfork, cluster.scratch(), &sources, &plan.function_options)
}

/// One program, its children and its floors.
struct WarmStartRun<'a> {
    plan: &'a WarmStartParameters,
    workload: &'a str,
    pausers: PauseMethods,
    samples: &'a mut Samples<WarmStartSampleKey>,
}

impl<'a> WarmStartRun<'a> {
    async fn start(
        plan: &'a WarmStartParameters,
        workload: &'a WarmWorkload,
        root: Option<&ParentRoot>,
        cluster: &mut BenchCluster,
        samples: &'a mut Samples<WarmStartSampleKey>,
    ) -> Result<Self, BenchError> {
        let most = plan.parallel.iter().copied().max().unwrap_or(PARALLEL_MAX);
        let pausers = PauseMethods::start(cluster, workload, &plan.function_options, root, most).await?;
        Ok(Self { plan, workload: workload.name(), pausers, samples })
    }

    /// Measures each number of parallel children in turn. Returns the numbers.
    async fn measure(
        &mut self,
        cluster: &mut BenchCluster,
        show: ProgressCallback<'_>,
    ) -> Result<Vec<usize>, BenchError> {
        let found = match self.plan.parallel.as_slice() {
            [] => self.search_parallelism(cluster, show).await?,
            given => given.to_vec(),
        };
        let steps = self.plan.runs * found.len();
        for done in 0..steps {
            let parallel = found[done % found.len()];
            report_progress(show, done, steps, format!("{}, {parallel} at once", self.workload))?;
            self.pausers.ensure_children(cluster, parallel).await?;
            for by in PauseMethod::ALL {
                self.round(by, parallel).await?;
            }
        }
        Ok(found)
    }

    /// The numbers of parallel children, each twice the previous one, up to the first that does not raise the rate.
    async fn search_parallelism(
        &mut self,
        cluster: &mut BenchCluster,
        show: ProgressCallback<'_>,
    ) -> Result<Vec<usize>, BenchError> {
        let (mut found, mut best) = (vec![1], 0.0);
        loop {
            let parallel = found.last().copied().unwrap_or(1);
            report_progress(show, 0, 1, format!("{}, {parallel} at once", self.workload))?;
            self.pausers.ensure_children(cluster, parallel).await?;
            let (took, turns) = self.run_functions(PauseMethod::FarforkHandle, parallel).await?;
            let per_s = turns.len() as f64 / took.as_secs_f64();
            if per_s < best * GAIN_MIN || parallel == PARALLEL_MAX {
                return Ok(found);
            }
            best = per_s;
            found.push(parallel * 2);
        }
    }

    async fn round(&mut self, by: PauseMethod, parallel: usize) -> Result<(), BenchError> {
        let (took, turns) = self.run_functions(by, parallel).await?;
        // No turns: the machine lacks this floor.
        if turns.is_empty() {
            return Ok(());
        }
        let mut answers: Vec<f64> = turns.iter().map(|function_run| function_run.answer.as_secs_f64() * 1e3).collect();
        answers.sort_by(f64::total_cmp);
        let p99 = answers[(answers.len() * 99).div_ceil(100) - 1];
        let median = Spread::from_samples(&answers).map_or(0.0, |spread| spread.median);
        for (figure, value) in [
            (WarmStartFigure::RunsPerS, turns.len() as f64 / took.as_secs_f64()),
            (WarmStartFigure::AnswerMs, median),
            (WarmStartFigure::AnswerP99Ms, p99),
        ] {
            let workload = self.workload.to_owned();
            self.samples.add(WarmStartSampleKey { workload, parallel, by, figure }, value)?;
        }
        Ok(())
    }

    async fn run_functions(
        &mut self,
        by: PauseMethod,
        parallel: usize,
    ) -> Result<(Duration, Vec<FunctionRun>), BenchError> {
        let time = Duration::from_secs_f64(self.plan.seconds);
        self.pausers.run(by, parallel, time, Duration::ZERO).await
    }
}
