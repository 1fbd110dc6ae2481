//! Runs `farfork stress fork`: client processes on several nodes fork one parent's children, one after another, for a
//! given time. Then it judges the run, and counts leftovers. A client is this program, started again by
//! `run_clients`.

use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_cluster::local::LocalNode;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::fanout_client::FanoutClient;
use super::leak_check::{ResourceCount, ResourceCounts, find_leftovers};
use super::local_cluster::{BenchCluster, node_arguments};
use crate::embedded_program::ChildProgram;
use crate::endpoint::stdout::print_line;
use crate::error::BenchError;
use crate::reference::PUBLISHED_FIGURES;
use crate::samples::Spread;
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::ParentProgram;
use crate::workload::sparse::SPARSE;

/// Children that no two clients have the same number of.
const NUMBERS_PER_CLIENT: u64 = 1 << 40;

/// Between two reports of a client.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// What is to be run.
#[derive(Debug, Clone, Serialize)]
pub struct StressForkParameters {
    /// Nodes; the parent is on the first.
    pub nodes: usize,
    /// Client processes of each node.
    pub clients: usize,
    /// For how long they fork, in seconds.
    pub seconds: f64,
    /// Children a second that no client may fall below.
    pub floor_per_s: f64,
    /// Private memory of the parent, in MiB.
    pub mib: u64,
    /// Containers that each node keeps ready; none: as many as it does by itself.
    pub pool: Option<u64>,
    /// Zygotes that each node keeps; none: as many as it does by itself.
    pub zygotes: Option<u64>,
    /// Whether memory is encrypted between the nodes.
    pub encrypted: bool,
}

/// What was found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StressForkOutcome {
    /// Of all clients.
    pub children: u64,
    /// Of all clients, in each second.
    pub intervals_per_s: Vec<f64>,
    /// Children a second, of all clients.
    pub per_s: f64,
    /// From the call for a child to its answer: the median of the clients' medians, in ms.
    pub p50_ms: f64,
    /// The largest of the clients' 99th percentiles, in ms.
    pub p99_ms: f64,
    /// The longest that any client was without an answer, in ms.
    pub longest_gap_ms: f64,
    /// What the nodes had, and have.
    pub counts: Vec<ResourceCount>,
    /// What is wrong; nothing if it passed.
    pub faults: Vec<String>,
}

impl StressForkOutcome {
    /// The verdict.
    pub fn has_passed(&self) -> bool {
        self.faults.is_empty()
    }

    /// Forks per second of each client process, as published for MITOSIS on other machines.
    pub fn published_per_s() -> f64 {
        PUBLISHED_FIGURES.stress.forks_per_s
    }
}

/// What a client is to do.
#[derive(Debug, Serialize, Deserialize)]
struct ForkClientSpec {
    node: String,
    socket: PathBuf,
    seed: String,
    mib: u64,
    first: u64,
    seconds: f64,
}

/// Runs clients for as long as the plan says, and judges. `show` is told of each second as it passes, and may end it.
///
/// # Errors
/// It could not be run; that a client failed is in the outcome.
pub async fn stress_fork(
    plan: &StressForkParameters,
    farfork: &Path,
    show: &mut dyn FnMut(&StressForkOutcome) -> ControlFlow<()>,
) -> Result<StressForkOutcome, BenchError> {
    let arguments = node_arguments(&[("--pool", plan.pool), ("--zygotes", plan.zygotes)]);
    let mut cluster = BenchCluster::start_nodes(farfork.to_owned(), plan.nodes, plan.encrypted, &arguments).await?;
    let program = SPARSE.install(cluster.scratch())?;
    let parent = ParentProgram::start(&SPARSE, &program, plan.mib, PAYLOAD_PATH.as_ref())?;
    let seed = cluster.prepare(parent.pid()).await?.seed;
    for node in cluster.nodes() {
        FanoutClient::on_node(&node.name, &node.socket, &seed, plan.mib).await?.fan_out(0, 1).await?;
    }
    let before = ResourceCounts::read_steady(cluster.nodes()).await;
    let mut outcome = StressForkOutcome::default();
    match run_clients(plan, farfork, (cluster.nodes(), &seed), &mut outcome, show) {
        Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
        Err(failure) => outcome.faults.push(format!("a client: {failure}")),
        Ok(()) => {}
    }
    outcome.counts = before.wait_released(cluster.nodes()).await;
    // Nobody saw to its connection meanwhile.
    cluster.reconnect().await?;
    cluster.drop_seed(&seed).await?;
    drop(parent);
    let nodes = cluster.nodes().to_vec();
    cluster.stop()?;
    judge_outcome(plan, &mut outcome);
    outcome.faults.extend(find_leftovers(&nodes));
    Ok(outcome)
}

