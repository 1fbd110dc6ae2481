//! `farfork up`: a small cluster on this machine.

use std::env;
use std::io::{IsTerminal as _, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use farfork_cluster::local::{LocalCluster, LocalClusterConfig, LocalNode, Progress};
use farfork_node::api::v1::{ListNodesRequest, NodeState};
use farfork_node::client::{self, within};
use farfork_node::limits::QUERY_TIMEOUT;
use indicatif::ProgressBar;

use crate::connection::{block_on, run_dir_from_environment};
use crate::output::{self, Table};
use crate::{Global, privilege};

/// For all nodes of a new cluster to know each other: a few heartbeats.
const ACQUAINTED_LIMIT: Duration = Duration::from_secs(15);

/// Between two questions whether they do.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// Start a small cluster on this machine, to try farfork and to test.
///
/// Each node is a network namespace with a daemon in it, joined with the others by a bridge. `farfork down` removes
/// every trace of it. Commands speak to its first node, unless FARFORK_SOCKET or --socket says otherwise.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork up --nodes 3
  farfork up --nodes 2 --name test --run-dir /tmp/test --json
  farfork up --restart

Exit status: 0 all nodes run and know each other, 1 failed, and nothing of a new cluster is left, 2 wrong usage.")]
pub(crate) struct Up {
    /// How many nodes; they are called n1, n2, and so on.
    #[arg(long, default_value_t = 3, value_name = "N")]
    nodes: usize,
    /// Start the daemons again that have ended, of the cluster that is there, as they were started first.
    #[arg(long, conflicts_with_all = ["nodes", "pool", "metrics"])]
    restart: bool,
    #[command(flatten)]
    place: Place,
    /// Containers that each node keeps ready for children [default: that of `farfork node`].
    #[arg(long, value_name = "N")]
    pool: Option<usize>,
    /// Have each node serve metrics for Prometheus at this port of 127.0.0.1 in its namespace [default: none].
    #[arg(long, value_name = "PORT")]
    metrics: Option<u16>,
    /// What the daemons log to the file node.log in their directories [default: info].
    #[arg(long, env = "FARFORK_LOG", value_name = "FILTER")]
    log: Option<String>,
}

/// Which cluster of this machine.
#[derive(Args)]
pub(crate) struct Place {
    /// Name of the cluster, part of the names of its namespaces [default: local, or that of the one that is there].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Directory of the cluster [default: /run/farfork].
    #[arg(long, env = "FARFORK_RUN_DIR", value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

impl Place {
    /// The cluster's directory.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(run_dir_from_environment)
    }
}

impl Up {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        privilege::require_root("it makes network namespaces and starts daemons in them")?;
        let cluster = if self.restart { self.restarted()? } else { self.started()? };
        if global.json {
            output::json(&serde_json::json!({ "nodes": documents(cluster.nodes()) }));
        } else {
            table(cluster.nodes()).print();
        }
        Ok(ExitCode::SUCCESS)
    }

    fn restarted(&self) -> anyhow::Result<LocalCluster> {
        let mut cluster = LocalCluster::load(&self.place.run_dir())?;
        if let Some(name) = &self.place.name {
            cluster.require_name(name)?;
        }
        let progress = spinner();
        cluster.start_ended(&mut |step| progress.set_message(words(step)))?;
        wait_until_acquainted(&cluster, &progress)?;
        Ok(cluster)
    }

    fn started(self) -> anyhow::Result<LocalCluster> {
        let program = env::current_exe().context("the path of this program")?;
        let mut config = LocalClusterConfig::new(
            self.place.name.as_deref().unwrap_or("local"),
            self.place.run_dir(),
            self.nodes,
            program,
        );
        if let Some(pool) = self.pool {
            config.node_arguments.extend(["--pool".to_owned(), pool.to_string()]);
        }
        if let Some(port) = self.metrics {
            config.node_arguments.extend(["--metrics".to_owned(), port.to_string()]);
        }
        if let Some(filter) = self.log {
            config.environment.push(("FARFORK_LOG".to_owned(), filter));
        }
        start(&config)
    }
}

/// Starts a cluster, with progress on a terminal, and waits until its nodes know each other.
pub(crate) fn start(config: &LocalClusterConfig) -> anyhow::Result<LocalCluster> {
    let progress = spinner();
    let cluster = LocalCluster::up(config, &mut |step| progress.set_message(words(step)))?;
    if let Err(error) = wait_until_acquainted(&cluster, &progress) {
        cluster.down()?;
        return Err(error);
    }
    Ok(cluster)
}

fn spinner() -> ProgressBar {
    let progress = if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}

fn wait_until_acquainted(cluster: &LocalCluster, progress: &ProgressBar) -> anyhow::Result<()> {
    progress.set_message("waiting until the nodes know each other");
    let outcome = block_on(async {
        let sockets = cluster.nodes().iter().map(|node| node.socket.clone());
        get_acquainted(&sockets.collect::<Vec<_>>()).await.map(|()| ExitCode::SUCCESS)
    });
    progress.finish_and_clear();
    outcome.map(|_| ())
}

fn words(step: Progress<'_>) -> String {
    match step {
        Progress::Cleaning => "removing what an earlier cluster left".to_owned(),
        Progress::Network => "making the network".to_owned(),
        Progress::Starting(node) => format!("starting {node}"),
        Progress::Ready(node) => format!("{node} answers"),
    }
}

async fn get_acquainted(sockets: &[PathBuf]) -> anyhow::Result<()> {
    let deadline = Instant::now() + ACQUAINTED_LIMIT;
    for socket in sockets {
        while alive_at(socket).await? < sockets.len() {
            anyhow::ensure!(
                Instant::now() < deadline,
                "the nodes do not know each other after {} s: see node.log in their run directories",
                ACQUAINTED_LIMIT.as_secs()
            );
            tokio::time::sleep(ASK_INTERVAL).await;
        }
    }
    Ok(())
}

/// How many nodes a node hears of.
async fn alive_at(socket: &Path) -> anyhow::Result<usize> {
    let mut client = client::connect(socket).await?;
    let answer = client.list_nodes(within(QUERY_TIMEOUT, ListNodesRequest {})).await?;
    Ok(answer.into_inner().nodes.iter().filter(|node| node.state() == NodeState::Alive).count())
}

fn documents(nodes: &[LocalNode]) -> Vec<serde_json::Value> {
    let document = |node: &LocalNode| {
        serde_json::json!({
            "name": node.name,
            "address": node.address.to_string(),
            "netns": node.netns,
            "socket": node.socket,
        })
    };
    nodes.iter().map(document).collect()
}

fn table(nodes: &[LocalNode]) -> Table {
    let mut table = Table::new(&["NODE", "ADDRESS", "NETNS", "SOCKET"]);
    for node in nodes {
        let socket = node.socket.display().to_string();
        table.row([node.name.clone(), node.address.to_string(), node.netns.clone(), socket]);
    }
    table
}
