//! A fork load: client processes on several nodes, each of which requests a child, waits for its result, checks it, and
//! requests the next, for a given time. `farfork stress fork`, `stress functions` and `bench peak` run it. Each client
//! is a process `farfork bench process forker`.

use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::fanout_client::FanoutClient;
use super::node_client::NodeClient;
use super::nodes::ClusterNode;
use crate::endpoint::latencies::{
    Latencies, merge_latencies, new_exact_latencies, print_latencies, quantile_us, read_latencies,
};
use crate::endpoint::print_line;
use crate::error::BenchError;
use crate::machine::program::RunningProgram;
use crate::workload::child_task::ChildTask;

/// Size of each client's range of child numbers. The ranges are disjoint, so no two children have the same number.
const NUMBERS_PER_CLIENT: u64 = 1 << 40;

/// Time between two reports of a client, in seconds.
pub(crate) const FORK_INTERVAL_S: f64 = 1.0;
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The kind of the process, which is also a client's name in errors.
const CLIENT: &str = "forker";

/// The clients of a load, and the seed that they fork.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForkLoad<'a> {
    /// The nodes that have clients.
    pub(crate) nodes: &'a [ClusterNode],
    pub(crate) clients_per_node: usize,
    pub(crate) seed: &'a str,
    pub(crate) task: &'a ChildTask,
    /// Paging strategy of the children; empty for the default.
    pub(crate) strategy: &'a str,
    /// How long the clients fork.
    pub(crate) seconds: f64,
}

/// Totals of all clients in one interval of [`FORK_INTERVAL_S`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LoadInterval {
    /// Children per second.
    pub(crate) per_s: f64,
    /// The longest time of any client without an answer, in ms.
    pub(crate) longest_gap_ms: f64,
}

/// The whole run of one client.
#[derive(Debug)]
pub(crate) struct ClientResult {
    pub(crate) children: u64,
    pub(crate) per_s: f64,
    /// Times from the request for a child until its result is checked.
    latencies: Latencies,
}

/// The children of several clients.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct ForkTotals {
    pub(crate) children: u64,
    /// Children per second.
    pub(crate) per_s: f64,
    /// Median and 99th percentile of the times from the request for a child until its result is checked.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl ForkTotals {
    pub(crate) fn of<'a>(clients: impl IntoIterator<Item = &'a ClientResult>) -> Self {
        let clients: Vec<_> = clients.into_iter().collect();
        let latencies = merge_latencies(clients.iter().map(|client| &client.latencies));
        let [p50_ms, p99_ms] = [0.5, 0.99].map(|quantile| quantile_us(&latencies, quantile) / 1e3);
        let children = clients.iter().map(|client| client.children).sum();
        Self { children, per_s: clients.iter().map(|client| client.per_s).sum(), p50_ms, p99_ms }
    }
}

/// The clients of a host in a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct HostForks {
    pub(crate) host: String,
    #[serde(flatten)]
    pub(crate) totals: ForkTotals,
}

/// The specification of a client.
#[derive(Debug, Serialize, Deserialize)]
struct ForkClientSpec {
    node: String,
    socket: PathBuf,
    seed: String,
    task: ChildTask,
    strategy: String,
    first: u64,
    seconds: f64,
}

