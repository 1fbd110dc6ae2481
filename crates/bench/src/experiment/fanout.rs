//! Runs `farfork bench fanout`: many children of one seed on several nodes. They run in turn with local forks, with and
//! without a container's namespaces, and with the kernel's work for containers. Then it measures the memory of single
//! children.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use farfork_cluster::local::LocalNode;
use farfork_sys::process::ResidentMemory;

use super::create_methods::{CreateMethods, HeldChild};
use super::fanout_client::FanoutClient;
use super::local_cluster::{BenchCluster, node_arguments};
use crate::baseline::container::{self, BareContainerRefusal, CONTAINER};
use crate::baseline::local_fanout::ChildLatency;
use crate::error::BenchError;
use crate::parameters::fanout::{FanoutFigure, FanoutParameters, FanoutSampleKey};
use crate::parameters::methods::CreateMethod;
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::fanout::FanoutSummary;
use crate::workload::child_task::ChildTask;
use crate::workload::sparse::SPARSE;

/// Number of namespace sets that local forks use in turn. It exceeds the number of local forks at the same time.
const NAMESPACE_SETS: u64 = 16;

/// Pause after a local fan-out, in which this thread answers the keep-alive probes of the nodes.
const PROBE_PAUSE: Duration = Duration::from_millis(2);

/// Number of children of each method whose memory is measured, one after the other.
const MEMORY_SAMPLES: usize = 5;

/// Runs the benchmark. `show` may end it before a step. `farfork` is the program that runs the daemons.
///
/// # Errors
/// The run ends early, for example because of a wrong result.
pub async fn run_fanout(
    plan: &FanoutParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<FanoutSummary, BenchError> {
    let samples = Samples::with_file(plan.samples_file.as_deref())?;
    let arguments = node_arguments(&[("--pool", plan.pool), ("--zygotes", plan.zygotes)]);
    let mut cluster = BenchCluster::start_nodes(farfork, plan.nodes, plan.encrypted, &arguments).await?;
    let mut fanout_run = FanoutRun::start(plan, &mut cluster, samples).await?;
    let all = fanout_run.creators.available();
    let steps = plan.runs * all.len();
    for done in 0..steps {
        let by = all[done % all.len()];
        report_progress(show, done, steps, by.text())?;
        fanout_run.round(by).await?;
    }
    fanout_run.measure_memory(&mut cluster).await?;
    let FanoutRun { creators, refusal, samples, .. } = fanout_run;
    creators.stop(&mut cluster).await?;
    cluster.stop()?;
    FanoutSummary::new(plan, refusal, samples)
}

/// The state of the run.
struct FanoutRun<'a> {
    plan: &'a FanoutParameters,
    creators: CreateMethods,
    /// Why bare containers cannot be measured; `None` if they can.
    refusal: Option<BareContainerRefusal>,
    samples: Samples<FanoutSampleKey>,
}

impl<'a> FanoutRun<'a> {
    async fn start(
        plan: &'a FanoutParameters,
        cluster: &mut BenchCluster,
        samples: Samples<FanoutSampleKey>,
    ) -> Result<Self, BenchError> {
        let fanout_client = async |nodes: &[LocalNode], seed: &str| {
            FanoutClient::new(nodes, seed, ChildTask::Sparse { mib: plan.mib })
                .await
                .map(|fanout_client| fanout_client.with_network(plan.network))
        };
        let creators = CreateMethods::start(cluster, plan.mib, NAMESPACE_SETS, plan.network, fanout_client).await?;
        let program = CONTAINER.install(cluster.scratch())?;
        let (creators, refusal) = match container::start(&program, plan.mib, plan.network)? {
            Ok(bare) => (creators.with_bare(bare), None),
            Err(refusal) => (creators, Some(refusal)),
        };
        Ok(Self { plan, creators, refusal, samples })
    }

    /// Repeats fan-outs for one round.
    async fn round(&mut self, by: CreateMethod) -> Result<(), BenchError> {
        let (mut children, mut spent) = (0, Duration::ZERO);
        while children == 0 || spent.as_secs_f64() < self.plan.seconds {
            let (took, answers) = self.fan_out(by, self.plan.children).await?;
            spent += took;
            children += answers.len();
            let first = answers.iter().map(|answer| answer.result).min().unwrap_or_default();
            self.add(by, FanoutFigure::FirstResultMs, ms(first))?;
            for ChildLatency { result, answer: answered } in answers {
                self.add(by, FanoutFigure::ResultMs, ms(result))?;
                self.add(by, FanoutFigure::AnsweredMs, ms(answered))?;
            }
        }
        self.add(by, FanoutFigure::ChildrenPerS, children as f64 / spent.as_secs_f64())
    }

    async fn fan_out(&mut self, by: CreateMethod, count: u64) -> Result<(Duration, Vec<ChildLatency>), BenchError> {
        let made = self.creators.create(by, count).await?;
        // While this thread waited for local forks, it answered no keep-alive probes of the nodes. A node closes a
        // connection on which its probes remain unanswered.
        if by != CreateMethod::Farfork {
            tokio::time::sleep(PROBE_PAUSE).await;
        }
        Ok(made)
    }

    async fn measure_memory(&mut self, cluster: &mut BenchCluster) -> Result<(), BenchError> {
        // Renew the zygotes, because idle ones ended while local forks ran. Without a zygote, the first measured child
        // would not be a copy of one.
        self.fan_out(CreateMethod::Farfork, self.plan.children).await?;
        for by in [CreateMethod::ON_EVERY_MACHINE; MEMORY_SAMPLES].concat() {
            let HeldChild { pid, child } = self.creators.create_held(by).await?;
            self.add_memory(by, pid)?;
            if let Some(child) = child {
                cluster.kill(&child).await?;
            }
        }
        Ok(())
    }

    fn add_memory(&mut self, by: CreateMethod, pid: i32) -> Result<(), BenchError> {
        let gone = |cause| BenchError::Program { program: SPARSE.name, cause };
        let own = ResidentMemory::read(pid).map_err(gone)?.private_bytes as f64 / 1024.0;
        let tables = page_tables_kib(pid).map_err(gone)?;
        self.add(by, FanoutFigure::OwnKib, own)?;
        self.add(by, FanoutFigure::PageTablesKib, tables)?;
        self.add(by, FanoutFigure::MemoryKib, own + tables)
    }

    fn add(&mut self, by: CreateMethod, figure: FanoutFigure, value: f64) -> Result<(), BenchError> {
        self.samples.add(FanoutSampleKey { by, figure }, value)
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn page_tables_kib(pid: i32) -> io::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.ok_or_else(|| io::Error::other("/proc/PID/status has no valid VmPTE"))
}
