//! The course of `farfork bench fanout`: many children of one seed over some nodes, in turn with local forks that do the same
//! with and without the namespaces of a container, and with what the kernel must do for containers alone; then what memory one child has for itself.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use farfork_cluster::local::LocalNode;
use farfork_sys::process::Residence;

use super::cluster::{Cluster, node_arguments};
use super::creators::{Creators, Held};
use super::crowd::Crowd;
use crate::baseline::container::{self, CONTAINER, Refusal};
use crate::baseline::crowd::Answered;
use crate::error::BenchError;
use crate::plan::by::Creator;
use crate::plan::fanout::{FanoutPlan, Figure, Key};
use crate::progress::{Show, tell};
use crate::report::fanout::FanoutReport;
use crate::samples::Samples;
use crate::workload::sparse::SPARSE;

/// Namespaces that local forks take in turn: more than there are children at once.
const CONTAINERS: u64 = 16;

/// Between two local fan-outs, for what came on the connections to nodes meanwhile.
const PROBES_TURN: Duration = Duration::from_millis(2);

/// Children of each whose memory is looked at, one after the other.
const HELD: usize = 5;

/// Measures. `show` may end it before a step. `farfork` is the program whose `node` command the daemons are.
///
/// # Errors
/// What ended it early; a wrong result is such.
pub async fn run_fanout(plan: &FanoutPlan, farfork: PathBuf, show: Show<'_>) -> Result<FanoutReport, BenchError> {
    let samples = Samples::written_to(plan.samples_file.as_deref())?;
    let arguments = node_arguments(&[("--pool", plan.pool), ("--zygotes", plan.zygotes)]);
    let mut cluster = Cluster::start_nodes(farfork, plan.nodes, plan.encrypted, &arguments).await?;
    let mut course = Course::begin(plan, &mut cluster, samples).await?;
    let all = course.creators.all();
    let steps = plan.runs * all.len();
    for done in 0..steps {
        let by = all[done % all.len()];
        tell(show, done, steps, by.text())?;
        course.round(by).await?;
    }
    course.look_at_memory(&mut cluster).await?;
    let Course { creators, refusal, samples, .. } = course;
    creators.end(&mut cluster).await?;
    cluster.end()?;
    FanoutReport::new(plan, refusal, samples)
}

/// Everything that is measured with.
struct Course<'a> {
    plan: &'a FanoutPlan,
    creators: Creators,
    /// Why there are no bare containers.
    refusal: Option<Refusal>,
    samples: Samples<Key>,
}

impl<'a> Course<'a> {
    async fn begin(plan: &'a FanoutPlan, cluster: &mut Cluster, samples: Samples<Key>) -> Result<Self, BenchError> {
        let crowd = async |nodes: &[LocalNode], seed: &str| {
            Crowd::of(nodes, seed, plan.mib).await.map(|crowd| crowd.in_network(plan.network))
        };
        let creators = Creators::start(cluster, plan.mib, (CONTAINERS, plan.network), crowd).await?;
        let program = CONTAINER.install(cluster.scratch())?;
        let (creators, refusal) = match container::start(&program, plan.mib, plan.network)? {
            Ok(bare) => (creators.with_bare(bare), None),
            Err(refusal) => (creators, Some(refusal)),
        };
        Ok(Self { plan, creators, refusal, samples })
    }

    /// A round of fan-outs.
    async fn round(&mut self, by: Creator) -> Result<(), BenchError> {
        let (mut children, mut spent) = (0, Duration::ZERO);
        while children == 0 || spent.as_secs_f64() < self.plan.seconds {
            let (took, answers) = self.fan_out(by, self.plan.children).await?;
            spent += took;
            children += answers.len();
            let first = answers.iter().map(|answer| answer.result).min().unwrap_or_default();
            self.add(by, Figure::FirstResultMs, ms(first))?;
            for Answered { result, answered } in answers {
                self.add(by, Figure::ResultMs, ms(result))?;
                self.add(by, Figure::AnsweredMs, ms(answered))?;
            }
        }
        self.add(by, Figure::ChildrenPerS, children as f64 / spent.as_secs_f64())
    }

    async fn fan_out(&mut self, by: Creator, count: u64) -> Result<(Duration, Vec<Answered>), BenchError> {
        let made = self.creators.create(by, count).await?;
        // Local forks were waited for by the thread that answers the nodes' probes too, which end a connection that is silent
        // for long.
        if by != Creator::Farfork {
            tokio::time::sleep(PROBES_TURN).await;
        }
        Ok(made)
    }

    async fn look_at_memory(&mut self, cluster: &mut Cluster) -> Result<(), BenchError> {
        // Zygotes go that nobody used while others forked, and the first child of all is none's copy.
        self.fan_out(Creator::Farfork, self.plan.children).await?;
        for by in [Creator::EVERYWHERE; HELD].concat() {
            let Held { pid, child } = self.creators.hold(by).await?;
            self.add_memory(by, pid)?;
            if let Some(child) = child {
                cluster.kill(&child).await?;
            }
        }
        Ok(())
    }

    fn add_memory(&mut self, by: Creator, pid: i32) -> Result<(), BenchError> {
        let gone = |cause| BenchError::Program { program: SPARSE.name, cause };
        let own = Residence::of(pid).map_err(gone)?.private_bytes as f64 / 1024.0;
        let tables = page_tables_kib(pid).map_err(gone)?;
        self.add(by, Figure::OwnKib, own)?;
        self.add(by, Figure::PageTablesKib, tables)?;
        self.add(by, Figure::MemoryKib, own + tables)
    }

    fn add(&mut self, by: Creator, figure: Figure, value: f64) -> Result<(), BenchError> {
        self.samples.add(Key { by, figure }, value)
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn page_tables_kib(pid: i32) -> io::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.ok_or_else(|| io::Error::other("its status tells of no page tables"))
}