impl ForkLoad<'_> {
    /// Forks one child on each node, so that no client's figures include a node's one-time work.
    ///
    /// # Errors
    /// A child cannot be forked, or its result is wrong.
    pub(crate) async fn warm_up(&self) -> Result<(), BenchError> {
        for node in self.nodes {
            let client = FanoutClient::on_node(&node.name, node.connect().await?, self.seed, self.task.clone());
            client.with_strategy(self.strategy).fan_out(0, 1).await?;
        }
        Ok(())
    }

    /// Starts the clients, and reads their reports. `show` receives each interval, and may end the run.
    ///
    /// # Errors
    /// A client failed, or [`BenchError::Interrupted`].
    pub(crate) fn run(
        &self,
        show: &mut dyn FnMut(LoadInterval) -> ControlFlow<()>,
    ) -> Result<Vec<ClientResult>, BenchError> {
        self.run_clients(show).map_err(|error| self.task.parse_failure(error))
    }

    fn run_clients(
        &self,
        show: &mut dyn FnMut(LoadInterval) -> ControlFlow<()>,
    ) -> Result<Vec<ClientResult>, BenchError> {
        let mut clients = self.start_clients()?;
        for _ in 0..interval_count(self.seconds) {
            if show(read_interval(&mut clients)?).is_break() {
                return Err(BenchError::Interrupted);
            }
        }
        clients.iter_mut().map(read_result).collect()
    }

    /// Adds up the results of the clients of each host. None if the nodes are on this machine.
    pub(crate) fn by_host(&self, clients: &[ClientResult]) -> Vec<HostForks> {
        let hosts = self.nodes.iter().enumerate().filter_map(|(index, node)| Some((index, node.machine().name()?)));
        let of_host = |(index, host): (usize, &str)| {
            // In the order of `start_clients`.
            let own = clients.iter().skip(index).step_by(self.nodes.len());
            HostForks { host: host.to_owned(), totals: ForkTotals::of(own) }
        };
        hosts.map(of_host).collect()
    }

    /// Starts the client processes, then makes all of them begin at the same time.
    fn start_clients(&self) -> Result<Vec<RunningProgram>, BenchError> {
        let mut clients = Vec::new();
        for (index, node) in (0..self.clients_per_node).flat_map(|_| self.nodes).enumerate() {
            let specification = ForkClientSpec {
                node: node.name.clone(),
                socket: node.socket.clone(),
                seed: self.seed.to_owned(),
                task: self.task.clone(),
                strategy: self.strategy.to_owned(),
                first: (index as u64 + 1) * NUMBERS_PER_CLIENT,
                seconds: self.seconds,
            };
            clients.push(node.machine().start_process(CLIENT, CLIENT, &specification)?.ready()?);
        }
        for client in &mut clients {
            client.send_message(b'g')?;
        }
        Ok(clients)
    }
}

fn interval_count(seconds: f64) -> u32 {
    (seconds / FORK_INTERVAL_S).floor().max(1.0) as u32
}

// The output of a client:
//
// - `ready`. Then the client waits for one letter, which starts it.
// - `forked CHILDREN LONGEST_GAP_US` in each interval.
// - `done CHILDREN NS` and its latencies at its end.
// - `failed WHY` instead of any of these.

fn read_interval(clients: &mut [RunningProgram]) -> Result<LoadInterval, BenchError> {
    let mut interval = LoadInterval { per_s: 0.0, longest_gap_ms: 0.0 };
    for client in clients {
        let [forked, gap_us] = client.read_answer("forked")?;
        interval.per_s += forked as f64 / FORK_INTERVAL_S;
        interval.longest_gap_ms = interval.longest_gap_ms.max(gap_us as f64 / 1e3);
    }
    Ok(interval)
}

fn read_result(client: &mut RunningProgram) -> Result<ClientResult, BenchError> {
    let [children, ns] = client.read_answer("done")?;
    let (children, per_s) = (children.unsigned_abs(), children as f64 / (ns as f64 / 1e9));
    Ok(ClientResult { children, per_s, latencies: read_latencies(client)? })
}

/// Runs the client that the specification describes.
///
/// # Errors
/// The specification is invalid, or standard input or output failed. Any other failure is printed.
pub(crate) async fn run_fork_client(specification: &str) -> io::Result<()> {
    let specification: ForkClientSpec = serde_json::from_str(specification)?;
    match fork_repeatedly(&specification).await {
        Err(BenchError::Program { cause, .. }) => Err(cause),
        Err(failure) => print_line(&format!("failed {failure}")),
        Ok(()) => Ok(()),
    }
}

async fn fork_repeatedly(specification: &ForkClientSpec) -> Result<(), BenchError> {
    let ForkClientSpec { node, socket, seed, task, strategy, first, seconds } = specification;
    let failed = |cause| BenchError::Program { program: CLIENT, cause };
    let client =
        FanoutClient::on_node(node, NodeClient::connect(socket).await?, seed, task.clone()).with_strategy(strategy);
    print_line("ready").map_err(failed)?;
    io::stdin().read_exact(&mut [0]).map_err(failed)?;
    let (began, mut latencies) = (Instant::now(), new_exact_latencies());
    let (mut interval, mut reported, mut gap) = (1, 0, Duration::ZERO);
    let intervals = interval_count(*seconds);
    while interval <= intervals {
        let sent = Instant::now();
        client.fan_out(first + latencies.len(), 1).await?;
        gap = gap.max(sent.elapsed());
        latencies.saturating_record(sent.elapsed().as_nanos() as u64);
        // A slow child may take several intervals.
        while began.elapsed() >= REPORT_INTERVAL * interval && interval <= intervals {
            print_line(&format!("forked {} {}", latencies.len() - reported, gap.as_micros())).map_err(failed)?;
            (interval, reported, gap) = (interval + 1, latencies.len(), Duration::ZERO);
        }
    }
    let done = format!("done {} {}", latencies.len(), began.elapsed().as_nanos());
    print_line(&done).and_then(|()| print_latencies(&latencies)).map_err(failed)
}
