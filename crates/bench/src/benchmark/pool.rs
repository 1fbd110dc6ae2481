//! `farfork bench pool`: creates children in containers of the pool, one after another and in bursts, and unpauses and
//! pauses warm ones. They run in turn with local forks that do the same, back to back and after idle time.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{BenchResults, BenchRun, Benchmark};
use crate::baseline::local_fanout::{ChildLatency, ChildNetwork};
use crate::error::BenchError;
use crate::experiment::create_methods::{CreateMethod, CreateMethods};
use crate::experiment::fanout_client::FanoutClient;
use crate::experiment::local_cluster::BenchCluster;
use crate::experiment::nodes::ClusterNode;
use crate::experiment::pause_methods::{PauseMethod, PauseMethods};
use crate::figure::{Figure, IDLE, Pace};
use crate::options::{SamplesOption, count, size};
use crate::report::section::ReportSection;
use crate::report::table::{ReportCell, ReportTable};
use crate::samples::FigureSamples;
use crate::workload::child_task::ChildTask;
use crate::workload::functions::FunctionOptions;
use crate::workload::warm_function::WarmWorkload;

/// Number of children of a burst for each ready container. Most of the children wait for a container to be made.
const BURST_FACTOR: u64 = 4;

/// Measure how long a node takes to create a child in a ready container, and to pause and unpause a child.
///
/// The benchmark starts a node on this machine. In each round it creates a child back to back with another child, a child
/// after 150 ms of idleness, and four times as many children at the same time as containers are ready. It also sends a
/// request to a paused child, unpauses the child, and pauses it again when it has answered. It checks every result.
///
/// The report has floors next to each figure, measured in turn in the same run. For creation, these are local forks of the
/// same memory, alone and into the namespaces of an existing container. For a pause, these are local forks that are stopped
/// by SIGSTOP, and by the freezer of a control group alone.
#[derive(Debug, Args, Serialize)]
#[command(after_help = "\
Examples:
  farfork bench pool
  farfork bench pool --pool 32 --runs 50 --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a result was wrong, 2 wrong usage.")]
pub(crate) struct BenchPool {
    /// Number of containers that the node keeps ready.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = size(1..=256))]
    pool: u64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = size(1..=65_536))]
    mib: u64,
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = count(1..=10_000))]
    runs: usize,
    #[command(flatten)]
    #[serde(skip)]
    samples: SamplesOption,
}

/// Time from the call for one child until the child has its result.
const CREATE: Figure = Figure::lower("create", "call to result", "µs");
/// Time from the call for one child until the requester has the child's result.
const CREATE_ANSWERED: Figure = Figure::lower("create_answered", "the same, received", "µs");
/// Time per child of a burst: from the call until all have answered.
const CREATE_IN_BURST: Figure = Figure::lower("create_in_burst", "in a burst", "µs");
/// Time from the request to pause a child to the answer.
const PAUSE: Figure = Figure::lower("pause", "pause", "µs");
/// Time from the request to unpause a child to the answer.
const UNPAUSE: Figure = Figure::lower("unpause", "unpause", "µs");
/// Time from the request to unpause a child to the answer of its function.
const UNPAUSE_TO_ANSWER: Figure = Figure::lower("unpause_to_answer", "unpause to answer", "µs");

/// The rows of the tables of creating and of pausing.
const CREATE_FIGURES: [Figure; 3] = [CREATE, CREATE_ANSWERED, CREATE_IN_BURST];
const PAUSE_FIGURES: [Figure; 3] = [PAUSE, UNPAUSE, UNPAUSE_TO_ANSWER];

/// The measured system, and the state before the measurement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct PoolCase {
    by: PoolMethod,
    pace: Pace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
enum PoolMethod {
    Create(CreateMethod),
    Pause(PauseMethod),
}

impl Benchmark for BenchPool {
    const COMMAND: &'static str = "bench pool";
    const HOSTS_REFUSAL: Option<&'static str> =
        Some("it pauses children by their control groups, which only this machine has");

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let arguments = ["--pool".to_owned(), self.pool.to_string()];
        let mut cluster = BenchCluster::start_nodes(&run.machines, 1, true, &arguments).await?;
        let mut pool_run = PoolRun::start(self, &mut cluster).await?;
        run.expect_steps(self.runs);
        for _ in 0..self.runs {
            run.show("creating and pausing")?;
            pool_run.measure_round().await?;
            run.complete_step();
        }
        let PoolRun { creators, pausers, samples, .. } = pool_run;
        pausers.stop(&mut cluster).await?;
        creators.stop(&mut cluster).await?;
        cluster.stop()?;
        Ok(self.results(&samples))
    }
}

/// The state of the run.
struct PoolRun<'a> {
    plan: &'a BenchPool,
    creators: CreateMethods,
    pausers: PauseMethods,
    samples: FigureSamples<PoolCase>,
}

impl<'a> PoolRun<'a> {
    async fn start(plan: &'a BenchPool, cluster: &mut BenchCluster) -> Result<Self, BenchError> {
        let samples = FigureSamples::create(&plan.samples)?;
        let fanout_client = async |nodes: &[ClusterNode], seed: &str| {
            let [node, ..] = nodes else { unreachable!("the cluster was started with one node") };
            Ok(FanoutClient::on_node(&node.name, node.connect().await?, seed, ChildTask::Sparse { mib: plan.mib }))
        };
        let workload = WarmWorkload::Steps { steps: 0, mib: plan.mib };
        let mut pausers = PauseMethods::start(cluster, &workload, &FunctionOptions::default(), None, 1).await?;
        pausers.ensure_children(cluster, 1).await?;
        let creators = CreateMethods::start(cluster, plan.mib, plan.pool, ChildNetwork::Private, fanout_client).await?;
        Ok(Self { plan, creators, pausers, samples })
    }

