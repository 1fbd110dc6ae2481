//! Runs `farfork stress fork` and `stress functions`: client processes on several nodes fork children of one parent,
//! one after another, for a given time. Then it judges the run, counts leftovers, and looks for errors in logs.

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::error_log::ErrorLogs;
use super::fork_load::ForkLoad;
use super::leak_check::{ResourceCount, ResourceCounts, find_leftovers};
use super::local_cluster::{BenchCluster, node_arguments};
use crate::error::BenchError;
use crate::reference::PUBLISHED_FIGURES;
use crate::samples::Spread;
use crate::workload::fork_workload::ForkWorkload;
use crate::workload::functions::FunctionOptions;

/// Parameters of a run.
#[derive(Debug, Clone, Serialize)]
pub struct StressForkParameters {
    /// Number of nodes; the parent is on the first.
    pub nodes: usize,
    /// Client processes per node.
    pub clients: usize,
    /// How long the clients fork, in seconds.
    pub seconds: f64,
    /// Minimum rate of each client, in children per second.
    pub floor_per_s: f64,
    /// Number of nodes without clients: 0, or 1 for the parent's node, which is the first.
    pub parent_nodes: usize,
    /// The program whose children are forked.
    pub workload: ForkWorkload,
    /// How functions are run.
    #[serde(skip)]
    pub function_options: FunctionOptions,
    /// Paging strategy of the children, as in `farfork fork --strategy`; empty for the default.
    pub strategy: String,
    /// Containers that each node keeps ready; `None` for the default.
    pub pool: Option<u64>,
    /// Maximum zygotes of each node; `None` for the default.
    pub zygotes: Option<u64>,
    /// Whether memory transfers between the nodes are encrypted.
    pub encrypted: bool,
}

/// Result of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StressForkOutcome {
    /// Children of all clients.
    pub children: u64,
    /// Children of all clients in each second.
    pub intervals_per_s: Vec<f64>,
    /// Children per second of all clients.
    pub per_s: f64,
    /// Time from the request for a child to the child's answer, in ms: the median of the clients' medians.
    pub p50_ms: f64,
    /// The largest of the clients' 99th percentiles, in ms.
    pub p99_ms: f64,
    /// The longest time of any client without an answer, in ms.
    pub longest_gap_ms: f64,
    /// The nodes' resources before and after.
    pub counts: Vec<ResourceCount>,
    /// Reasons why the run has failed; empty if it passed.
    pub faults: Vec<String>,
}

impl StressForkParameters {
    /// Number of client processes on all nodes.
    pub fn all_clients(&self) -> usize {
        self.clients * (self.nodes - self.parent_nodes)
    }
}

impl StressForkOutcome {
    /// Whether the run has passed.
    pub fn has_passed(&self) -> bool {
        self.faults.is_empty()
    }

    /// Children per second of each client process, as published for MITOSIS on other machines; `None` if no figure of
    /// the workload was published.
    pub fn published_per_s(workload: &ForkWorkload) -> Option<f64> {
        PUBLISHED_FIGURES.peak.find(workload.name()).map(|reference| reference.per_client_s)
    }
}

