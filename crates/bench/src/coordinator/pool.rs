//! The course of `farfork bench pool`: a child is created in a container of the pool, one after the other and many at once; one
//! that is warm is let go on, and paused. In turn with local forks that do the same, back to back and after a while of nothing.

use std::path::PathBuf;
use std::time::Duration;

use farfork_cluster::local::LocalNode;

use super::cluster::Cluster;
use super::creators::Creators;
use super::crowd::Crowd;
use super::pausers::Pausers;
use crate::baseline::crowd::{Answered, ChildNetwork};
use crate::error::BenchError;
use crate::figure::{IDLE, Pace};
use crate::plan::by::{Creator, Pauser};
use crate::plan::pool::{By, Figure, Key, PoolPlan};
use crate::progress::{Show, tell};
use crate::report::pool::PoolReport;
use crate::samples::Samples;

/// Of the children of a burst, so many times as there are containers ready: most of them wait for theirs to be made.
const BURST_FACTOR: u64 = 4;

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
    let Course { creators, pausers, samples, .. } = course;
    pausers.end(&mut cluster).await?;
    creators.end(&mut cluster).await?;
    cluster.end()?;
    PoolReport::new(plan, samples)
}

/// Everything that is measured with.
struct Course<'a> {
    plan: &'a PoolPlan,
    creators: Creators,
    pausers: Pausers,
    samples: Samples<Key>,
}

impl<'a> Course<'a> {
    async fn begin(plan: &'a PoolPlan, cluster: &mut Cluster, samples: Samples<Key>) -> Result<Self, BenchError> {
        let crowd = async |nodes: &[LocalNode], seed: &str| {
            let [node, ..] = nodes else { unreachable!("it was started with one") };
            Crowd::at(&node.name, &node.socket, seed, plan.mib).await
        };
        let mut pausers = Pausers::start(cluster, plan.mib, 0, 1).await?;
        pausers.grow(cluster, 1).await?;
        let creators = Creators::start(cluster, plan.mib, (plan.pool, ChildNetwork::Private), crowd).await?;
        Ok(Self { plan, creators, pausers, samples })
    }

    async fn round(&mut self) -> Result<(), BenchError> {
        for pace in [Pace::BackToBack, Pace::Idle] {
            for by in Creator::EVERYWHERE {
                // Back to back is what follows the same.
                match pace {
                    Pace::Idle => tokio::time::sleep(IDLE).await,
                    Pace::BackToBack => drop(self.creators.create(by, 1).await?),
                }
                for Answered { result, answered } in self.creators.create(by, 1).await?.1 {
                    self.add(Figure::Create, By::Creating(by), pace, result)?;
                    self.add(Figure::CreateAnswered, By::Creating(by), pace, answered)?;
                }
            }
            for by in Pauser::ALL {
                self.pause(by, pace).await?;
            }
        }
        for by in Creator::EVERYWHERE {
            let (_, answers) = self.creators.create(by, self.plan.pool * BURST_FACTOR).await?;
            let last = answers.iter().map(|answer| answer.answered).max().unwrap_or_default();
            let each = last / answers.len().max(1) as u32;
            self.add(Figure::CreateInBurst, By::Creating(by), Pace::BackToBack, each)?;
        }
        Ok(())
    }

    /// Of several turns, what the last one took.
    async fn pause(&mut self, by: Pauser, pace: Pace) -> Result<(), BenchError> {
        let (turns, gap) = if pace == Pace::Idle { (1, IDLE) } else { (2, Duration::ZERO) };
        let mut last = None;
        for _ in 0..turns {
            let (_, taken) = self.pausers.run(by, 1, Duration::ZERO, gap).await?;
            last = taken.last().copied();
        }
        let Some(turn) = last else { return Ok(()) };
        self.add(Figure::Pause, By::Pausing(by), pace, turn.pause)?;
        self.add(Figure::Unpause, By::Pausing(by), pace, turn.unpause)?;
        self.add(Figure::UnpauseToAnswer, By::Pausing(by), pace, turn.answer)
    }

    fn add(&mut self, figure: Figure, by: By, pace: Pace, time: Duration) -> Result<(), BenchError> {
        self.samples.add(Key { figure, by, pace }, time.as_secs_f64() * 1e6)
    }
}
