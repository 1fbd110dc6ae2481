//! The nodes of a soak run, and the faults that it injects: killed or stalled processes, and cut links.

use std::path::Path;
use std::time::{Duration, Instant};

use farfork_api::client::{self, Client};
use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_cluster::local::{LocalCluster, LocalClusterConfig, LocalNode};
use farfork_sys::pidfd;
use farfork_sys::process::ProcStat;

use super::script::{NODES, NodeProcess};
use crate::error::BenchError;
use crate::experiment::leak_check::find_leftovers;
use crate::experiment::local_cluster::{request_failure, stop_nodes};
use crate::scratch::{CLUSTER_DIRECTORY, SCRATCH_PARENT, ScratchDirectory};

/// Size of a node's page cache: small enough to be full at times.
const CACHE_SIZE: &str = "16MiB";

/// Maximum number of zygotes of a node. At times, there are more seeds than this.
const ZYGOTES_MAX: &str = "4";

/// Idle time after which a zygote ends, in seconds. Some zygotes end during a round, others with their seeds. The
/// resources are counted after all zygotes have ended.
const ZYGOTE_IDLE_S: &str = "5";

/// Time limit for all zygotes of a node to end.
const ZYGOTES_LIMIT: Duration = Duration::from_secs(40);

/// Time limit for nodes to rediscover each other: several heartbeats.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(30);

/// How often discovery is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time limit of each request. It is longer than the time after which a node gives up a page, so the node's report of the
/// lost page is received.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(120);

/// Time limit for a killed process to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Signal numbers for kill(2).
pub(super) const SIGKILL: i32 = 9;
pub(super) const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// The nodes. They are stopped when this value is dropped.
#[derive(Debug)]
pub(super) struct SoakCluster {
    /// `None` after the stop.
    local: Option<LocalCluster>,
    scratch: ScratchDirectory,
}

impl SoakCluster {
    /// Starts the nodes. `farfork` is the program that runs their daemons.
    pub(super) async fn start(farfork: &Path, encrypted: bool) -> Result<Self, BenchError> {
        let scratch = ScratchDirectory::create(SCRATCH_PARENT.as_ref(), farfork)?;
        let run_dir = scratch.path().join(CLUSTER_DIRECTORY);
        let mut config = LocalClusterConfig::new(&format!("soak-{}", std::process::id()), run_dir, NODES, farfork);
        let encryption = if encrypted { "on" } else { "off" };
        let limits = ["--cache", CACHE_SIZE, "--zygotes", ZYGOTES_MAX, "--zygote-idle", ZYGOTE_IDLE_S];
        config.node_arguments = ["--encryption", encryption].into_iter().chain(limits).map(str::to_owned).collect();
        let soak_cluster = Self { local: Some(LocalCluster::up(&config, &mut |_| ())?), scratch };
        soak_cluster.wait_all_alive().await?;
        Ok(soak_cluster)
    }

    /// A directory that is removed with the nodes.
    pub(super) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    pub(super) fn nodes(&self) -> &[LocalNode] {
        self.local.as_ref().map_or(&[], |local| local.nodes())
    }

    /// Makes a new connection to a node. Each request needs one, because daemons are killed and stopped.
    pub(super) async fn client(&self, node: usize) -> Result<Client, Failure> {
        client::connect(&self.nodes()[node].socket).await
    }

