//! Runs `farfork bench warm-start`: C paused children, each of which runs a function when it is unpaused. They
//! alternate with local forks that are paused by SIGSTOP or by a bare freezer. C doubles as long as that increases the
//! rate.

use std::path::PathBuf;
use std::time::Duration;

use super::local_cluster::BenchCluster;
use super::pause_methods::PauseMethods;
use crate::error::BenchError;
use crate::parameters::methods::PauseMethod;
use crate::parameters::warm_start::{WarmStartFigure, WarmStartParameters, WarmStartSampleKey};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::{Samples, Spread};
use crate::summary::warm_start::WarmStartSummary;
use crate::workload::warm_function::FunctionRun;

/// Children at once, at most.
const PARALLEL_MAX: usize = 64;

/// Twice as many must bring so much more for the search to go on.
const GAIN_MIN: f64 = 1.03;

/// Measures. `show` may end it before a step. `farfork` is the program whose `node` command the daemon is.
///
/// # Errors
/// What ended it early; a wrong answer is such.
pub async fn run_warm_start(
    plan: &WarmStartParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<WarmStartSummary, BenchError> {
    let samples = Samples::with_file(plan.samples_file.as_deref())?;
    let mut cluster = BenchCluster::start_nodes(farfork, 1, true, &[]).await?;
    let mut warm_start_run = WarmStartRun::start(plan, &mut cluster, samples).await?;
    let found = match plan.parallel.as_slice() {
        [] => warm_start_run.search_parallelism(&mut cluster, show).await?,
        given => given.to_vec(),
    };
    let steps = plan.runs * found.len();
    for done in 0..steps {
        let parallel = found[done % found.len()];
        report_progress(show, done, steps, format!("{parallel} at once"))?;
        warm_start_run.pausers.ensure_children(&mut cluster, parallel).await?;
        for by in PauseMethod::ALL {
            warm_start_run.round(by, parallel).await?;
        }
    }
    let WarmStartRun { pausers, samples, .. } = warm_start_run;
    pausers.stop(&mut cluster).await?;
    cluster.stop()?;
    WarmStartSummary::new(plan, found, samples)
}

/// Everything that is measured with.
struct WarmStartRun<'a> {
    plan: &'a WarmStartParameters,
    pausers: PauseMethods,
    samples: Samples<WarmStartSampleKey>,
}

impl<'a> WarmStartRun<'a> {
    async fn start(
        plan: &'a WarmStartParameters,
        cluster: &mut BenchCluster,
        samples: Samples<WarmStartSampleKey>,
    ) -> Result<Self, BenchError> {
        let most = plan.parallel.iter().copied().max().unwrap_or(PARALLEL_MAX);
        let pausers = PauseMethods::start(cluster, plan.mib, plan.steps, most).await?;
        Ok(Self { plan, pausers, samples })
    }

    /// Numbers at once, each twice the one before, up to the first that brings no more than that.
    async fn search_parallelism(
        &mut self,
        cluster: &mut BenchCluster,
        show: ProgressCallback<'_>,
    ) -> Result<Vec<usize>, BenchError> {
        let (mut found, mut best) = (vec![1], 0.0);
        loop {
            let parallel = found.last().copied().unwrap_or(1);
            report_progress(show, 0, 1, format!("{parallel} at once"))?;
            self.pausers.ensure_children(cluster, parallel).await?;
            let (took, turns) = self.run_functions(PauseMethod::Farfork, parallel).await?;
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
        // The machine has no such floor.
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
            self.samples.add(WarmStartSampleKey { parallel, by, figure }, value)?;
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