/// Runs the clients for the time of the plan, and judges the run. `show` receives the outcome after each second, and
/// may end the run.
///
/// # Errors
/// The run cannot be started. A failure of a client is in the outcome.
pub async fn stress_fork(
    plan: &StressForkParameters,
    farfork: &Path,
    show: &mut dyn FnMut(&StressForkOutcome) -> ControlFlow<()>,
) -> Result<StressForkOutcome, BenchError> {
    let arguments = node_arguments(&[("--pool", plan.pool), ("--zygotes", plan.zygotes)]);
    let mut cluster = BenchCluster::start_nodes(farfork.to_owned(), plan.nodes, plan.encrypted, &arguments).await?;
    let parent = plan.workload.start(cluster.scratch(), &plan.function_options)?;
    let seed = cluster.prepare(parent.pid()).await?.seed;
    let load = ForkLoad {
        farfork,
        nodes: &cluster.nodes()[plan.parent_nodes..],
        clients_per_node: plan.clients,
        seed: &seed,
        task: parent.task(),
        strategy: &plan.strategy,
        seconds: plan.seconds,
    };
    load.warm_up().await?;
    let before = ResourceCounts::read_steady(cluster.nodes()).await;
    let logs = ErrorLogs::begin(cluster.nodes());
    let mut outcome = StressForkOutcome::default();
    match run_load(&load, &mut outcome, show) {
        Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
        Err(failure) => outcome.faults.push(format!("a client: {failure}")),
        Ok(()) => {}
    }
    outcome.counts = before.wait_released(cluster.nodes()).await;
    // A daemon may have ended during the run, which is a failure of the run.
    let dropped = drop_seed(&mut cluster, &seed).await;
    outcome.faults.extend(dropped.err().map(|failure| format!("after the clients: {failure}")));
    outcome.faults.extend(logs.find_errors(cluster.nodes()));
    drop(parent);
    let nodes = cluster.nodes().to_vec();
    outcome.faults.extend(cluster.stop().err().map(|failure| failure.to_string()));
    judge_outcome(plan, &mut outcome);
    outcome.faults.extend(find_leftovers(&nodes));
    Ok(outcome)
}

async fn drop_seed(cluster: &mut BenchCluster, seed: &str) -> Result<(), BenchError> {
    // While the clients ran, this thread answered no keep-alive probes, so the node has closed the connection.
    cluster.reconnect().await?;
    cluster.drop_seed(seed).await
}

/// Runs the clients, and adds up their reports.
fn run_load(
    load: &ForkLoad<'_>,
    outcome: &mut StressForkOutcome,
    show: &mut dyn FnMut(&StressForkOutcome) -> ControlFlow<()>,
) -> Result<(), BenchError> {
    let results = load.run(&mut |interval| {
        outcome.longest_gap_ms = outcome.longest_gap_ms.max(interval.longest_gap_ms);
        outcome.intervals_per_s.push(interval.per_s);
        show(outcome)
    })?;
    outcome.children = results.iter().map(|client| client.children).sum();
    outcome.per_s = results.iter().map(|client| client.per_s).sum();
    outcome.p99_ms = results.iter().map(|client| client.p99_ms).fold(0.0, f64::max);
    let medians: Vec<f64> = results.iter().map(|client| client.p50_ms).collect();
    outcome.p50_ms = Spread::from_samples(&medians).map_or(0.0, |spread| spread.median);
    Ok(())
}

fn judge_outcome(plan: &StressForkParameters, outcome: &mut StressForkOutcome) {
    let gap_ms_max = 1e3 / plan.floor_per_s;
    if outcome.longest_gap_ms > gap_ms_max {
        let gap = outcome.longest_gap_ms;
        outcome.faults.push(format!("a client got no child for {gap:.0} ms; the limit is {gap_ms_max:.0} ms"));
    }
    let all = plan.all_clients() as f64;
    if outcome.per_s < plan.floor_per_s * all {
        outcome.faults.push(format!("{:.2} children a second by {all} clients in all", outcome.per_s));
    }
    outcome.faults.extend(outcome.counts.iter().filter_map(ResourceCount::leak_text));
}

#[cfg(test)]
mod tests {
    use super::{ForkWorkload, FunctionOptions, ResourceCount, StressForkOutcome, StressForkParameters, judge_outcome};

    #[test]
    fn each_kind_of_fault_fails_the_run() {
        let plan = StressForkParameters {
            nodes: 2,
            clients: 2,
            seconds: 20.0,
            floor_per_s: 0.1,
            parent_nodes: 0,
            workload: ForkWorkload::Sparse { mib: 1 },
            function_options: FunctionOptions::default(),
            strategy: String::new(),
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