    /// Waits until each node sees all others alive.
    pub(super) async fn wait_all_alive(&self) -> Result<(), BenchError> {
        for node in self.nodes() {
            let give_up = Instant::now() + DISCOVERY_LIMIT;
            while !sees_all_nodes(node).await? {
                if Instant::now() >= give_up {
                    let (seconds, run_dir) = (DISCOVERY_LIMIT.as_secs(), node.run_dir.clone());
                    return Err(BenchError::NodesNotConnected { seconds, run_dir });
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Waits until no node has a zygote, for each node at most [`ZYGOTES_LIMIT`]. Zygotes are not leaks, but their
    /// resources could hide a leak.
    pub(super) async fn wait_for_no_zygotes(&self) -> Result<(), BenchError> {
        let give_up = Instant::now() + ZYGOTES_LIMIT;
        for node in 0..NODES {
            let name = &self.nodes()[node].name;
            let mut client = self.client(node).await?;
            loop {
                let request = v1::InspectRequest { id: name.clone() };
                let answer = client
                    .inspect(client::request_with_timeout(REQUEST_LIMIT, request))
                    .await
                    .map_err(request_failure(name))?;
                let kept = match answer.into_inner().object {
                    Some(v1::inspect_response::Object::Node(detail)) => {
                        detail.zygotes.map_or(0, |zygotes| zygotes.kept)
                    }
                    _ => 0,
                };
                if kept == 0 || Instant::now() >= give_up {
                    break;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Kills a node's pager, if one runs. The keeper restarts the pager.
    pub(super) fn kill_pager(&self, node: usize) -> Result<(), BenchError> {
        let Some(pager) = self.nodes()[node].pager_pid() else { return Ok(()) };
        self.signal(node, pager, SIGKILL)
    }

    /// Kills a node's pager and its keeper. Both are stopped first, so that neither sees the other's end.
    pub(super) fn kill_keeper_and_pager(&self, node: usize) -> Result<(), BenchError> {
        let Some(pager) = self.nodes()[node].pager_pid() else { return Ok(()) };
        let keeper = ProcStat::read(pager).ok().map(|stat| stat.parent);
        let keeper = keeper.filter(|pid| self.nodes()[node].pager_pids().contains(pid));
        for signal in [SIGSTOP, SIGKILL] {
            for pid in keeper.into_iter().chain([pager]) {
                self.signal(node, pid, signal)?;
            }
        }
        Ok(())
    }

    /// Kills a node's daemon, and starts another one after the time `away`.
    pub(super) async fn kill_daemon(&mut self, node: usize, away: Duration) -> Result<(), BenchError> {
        let Some(local) = &mut self.local else { return Ok(()) };
        local.signal_node(node, SIGKILL)?;
        local.wait_node_exit(node, END_LIMIT)?;
        tokio::time::sleep(away).await;
        Ok(local.restart_node(node)?)
    }

    /// Cuts a node off from the others for the time `away`.
    pub(super) async fn cut_link(&self, node: usize, away: Duration) -> Result<(), BenchError> {
        let Some(local) = &self.local else { return Ok(()) };
        local.cut_link(node)?;
        tokio::time::sleep(away).await;
        Ok(local.restore_link(node)?)
    }

    /// Stops one of a node's processes for the time `away`.
    pub(super) async fn stall(&self, node: usize, server: NodeProcess, away: Duration) -> Result<(), BenchError> {
        let pid = match server {
            NodeProcess::Daemon => self.nodes()[node].pid(),
            NodeProcess::Pager => self.nodes()[node].pager_pid(),
        };
        let Some(pid) = pid else { return Ok(()) };
        self.signal(node, pid, SIGSTOP)?;
        tokio::time::sleep(away).await;
        self.signal(node, pid, SIGCONT)
    }

    /// Stops the nodes. Returns what they have left on the machine.
    pub(super) fn stop(mut self) -> Result<Vec<String>, BenchError> {
        let Some(local) = self.local.take() else { return Ok(Vec::new()) };
        let nodes = local.nodes().to_vec();
        stop_nodes(local, &mut self.scratch)?;
        Ok(find_leftovers(&nodes))
    }

    fn signal(&self, node: usize, pid: i32, signal: i32) -> Result<(), BenchError> {
        let sent = pidfd::open(pid).and_then(|process| pidfd::send_signal(&process, signal));
        let path = self.nodes()[node].run_dir.clone();
        sent.map_err(|cause| BenchError::Signal { signal, pid, run_dir: path, cause })
    }
}

impl Drop for SoakCluster {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.local.take().map(|local| stop_nodes(local, &mut self.scratch)) {
            eprintln!("farfork: cannot remove all nodes of the soak: {error}");
        }
    }
}

async fn sees_all_nodes(node: &LocalNode) -> Result<bool, BenchError> {
    let mut client = client::connect(&node.socket).await?;
    let answer = client.list_nodes(client::request_with_timeout(REQUEST_LIMIT, v1::ListNodesRequest {})).await;
    let nodes = answer.map_err(request_failure(&node.name))?.into_inner().nodes;
    Ok(nodes.iter().filter(|node| node.state() == v1::NodeState::Alive).count() == NODES)
}
