//! `farfork up`: starts a small cluster on this machine.

use std::env;
use std::io::{IsTerminal as _, stderr};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use farfork_api::client::{self, request_with_timeout};
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::{ListNodesRequest, NodeState};
use farfork_cluster::local::{LocalCluster, LocalClusterConfig, LocalNode, UpProgress};
use farfork_terminal::privilege;
use indicatif::ProgressBar;

use super::volume_service::VolumeServiceArgs;
use crate::GlobalArgs;
use crate::connection::block_on;
use crate::output::{self, Table};

/// Time limit for the nodes of a new or restarted cluster to discover each other. A discovery takes a few heartbeats.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(15);

/// Longest wait for a killed daemon to end: the kernel first frees its memory and closes its files.
const KILLED_END_LIMIT: Duration = Duration::from_secs(10);

/// Number of times that a restart looks for ended daemons. A daemon that ends again and again is reported.
const RESTARTS_MAX: usize = 3;

/// Interval between two queries of a node.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Start a cluster of several nodes on this machine, to try or to test farfork.
///
/// Each node is a daemon in its own network namespace. A bridge connects the namespaces. `farfork down` stops the
/// cluster and removes everything that it created. Commands connect to the first node, unless --socket or --node
/// selects another one.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork up --nodes 3
  farfork up --nodes 2 --name test --run-dir /tmp/test --json
  farfork up --detect-ms 5000                               on a busy machine
  farfork up --etcd                                         with the catalog of volumes in etcd
  farfork up --restart

Exit status: 0 all nodes run and know each other, 1 failure, 2 wrong usage. \
A new cluster that fails to start is removed.")]
pub(crate) struct Up {
    /// Number of nodes, from 1 to 254. Their names are n1, n2, and so on.
    #[arg(long, default_value_t = 3, value_name = "N")]
    nodes: usize,
    /// Restart the daemons of the existing cluster that have ended, with their original options.
    ///
    /// Options of the nodes are refused, also from the environment.
    #[arg(long, conflicts_with_all = ["nodes", "pool", "metrics", "etcd"], conflicts_with_all = VolumeServiceArgs::IDS)]
    restart: bool,
    #[command(flatten)]
    cluster: LocalClusterArgs,
    /// Number of containers that each node keeps ready for children [default: as `farfork node`].
    #[arg(long, value_name = "N")]
    pool: Option<usize>,
    /// Serve Prometheus metrics of each node at this port of 127.0.0.1 in its namespace [default: no metrics].
    #[arg(long, value_name = "PORT")]
    metrics: Option<u16>,
    /// Start an etcd of three members next to the nodes, to try it. It has the catalog of volumes.
    ///
    /// Needs the program `etcd` (Debian, Ubuntu: package etcd-server). Data and logs are in RUN_DIR/etcd.
    #[arg(long)]
    etcd: bool,
    #[command(flatten)]
    volume_service: VolumeServiceArgs,
    /// Log filter of the daemons, which write node.log in their run directories [default: info].
    #[arg(long, env = "FARFORK_LOG", value_name = "FILTER")]
    log: Option<String>,
}

/// Options that select a cluster of this machine.
#[derive(Args)]
pub(crate) struct LocalClusterArgs {
    /// Name of the cluster, part of its namespaces' names [default: local, or the name of the existing cluster].
    #[arg(long)]
    pub(crate) name: Option<String>,
}

impl Up {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it makes network namespaces and starts daemons in them")?;
        let cluster = if self.restart { self.restart_ended(global)? } else { self.start_new(global)? };
        if global.json {
            let catalog = cluster.catalog().to_string();
            output::print_json(&serde_json::json!({ "nodes": nodes_json(cluster.nodes()), "catalog": catalog }));
        } else {
            nodes_table(cluster.nodes()).print();
        }
        Ok(ExitCode::SUCCESS)
    }

    fn restart_ended(&self, global: &GlobalArgs) -> anyhow::Result<LocalCluster> {
        let mut cluster = LocalCluster::load(global.connection.run_dir())?;
        if let Some(name) = &self.cluster.name {
            cluster.require_name(name)?;
        }
        let mut restarts = 1;
        loop {
            let progress = new_spinner();
            cluster.restart_ended(&mut |step| progress.set_message(progress_text(step)))?;
            // A daemon that has just been killed counts as running until its process has ended, but it does not answer.
            match wait_until_all_alive(&cluster, &progress) {
                Err(_) if restarts < RESTARTS_MAX && wait_any_end(&cluster) => restarts += 1,
                outcome => return outcome.map(|()| cluster),
            }
        }
    }

    fn start_new(self, global: &GlobalArgs) -> anyhow::Result<LocalCluster> {
        let program = env::current_exe().context("cannot read the path of this program")?;
        let mut config = LocalClusterConfig::new(
            self.cluster.name.as_deref().unwrap_or("local"),
            global.connection.run_dir(),
            self.nodes,
            program,
        );
        config.has_etcd = self.etcd;
        if let Some(pool) = self.pool {
            config.node_arguments.extend(["--pool".to_owned(), pool.to_string()]);
        }
        if let Some(port) = self.metrics {
            config.node_arguments.extend(["--metrics".to_owned(), port.to_string()]);
        }
        config.node_arguments.extend(self.volume_service.node_arguments());
        if let Some(filter) = self.log {
            config.environment.push(("FARFORK_LOG".to_owned(), filter));
        }
        start_cluster(&config)
    }
}