    async fn measure_round(&mut self) -> Result<(), BenchError> {
        for pace in [Pace::BackToBack, Pace::Idle] {
            for by in CreateMethod::ON_EVERY_MACHINE {
                // Back to back: run the same operation immediately before.
                match pace {
                    Pace::Idle => tokio::time::sleep(IDLE).await,
                    Pace::BackToBack => drop(self.creators.create(by, 1).await?),
                }
                for ChildLatency { result, answer } in self.creators.create(by, 1).await?.1 {
                    self.add(PoolMethod::Create(by), pace, [(CREATE, result), (CREATE_ANSWERED, answer)])?;
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
            self.add(PoolMethod::Create(by), Pace::BackToBack, [(CREATE_IN_BURST, each)])?;
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
        let Some(last) = last else { return Ok(()) };
        let times = [(PAUSE, last.pause), (UNPAUSE, last.unpause), (UNPAUSE_TO_ANSWER, last.answer)];
        self.add(PoolMethod::Pause(by), pace, times)
    }

    fn add<const N: usize>(
        &mut self,
        by: PoolMethod,
        pace: Pace,
        times: [(Figure, Duration); N],
    ) -> Result<(), BenchError> {
        let case = PoolCase { by, pace };
        times.into_iter().try_for_each(|(figure, time)| self.samples.add(&case, figure, time.as_secs_f64() * 1e6))
    }
}

impl BenchPool {
    fn results(&self, samples: &FigureSamples<PoolCase>) -> BenchResults {
        let Self { pool, mib, .. } = self;
        let create = CreateMethod::ON_EVERY_MACHINE.map(|by| (by.text(), PoolMethod::Create(by)));
        let pause = [
            ("farfork", PoolMethod::Pause(PauseMethod::Farfork)),
            ("bare freezer", PoolMethod::Pause(PauseMethod::BareFreezer)),
            ("SIGSTOP and SIGCONT", PoolMethod::Pause(PauseMethod::Signals)),
        ];
        let question =
            "How long does a node take to create a child in a ready container, and to pause and resume a child?";
        let section = ReportSection::new("pool", "Containers", question)
            .with_table(method_table(samples, "create", "Creating a child", create, CREATE_FIGURES))
            .with_table(method_table(samples, "pause", "Pausing a child that is warm", pause, PAUSE_FIGURES))
            .with_note(format!(
                "The parent has {mib} MiB, and {pool} containers are ready. In a burst: {} children at once, each.",
                pool * BURST_FACTOR
            ))
            .with_note("After idle: after 150 ms in which nothing happens. No result was wrong.")
            .with_note(
                "Floors: of creation, fork(2) into the namespaces of an existing container; of a pause, the freezer of a \
                 control group alone. The ratio next to a floor is farfork's median divided by it.",
            );
        BenchResults::new(section, json!({ "plan": self, "figures": samples.to_json(Some("us")) }))
    }
}

/// A table of one column per method. The second method is the floor of the first one, the third is for comparison.
fn method_table(
    samples: &FigureSamples<PoolCase>,
    id: &str,
    title: &str,
    methods: [(&str, PoolMethod); 3],
    figures: [Figure; 3],
) -> ReportTable {
    let columns = [&["step"][..], &methods.map(|(name, _)| name)].concat();
    let mut table = ReportTable::new(id, title, &columns);
    for figure in figures {
        for (pace, suffix) in [(Pace::BackToBack, ""), (Pace::Idle, ", after idle")] {
            let [farfork, floors @ ..] = methods.map(|(_, by)| PoolCase { by, pace });
            let own = samples.figure(&farfork, figure);
            let floors = floors.each_ref().map(|floor| {
                let ratio = samples.ratio(&farfork, floor, figure);
                ReportCell::from(samples.figure(floor, figure).map(|figure| figure.with_farfork_ratio(ratio)))
            });
            let own = own.map(|own| own.with_floor(samples.median(&PoolCase { by: methods[1].1, pace }, figure)));
            let name = ReportCell::text(format!("{}{suffix}", figure.name));
            table.add_row([name, own.into()].into_iter().chain(floors));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{
        BenchPool, CREATE, CreateMethod, FigureSamples, PAUSE, Pace, PauseMethod, PoolCase, PoolMethod, SamplesOption,
    };

    #[test]
    fn floors_are_shown_next_to_farfork() {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        let mut add = |figure, by, us| samples.add(&PoolCase { by, pace: Pace::Idle }, figure, us).unwrap();
        add(CREATE, PoolMethod::Create(CreateMethod::Farfork), 1.5);
        add(CREATE, PoolMethod::Create(CreateMethod::LocalFork), 0.5);
        add(PAUSE, PoolMethod::Pause(PauseMethod::Farfork), 0.75);
        add(PAUSE, PoolMethod::Pause(PauseMethod::Signals), 0.125);
        let plan = BenchPool { pool: 8, mib: 16, runs: 20, samples: SamplesOption::default() };
        let results = plan.results(&samples);
        let (text, document) = (results.to_text(), results.to_json());
        assert!(text.contains("3.00 ×") && text.contains("6.00 ×"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert_eq!(document["figures"].as_array().map(Vec::len), Some(4), "{document}");
        assert_eq!(document["figures"][0]["by"], "farfork", "{document}");
        assert_eq!((&document["figures"][0]["pace"], &document["plan"]["pool"]), (&"idle".into(), &8.into()));
    }
}
