//! The course of `farfork bench pool`: a child is created in a container of the pool, one after the other and many at once; one
//! that is warm is let go on, and paused. In turn with local forks that do the same, back to back and after a while of nothing.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::cluster::Cluster;
use super::crowd::Crowd;
use super::warm::Warm;
use crate::baseline::crowd::{Answered, CROWD, ChildNetwork, LocalCrowd};
use crate::baseline::halts::{HALTS, Halts};
use crate::error::BenchError;
use crate::figure::Pace;
use crate::progress::{Show, tell};
use crate::report::pool::PoolReport;
use crate::samples::Samples;
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::Parent;
use crate::workload::sparse::SPARSE;

/// Before what is measured after a while of nothing.
const IDLE: Duration = Duration::from_millis(150);

/// Of the children of a burst, so many times as there are containers ready: most of them wait for theirs to be made.
const BURST_FACTOR: u64 = 4;

/// What is to be measured.
#[derive(Debug, Clone, Serialize)]
pub struct PoolPlan {
    /// Containers that the node keeps ready.
    pub pool: u64,
    /// Private memory of the parent, in MiB.
    pub mib: u64,
    /// Rounds in which everything is measured in turn.
    pub runs: usize,
    /// Where each sample is written to.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// Who did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    Farfork,
    /// A floor: fork(2), into the namespaces of a container that was there before.
    LocalForkIntoNamespaces,
    /// A floor: fork(2).
    LocalFork,
    /// A floor: a local fork, and the freezer of its control group.
    BareFreezer,
    /// A floor: a local fork, SIGSTOP and SIGCONT.
    Signals,
}

impl By {
    /// Who creates, and who pauses.
    const CREATING: [Self; 3] = [Self::Farfork, Self::LocalForkIntoNamespaces, Self::LocalFork];
    const PAUSING: [Self; 3] = [Self::Farfork, Self::BareFreezer, Self::Signals];
}

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// From the call for one child until it had its result.
    Create,
    /// From the call until who asked had it.
    CreateAnswered,
    /// Of more children at once than containers are ready: from the call until all had answered, divided by their number.
    CreateInBurst,
    /// From asking for a child to stand still to the answer that it does.
    Pause,
    /// From asking for it to go on to the answer.
    Unpause,
    /// From asking for it to go on until its function has answered.
    UnpauseToAnswer,
}

/// A figure, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Key {
    pub(crate) figure: Figure,
    pub(crate) by: By,
    pub(crate) pace: Pace,
}

/// Measures. `show` may end it before a step. `farfork` is the program whose `node` command the daemon is.
///
/// # Errors
/// What ended it early; a wrong result is such.
pub async fn run_pool(plan: &PoolPlan, farfork: PathBuf, show: Show<'_>) -> Result<PoolReport, BenchError> {
    let samples = Samples::written_to(plan.samples_file.as_deref())?;
    let arguments = ["--pool".to_owned(), plan.pool.to_string()];
    let mut cluster = Cluster::start_nodes(farfork, 1, true, &arguments).await?;
    let mut course = Course::begin(plan, &mut cluster, samples).await?;
    for done in 0..plan.runs {
        tell(show, done, plan.runs, "creating and pausing")?;
        course.round().await?;
    }
    let Course { warm, samples, seed, .. } = course;
    warm.end(&mut cluster).await?;
    cluster.drop_seed(&seed).await?;
    cluster.end()?;
    PoolReport::new(plan, samples)
}

/// Everything that is measured with.
struct Course<'a> {
    plan: &'a PoolPlan,
    crowd: Crowd,
    in_namespaces: LocalCrowd,
    plain: LocalCrowd,
    /// Kept running.
    _parent: Parent,
    seed: String,
    warm: Warm,
    frozen: Option<Halts>,
    stopped: Halts,
    samples: Samples<Key>,
    /// The number of the next child or request.
    next: u64,
}