/// Starts a cluster, and waits until its nodes know each other. Shows the progress on a terminal.
pub(crate) fn start_cluster(config: &LocalClusterConfig) -> anyhow::Result<LocalCluster> {
    let progress = new_spinner();
    let cluster = LocalCluster::up(config, &mut |step| progress.set_message(progress_text(step)))?;
    if let Err(error) = wait_until_all_alive(&cluster, &progress) {
        cluster.down()?;
        return Err(error);
    }
    Ok(cluster)
}

fn new_spinner() -> ProgressBar {
    let progress = if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}

/// Waits until a daemon has ended, at most [`KILLED_END_LIMIT`]. Returns whether one has ended.
fn wait_any_end(cluster: &LocalCluster) -> bool {
    let deadline = Instant::now() + KILLED_END_LIMIT;
    while cluster.nodes().iter().all(LocalNode::is_alive) {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
    true
}

fn wait_until_all_alive(cluster: &LocalCluster, progress: &ProgressBar) -> anyhow::Result<()> {
    progress.set_message("waiting until the nodes discover each other");
    let outcome = block_on(async { poll_until_all_alive(cluster.nodes()).await.map(|()| ExitCode::SUCCESS) });
    progress.finish_and_clear();
    outcome.map(|_| ())
}

fn progress_text(step: UpProgress<'_>) -> String {
    match step {
        UpProgress::Cleaning => "removing what an earlier cluster left".to_owned(),
        UpProgress::Network => "making the network".to_owned(),
        UpProgress::Etcd => "starting etcd".to_owned(),
        UpProgress::Starting(node) => format!("starting {node}"),
        UpProgress::Ready(node) => format!("{node} answers"),
    }
}

async fn poll_until_all_alive(nodes: &[LocalNode]) -> anyhow::Result<()> {
    let deadline = Instant::now() + DISCOVERY_LIMIT;
    for node in nodes {
        let object = || format!("the daemon of node {}", node.name);
        while count_alive_nodes(&node.socket).await.with_context(object)? < nodes.len() {
            if let Some(ended) = nodes.iter().find(|node| !node.is_alive()) {
                anyhow::bail!("the daemon of node {} has ended: see node.log in its run directory", ended.name);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "the nodes have not discovered each other within {} s: see node.log in their run directories",
                DISCOVERY_LIMIT.as_secs()
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// Returns the number of alive nodes in the list of a node.
async fn count_alive_nodes(socket: &Path) -> anyhow::Result<usize> {
    let mut client = client::connect(socket).await?;
    let answer = client.list_nodes(request_with_timeout(QUERY_TIMEOUT, ListNodesRequest {})).await?;
    Ok(answer.into_inner().nodes.iter().filter(|node| node.state() == NodeState::Alive).count())
}

fn nodes_json(nodes: &[LocalNode]) -> Vec<serde_json::Value> {
    let document = |node: &LocalNode| {
        serde_json::json!({
            "name": node.name,
            "address": node.address.to_string(),
            "netns": node.netns,
            "socket": node.socket,
            "pid": node.daemon_pid(),
        })
    };
    nodes.iter().map(document).collect()
}

fn nodes_table(nodes: &[LocalNode]) -> Table {
    let mut table = Table::new(&["NODE", "ADDRESS", "NETNS", ">PID", "SOCKET"]);
    for node in nodes {
        let socket = node.socket.display().to_string();
        let pid = node.daemon_pid().map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        table.add_row([node.name.clone(), node.address.to_string(), node.netns.clone(), pid, socket]);
    }
    table
}