/// Starts the clients, and hears them.
fn run_clients(
    plan: &StressForkParameters,
    farfork: &Path,
    (nodes, seed): (&[LocalNode], &str),
    outcome: &mut StressForkOutcome,
    show: &mut dyn FnMut(&StressForkOutcome) -> ControlFlow<()>,
) -> Result<(), BenchError> {
    let mut clients = Vec::new();
    for (index, node) in (0..plan.clients).flat_map(|_| nodes).enumerate() {
        let forker = ForkClientSpec {
            node: node.name.clone(),
            socket: node.socket.clone(),
            seed: seed.to_owned(),
            mib: plan.mib,
            first: (index as u64 + 1) * NUMBERS_PER_CLIENT,
            seconds: plan.seconds,
        };
        let mut command = Command::new(farfork);
        command.args(["bench", "forker"]).arg(json!(forker).to_string());
        clients.push(ChildProgram::start("forker", &command)?);
    }
    for client in &mut clients {
        let [] = client.read_answer("ready")?;
    }
    for client in &mut clients {
        client.send_message(b'g')?;
    }
    let intervals = (plan.seconds / REPORT_INTERVAL.as_secs_f64()).floor().max(1.0) as usize;
    for _ in 0..intervals {
        let mut children = 0;
        for client in &mut clients {
            let [forked, gap_us] = client.read_answer("forked")?;
            children += forked;
            outcome.longest_gap_ms = outcome.longest_gap_ms.max(gap_us as f64 / 1e3);
        }
        outcome.intervals_per_s.push(children as f64 / REPORT_INTERVAL.as_secs_f64());
        if show(outcome).is_break() {
            return Err(BenchError::Interrupted);
        }
    }
    let mut medians = Vec::new();
    for client in &mut clients {
        let [children, ns, p50_us, p99_us] = client.read_answer("done")?;
        outcome.children += children.unsigned_abs();
        outcome.per_s += children as f64 / (ns as f64 / 1e9);
        outcome.p99_ms = outcome.p99_ms.max(p99_us as f64 / 1e3);
        medians.push(p50_us as f64 / 1e3);
    }
    outcome.p50_ms = Spread::from_samples(&medians).map_or(0.0, |spread| spread.median);
    Ok(())
}

fn judge_outcome(plan: &StressForkParameters, outcome: &mut StressForkOutcome) {
    let gap_ms_max = 1e3 / plan.floor_per_s;
    if outcome.longest_gap_ms > gap_ms_max {
        let gap = outcome.longest_gap_ms;
        outcome.faults.push(format!("a client was without a child for {gap:.0} ms, {gap_ms_max:.0} at most"));
    }
    let all = (plan.clients * plan.nodes) as f64;
    if outcome.per_s < plan.floor_per_s * all {
        outcome.faults.push(format!("{:.2} children a second by {all} clients in all", outcome.per_s));
    }
    outcome.faults.extend(outcome.counts.iter().filter_map(ResourceCount::leak_text));
}

// What a client prints:
//
//   ready                              then it waits for a letter, which starts it
//   forked CHILDREN LONGEST_GAP_US     once each interval
//   done CHILDREN NS P50_US P99_US
//   failed WHY                         in the place of any of these

/// Is the client that the specification asks for.
///
/// # Errors
/// It cannot speak; what else fails it says.
pub async fn run_fork_client(specification: &str) -> io::Result<()> {
    let forker: ForkClientSpec = serde_json::from_str(specification)?;
    match fork_repeatedly(&forker).await {
        Err(BenchError::Program { cause, .. }) => Err(cause),
        Err(failure) => print_line(&format!("failed {failure}")),
        Ok(()) => Ok(()),
    }
}

async fn fork_repeatedly(forker: &ForkClientSpec) -> Result<(), BenchError> {
    let told = |line: &str| print_line(line).map_err(|cause| BenchError::Program { program: "forker", cause });
    let mut fanout_client = FanoutClient::on_node(&forker.node, &forker.socket, &forker.seed, forker.mib).await?;
    told("ready")?;
    io::stdin().read_exact(&mut [0]).map_err(|cause| BenchError::Program { program: "forker", cause })?;
    let (began, mut ms) = (Instant::now(), Vec::new());
    let (mut interval, mut since, mut gap) = (1, 0, Duration::ZERO);
    while interval <= (forker.seconds / REPORT_INTERVAL.as_secs_f64()).floor().max(1.0) as u32 {
        let asked = Instant::now();
        fanout_client.fan_out(forker.first + ms.len() as u64, 1).await?;
        gap = gap.max(asked.elapsed());
        ms.push(asked.elapsed().as_secs_f64() * 1e3);
        // One that took long may have passed several.
        while began.elapsed() >= REPORT_INTERVAL * interval && f64::from(interval) <= forker.seconds.max(1.0) {
            told(&format!("forked {} {}", ms.len() - since, gap.as_micros()))?;
            (interval, since, gap) = (interval + 1, ms.len(), Duration::ZERO);
        }
    }
    let took = began.elapsed();
    let Some(Spread { median, .. }) = Spread::from_samples(&ms) else { return Ok(()) };
    ms.sort_by(f64::total_cmp);
    let p99 = ms[(ms.len() * 99).div_ceil(100).clamp(1, ms.len()) - 1];
    told(&format!("done {} {} {:.0} {:.0}", ms.len(), took.as_nanos(), median * 1e3, p99 * 1e3))
}

#[cfg(test)]
mod tests {
    use super::{ResourceCount, StressForkOutcome, StressForkParameters, judge_outcome};

    #[test]
    fn each_kind_of_fault_fails_the_run() {
        let plan = StressForkParameters {
            nodes: 2,
            clients: 2,
            seconds: 20.0,
            floor_per_s: 0.1,
            mib: 1,
            pool: None,
            zygotes: None,
            encrypted: true,
        };
        let good =
            StressForkOutcome { children: 400, per_s: 20.0, longest_gap_ms: 9_000.0, ..StressForkOutcome::default() };
        let count = |after| ResourceCount { node: "n1".to_owned(), of: "mounts", before: 1, after, slack: 0 };
        let judged = |mut outcome: StressForkOutcome| {
            judge_outcome(&plan, &mut outcome);
            outcome.faults.len()
        };
        assert_eq!(judged(StressForkOutcome { counts: vec![count(1)], ..good.clone() }), 0);
        for bad in [
            StressForkOutcome { longest_gap_ms: 10_001.0, ..good.clone() },
            StressForkOutcome { per_s: 0.39, ..good.clone() },
            StressForkOutcome { counts: vec![count(2)], ..good.clone() },
        ] {
            assert_eq!(judged(bad.clone()), 1, "{bad:?}");
        }
    }
}
