//! Runs `farfork bench pool`: creates children in containers of the pool, one after another and in bursts, and unpauses
//! and pauses warm ones. They run in turn with local forks that do the same, back to back and after idle time.

use std::path::PathBuf;
use std::time::Duration;

use farfork_cluster::local::LocalNode;

use super::create_methods::CreateMethods;
use super::fanout_client::FanoutClient;
use super::local_cluster::BenchCluster;
use super::pause_methods::PauseMethods;
use crate::baseline::local_fanout::{ChildLatency, ChildNetwork};
use crate::error::BenchError;
use crate::figure::{IDLE, Pace};
use crate::parameters::methods::{CreateMethod, PauseMethod};
use crate::parameters::pool::{PoolFigure, PoolMethod, PoolParameters, PoolSampleKey};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::pool::PoolSummary;
use crate::workload::child_task::ChildTask;
use crate::workload::functions::FunctionOptions;
use crate::workload::warm_function::WarmWorkload;

/// Number of children of a burst for each ready container. Most of the children wait for a container to be made.
const BURST_FACTOR: u64 = 4;

/// Runs the benchmark. `show` may end it before a step. `farfork` is the program that runs the daemon.
///
/// # Errors
/// The run ends early, for example because of a wrong result.
pub async fn run_pool(
    plan: &PoolParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<PoolSummary, BenchError> {
    let samples = Samples::with_file(plan.samples_file.as_deref())?;
    let arguments = ["--pool".to_owned(), plan.pool.to_string()];
    let mut cluster = BenchCluster::start_nodes(farfork, 1, true, &arguments).await?;
    let mut pool_run = PoolRun::start(plan, &mut cluster, samples).await?;
    for done in 0..plan.runs {
        report_progress(show, done, plan.runs, "creating and pausing")?;
        pool_run.round().await?;
    }
    let PoolRun { creators, pausers, samples, .. } = pool_run;
    pausers.stop(&mut cluster).await?;
    creators.stop(&mut cluster).await?;
    cluster.stop()?;
    PoolSummary::new(plan, samples)
}

/// The state of the run.
struct PoolRun<'a> {
    plan: &'a PoolParameters,
    creators: CreateMethods,
    pausers: PauseMethods,
    samples: Samples<PoolSampleKey>,
}

impl<'a> PoolRun<'a> {
    async fn start(
        plan: &'a PoolParameters,
        cluster: &mut BenchCluster,
        samples: Samples<PoolSampleKey>,
    ) -> Result<Self, BenchError> {
        let fanout_client = async |nodes: &[LocalNode], seed: &str| {
            let [node, ..] = nodes else { unreachable!("the cluster was started with one node") };
            FanoutClient::on_node(&node.name, &node.socket, seed, ChildTask::Sparse { mib: plan.mib }).await
        };
        let mut pausers = PauseMethods::start(
            cluster,
            &WarmWorkload::Steps { steps: 0, mib: plan.mib },
            &FunctionOptions::default(),
            None,
            1,
        )
        .await?;
        pausers.ensure_children(cluster, 1).await?;
        let creators = CreateMethods::start(cluster, plan.mib, plan.pool, ChildNetwork::Private, fanout_client).await?;
        Ok(Self { plan, creators, pausers, samples })
    }

    async fn round(&mut self) -> Result<(), BenchError> {
        for pace in [Pace::BackToBack, Pace::Idle] {
            for by in CreateMethod::ON_EVERY_MACHINE {
                // Back to back: run the same operation immediately before.
                match pace {
                    Pace::Idle => tokio::time::sleep(IDLE).await,
                    Pace::BackToBack => drop(self.creators.create(by, 1).await?),
                }
                for ChildLatency { result, answer: answered } in self.creators.create(by, 1).await?.1 {
                    self.add(PoolFigure::Create, PoolMethod::Create(by), pace, result)?;
                    self.add(PoolFigure::CreateAnswered, PoolMethod::Create(by), pace, answered)?;
                }
            }
            for by in PauseMethod::REQUESTS_AND_FLOORS {
                self.measure_pause(by, pace).await?;
            }
        }
        for by in CreateMethod::ON_EVERY_MACHINE {
            let (_, answers) = self.creators.create(by, self.plan.pool * BURST_FACTOR).await?;
            let last = answers.iter().map(|answer| answer.answer).max().unwrap_or_default();
            let each = last / answers.len().max(1) as u32;
            self.add(PoolFigure::CreateInBurst, PoolMethod::Create(by), Pace::BackToBack, each)?;
        }
        Ok(())
    }

    /// Measures one turn after idle time, or the second of two back-to-back turns.
    async fn measure_pause(&mut self, by: PauseMethod, pace: Pace) -> Result<(), BenchError> {
        let (turns, gap) = if pace == Pace::Idle { (1, IDLE) } else { (2, Duration::ZERO) };
        let mut last = None;
        for _ in 0..turns {
            let (_, taken) = self.pausers.run(by, 1, Duration::ZERO, gap).await?;
            last = taken.last().copied();
        }
        let Some(function_run) = last else { return Ok(()) };
        self.add(PoolFigure::Pause, PoolMethod::Pause(by), pace, function_run.pause)?;
        self.add(PoolFigure::Unpause, PoolMethod::Pause(by), pace, function_run.unpause)?;
        self.add(PoolFigure::UnpauseToAnswer, PoolMethod::Pause(by), pace, function_run.answer)
    }

    fn add(&mut self, figure: PoolFigure, by: PoolMethod, pace: Pace, time: Duration) -> Result<(), BenchError> {
        self.samples.add(PoolSampleKey { figure, by, pace }, time.as_secs_f64() * 1e6)
    }
}
