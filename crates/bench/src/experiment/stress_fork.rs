//! Runs `farfork stress fork` and `stress functions`: client processes on several nodes fork one parent's children, one
//! after another, for a given time. Then it judges the run, counts leftovers, and looks for errors in logs.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::error_log::ErrorLogs;
use super::fork_load::ForkLoad;
use super::leak_check::{ResourceCount, ResourceCounts, find_leftovers};
use super::local_cluster::{BenchCluster, node_arguments};
use crate::error::BenchError;
use crate::reference::PUBLISHED_FIGURES;
use crate::samples::Spread;
use crate::workload::fork_workload::ForkWorkload;

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
    /// The first nodes, which have no clients: none, or the parent's.
    pub parent_nodes: usize,
    /// The program whose children are forked.
    pub workload: ForkWorkload,
    /// The Python that runs functions; none: an environment with the packages of the embedded ones.
    #[serde(skip)]
    pub python: Option<PathBuf>,
    /// How children get their memory, as `farfork fork --strategy` takes it; empty for the default.
    pub strategy: String,
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

impl StressForkParameters {
    /// Client processes of all nodes.
    pub fn all_clients(&self) -> usize {
        self.clients * (self.nodes - self.parent_nodes)
    }
}

impl StressForkOutcome {
    /// The verdict.
    pub fn has_passed(&self) -> bool {
        self.faults.is_empty()
    }

    /// Children per second of each client process, as published for MITOSIS on other machines; none for most workloads.
    pub fn published_per_s(workload: &ForkWorkload) -> Option<f64> {
        PUBLISHED_FIGURES.peak.find(workload.name()).map(|reference| reference.per_client_s)
    }
}

/// Runs clients for as long as the plan says, and judges. `show` gets the outcome after each second, and may end the run.
///
/// # Errors
/// The run could not be started. A client's failure is in the outcome.
pub async fn stress_fork(
    plan: &StressForkParameters,
    farfork: &Path,
    show: &mut dyn FnMut(&StressForkOutcome) -> ControlFlow<()>,
) -> Result<StressForkOutcome, BenchError> {
    let arguments = node_arguments(&[("--pool", plan.pool), ("--zygotes", plan.zygotes)]);
    let mut cluster = BenchCluster::start_nodes(farfork.to_owned(), plan.nodes, plan.encrypted, &arguments).await?;
    let parent = plan.workload.start(cluster.scratch(), plan.python.as_deref())?;
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
    outcome.faults.extend(logs.find_errors(cluster.nodes()));
    // The connection of the cluster was idle for so long that keep-alive has ended it.
    cluster.reconnect().await?;
    cluster.drop_seed(&seed).await?;
    drop(parent);
    let nodes = cluster.nodes().to_vec();
    cluster.stop()?;
    judge_outcome(plan, &mut outcome);
    outcome.faults.extend(find_leftovers(&nodes));
    Ok(outcome)
}

/// Runs the clients, and adds up what they report.
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
        outcome.faults.push(format!("a client was without a child for {gap:.0} ms, {gap_ms_max:.0} at most"));
    }
    let all = plan.all_clients() as f64;
    if outcome.per_s < plan.floor_per_s * all {
        outcome.faults.push(format!("{:.2} children a second by {all} clients in all", outcome.per_s));
    }
    outcome.faults.extend(outcome.counts.iter().filter_map(ResourceCount::leak_text));
}

#[cfg(test)]
mod tests {
    use super::{ForkWorkload, ResourceCount, StressForkOutcome, StressForkParameters, judge_outcome};

    #[test]
    fn each_kind_of_fault_fails_the_run() {
        let plan = StressForkParameters {
            nodes: 2,
            clients: 2,
            seconds: 20.0,
            floor_per_s: 0.1,
            parent_nodes: 0,
            workload: ForkWorkload::Sparse { mib: 1 },
            python: None,
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