impl<'a> Course<'a> {
    async fn begin(plan: &'a PoolPlan, cluster: &mut Cluster, samples: Samples<Key>) -> Result<Self, BenchError> {
        let [sparse, crowd, halts] = [SPARSE, CROWD, HALTS].map(|image| image.install(cluster.scratch()));
        let (crowd, halts) = (crowd?, halts?);
        let parent = Parent::start(&SPARSE, &sparse?, plan.mib, PAYLOAD_PATH.as_ref())?;
        let seed = cluster.prepare(parent.pid()).await?.seed;
        let node = &cluster.nodes()[0];
        let mut course = Self {
            plan,
            crowd: Crowd::at(&node.name, &node.socket, &seed, plan.mib).await?,
            in_namespaces: LocalCrowd::start(&crowd, plan.mib, (plan.pool, ChildNetwork::Private))?,
            plain: LocalCrowd::start(&crowd, plan.mib, (0, ChildNetwork::Host))?,
            _parent: parent,
            seed,
            warm: Warm::start(cluster, plan.mib, 0).await?,
            frozen: Halts::frozen(&halts, 0, 1)?,
            stopped: Halts::stopped(&halts, 0, 1)?,
            samples,
            next: 1,
        };
        course.warm.grow(cluster, 1).await?;
        // The first child brings the descriptor.
        course.create(By::Farfork, 1).await?;
        Ok(course)
    }

    async fn round(&mut self) -> Result<(), BenchError> {
        for pace in [Pace::BackToBack, Pace::Idle] {
            for by in By::CREATING {
                // Back to back is what follows the same.
                match pace {
                    Pace::Idle => tokio::time::sleep(IDLE).await,
                    Pace::BackToBack => drop(self.create(by, 1).await?),
                }
                for Answered { result, answered } in self.create(by, 1).await? {
                    self.add((Figure::Create, by, pace), result)?;
                    self.add((Figure::CreateAnswered, by, pace), answered)?;
                }
            }
            for by in By::PAUSING {
                self.pause(by, pace).await?;
            }
        }
        for by in By::CREATING {
            let answers = self.create(by, self.plan.pool * BURST_FACTOR).await?;
            let last = answers.iter().map(|answer| answer.answered).max().unwrap_or_default();
            self.add((Figure::CreateInBurst, by, Pace::BackToBack), last / answers.len().max(1) as u32)?;
        }
        Ok(())
    }

    async fn create(&mut self, by: By, count: u64) -> Result<Vec<Answered>, BenchError> {
        let first = self.next;
        self.next += count;
        match by {
            By::Farfork => self.crowd.fan_out(first, count).await,
            By::LocalForkIntoNamespaces => Ok(self.in_namespaces.fan_out(first, count)?.1),
            _ => Ok(self.plain.fan_out(first, count)?.1),
        }
    }

    /// Of several turns, what the last one took.
    async fn pause(&mut self, by: By, pace: Pace) -> Result<(), BenchError> {
        let (turns, gap) = if pace == Pace::Idle { (1, IDLE) } else { (2, Duration::ZERO) };
        let mut last = None;
        for _ in 0..turns {
            let halts = match by {
                By::BareFreezer => self.frozen.as_mut(),
                _ => Some(&mut self.stopped),
            };
            let (_, taken) = match (by, halts) {
                (By::Farfork, _) => self.warm.run(1, Duration::ZERO, gap).await?,
                (_, Some(halts)) => halts.run(1, Duration::ZERO, gap, self.next)?,
                (_, None) => return Ok(()),
            };
            self.next += 1;
            last = taken.last().copied();
        }
        let Some(turn) = last else { return Ok(()) };
        self.add((Figure::Pause, by, pace), turn.pause)?;
        self.add((Figure::Unpause, by, pace), turn.unpause)?;
        self.add((Figure::UnpauseToAnswer, by, pace), turn.answer)
    }

    fn add(&mut self, (figure, by, pace): (Figure, By, Pace), time: Duration) -> Result<(), BenchError> {
        let unwritten = |cause| BenchError::File { path: "the samples".into(), cause };
        self.samples.add(Key { figure, by, pace }, time.as_secs_f64() * 1e6).map_err(unwritten)
    }
}
