//! The course of `farfork bench warm-start`: C children that stand paused, each of which runs a function whenever it is let
//! go on; in turn with local forks that are stopped by a signal and by a bare freezer. C is doubled as long as that brings more.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::cluster::Cluster;
use super::warm::Warm;
use crate::baseline::halts::{HALTS, Halts};
use crate::error::BenchError;
use crate::progress::{Show, tell};
use crate::report::warm_start::WarmStartReport;
use crate::samples::{Samples, Spread};
use crate::workload::turns::Turn;

/// Children at once, at most.
const PARALLEL_MAX: usize = 64;

/// Twice as many must bring so much more for the search to go on.
const GAIN_MIN: f64 = 1.03;

/// What is to be measured.
#[derive(Debug, Clone, Serialize)]
pub struct WarmStartPlan {
    /// How many at once; none: the best is searched for.
    pub parallel: Vec<usize>,
    /// Steps of computing of the function.
    pub steps: u64,
    /// Private memory of the parent, in MiB.
    pub mib: u64,
    /// Rounds in which everything is measured in turn.
    pub runs: usize,
    /// How long a measurement takes, in seconds.
    pub seconds: f64,
    /// Where each sample is written to.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// Who pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    Farfork,
    /// A floor: a local fork, and the freezer of its control group.
    BareFreezer,
    /// A floor: a local fork, SIGSTOP and SIGCONT.
    Signals,
}

impl By {
    pub(crate) const ALL: [Self; 3] = [Self::Farfork, Self::BareFreezer, Self::Signals];
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// Functions run a second, of all children.
    RunsPerS,
    /// From asking for a child to go on until its function's answer: of each round, the median of its turns.
    AnswerMs,
    /// Their 99th percentile.
    AnswerP99Ms,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Key {
    pub(crate) parallel: usize,
    pub(crate) by: By,
    pub(crate) figure: Figure,
}

/// Measures. `show` may end it before a step. `farfork` is the program whose `node` command the daemon is.
///
/// # Errors
/// What ended it early; a wrong answer is such.
pub async fn run_warm_start(
    plan: &WarmStartPlan,
    farfork: PathBuf,
    show: Show<'_>,
) -> Result<WarmStartReport, BenchError> {
    let samples = Samples::written_to(plan.samples_file.as_deref())?;
    let mut cluster = Cluster::start_nodes(farfork, 1, true, &[]).await?;
    let mut course = Course::begin(plan, &mut cluster, samples).await?;
    let found = match plan.parallel.as_slice() {
        [] => course.search(&mut cluster, show).await?,
        given => given.to_vec(),
    };
    let steps = plan.runs * found.len();
    for done in 0..steps {
        let parallel = found[done % found.len()];
        tell(show, done, steps, format!("{parallel} at once"))?;
        course.warm.grow(&mut cluster, parallel).await?;
        for by in By::ALL {
            course.round(by, parallel).await?;
        }
    }
    let Course { warm, samples, .. } = course;
    warm.end(&mut cluster).await?;
    cluster.end()?;
    WarmStartReport::new(plan, found, samples)
}

/// Everything that is measured with.
struct Course<'a> {
    plan: &'a WarmStartPlan,
    warm: Warm,
    frozen: Option<Halts>,
    stopped: Halts,
    samples: Samples<Key>,
    /// The number of the next request to a floor.
    next: u64,
}

impl<'a> Course<'a> {
    async fn begin(plan: &'a WarmStartPlan, cluster: &mut Cluster, samples: Samples<Key>) -> Result<Self, BenchError> {
        let floor = HALTS.install(cluster.scratch())?;
        let most = plan.parallel.iter().copied().max().unwrap_or(PARALLEL_MAX);
        let frozen = Halts::frozen(&floor, plan.steps, most)?;
        let stopped = Halts::stopped(&floor, plan.steps, most)?;
        let warm = Warm::start(cluster, plan.mib, plan.steps).await?;
        Ok(Self { plan, warm, frozen, stopped, samples, next: 1 })
    }

    /// Numbers at once, each twice the one before, up to the first that brings no more than that.
    async fn search(&mut self, cluster: &mut Cluster, show: Show<'_>) -> Result<Vec<usize>, BenchError> {
        let (mut found, mut best) = (vec![1], 0.0);
        loop {
            let parallel = found.last().copied().unwrap_or(1);
            tell(show, 0, 1, format!("{parallel} at once"))?;
            self.warm.grow(cluster, parallel).await?;
            let (took, turns) = self.turns(By::Farfork, parallel).await?;
            let per_s = turns.len() as f64 / took.as_secs_f64();
            if per_s < best * GAIN_MIN || parallel == PARALLEL_MAX {
                return Ok(found);
            }
            best = per_s;
            found.push(parallel * 2);
        }
    }

    async fn round(&mut self, by: By, parallel: usize) -> Result<(), BenchError> {
        let (took, turns) = self.turns(by, parallel).await?;
        if turns.is_empty() {
            return Ok(());
        }
        let mut answers: Vec<f64> = turns.iter().map(|turn| turn.answer.as_secs_f64() * 1e3).collect();
        answers.sort_by(f64::total_cmp);
        let p99 = answers[(answers.len() * 99).div_ceil(100) - 1];
        let median = Spread::of(&answers).map_or(0.0, |spread| spread.median);
        for (figure, value) in [
            (Figure::RunsPerS, turns.len() as f64 / took.as_secs_f64()),
            (Figure::AnswerMs, median),
            (Figure::AnswerP99Ms, p99),
        ] {
            let unwritten = |cause| BenchError::File { path: "the samples".into(), cause };
            self.samples.add(Key { parallel, by, figure }, value).map_err(unwritten)?;
        }
        Ok(())
    }

    /// No turns where the machine has no such floor.
    async fn turns(&mut self, by: By, parallel: usize) -> Result<(Duration, Vec<Turn>), BenchError> {
        let (time, gap) = (Duration::from_secs_f64(self.plan.seconds), Duration::ZERO);
        let halts = match by {
            By::Farfork => return self.warm.run(parallel, time, gap).await,
            By::BareFreezer => self.frozen.as_mut(),
            By::Signals => Some(&mut self.stopped),
        };
        let Some(halts) = halts else { return Ok((time, Vec::new())) };
        let outcome = halts.run(parallel, time, gap, self.next)?;
        self.next += (outcome.1.len() * parallel) as u64;
        Ok(outcome)
    }
}
