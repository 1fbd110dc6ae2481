//! The nodes of a soak run, and the faults that it injects: killed or stalled processes, and cut links.

use std::path::Path;
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::v1;

use super::script::NODES;
use crate::error::BenchError;
use crate::experiment::node_client::NodeClient;
use crate::experiment::nodes::{ClusterNode, RunningNodes, SIGCONT, SIGKILL, SIGSTOP};
use crate::experiment::observer::NodeProcess;
use crate::machine::Machine;
use crate::scratch::SCRATCH_PARENT;

/// Size of a node's page cache: small enough to be full at times.
const CACHE_SIZE: &str = "16MiB";

/// Maximum number of zygotes of a node. At times, there are more seeds than this.
const ZYGOTES_MAX: &str = "4";

/// Idle time after which a zygote ends, in seconds. Some zygotes end during a round, others with their seeds. The
/// resources are counted after all zygotes have ended.
const ZYGOTE_IDLE_S: &str = "5";

/// Time limit for all zygotes of a node to end.
const ZYGOTES_LIMIT: Duration = Duration::from_secs(40);

/// How often the number of zygotes is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The nodes. They are stopped when this value is dropped.
#[derive(Debug)]
pub(super) struct SoakCluster(RunningNodes);

impl SoakCluster {
    /// Starts the nodes. `farfork` is the program that runs their daemons.
    pub(super) async fn start(farfork: &Path, encrypted: bool) -> Result<Self, BenchError> {
        let limits = ["--cache", CACHE_SIZE, "--zygotes", ZYGOTES_MAX, "--zygote-idle", ZYGOTE_IDLE_S];
        let name = format!("soak-{}", std::process::id());
        let running = RunningNodes::start(SCRATCH_PARENT.as_ref(), &name, farfork, NODES, encrypted, limits)?;
        let soak_cluster = Self(running);
        soak_cluster.wait_all_alive().await?;
        Ok(soak_cluster)
    }

    /// The machine of the first node.
    pub(super) fn machine(&self) -> &dyn Machine {
        self.nodes()[0].machine()
    }

    pub(super) fn nodes(&self) -> &[ClusterNode] {
        self.0.nodes()
    }

    pub(super) fn running(&self) -> &RunningNodes {
        &self.0
    }

    /// Makes a new connection to a node. Each request needs one, because daemons are killed and stopped.
    pub(super) async fn client(&self, node: usize) -> Result<NodeClient, Failure> {
        self.nodes()[node].connect().await
    }

    /// Waits until each node sees all others alive.
    pub(super) async fn wait_all_alive(&self) -> Result<(), BenchError> {
        for node in 0..NODES {
            self.0.connect_when_all_alive(node).await?;
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
                let kept = match client.inspect(name).await? {
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
        self.0.signal(node, &[NodeProcess::Pager], &[SIGKILL])
    }

    /// Kills a node's pager and its keeper. Both are stopped first, so that neither sees the other's end.
    pub(super) fn kill_keeper_and_pager(&self, node: usize) -> Result<(), BenchError> {
        self.0.signal(node, &[NodeProcess::Keeper, NodeProcess::Pager], &[SIGSTOP, SIGKILL])
    }

    /// Kills a node's daemon, and starts another one after the time `away`.
    pub(super) async fn kill_daemon(&mut self, node: usize, away: Duration) -> Result<(), BenchError> {
        self.0.kill_daemon(node)?;
        tokio::time::sleep(away).await;
        self.0.restart_daemon(node)
    }

    /// Cuts a node off from the others for the time `away`.
    pub(super) async fn cut_link(&self, node: usize, away: Duration) -> Result<(), BenchError> {
        self.0.set_link(node, false)?;
        tokio::time::sleep(away).await;
        self.0.set_link(node, true)
    }

    /// Stops one of a node's processes for the time `away`.
    pub(super) async fn stall(&self, node: usize, server: NodeProcess, away: Duration) -> Result<(), BenchError> {
        self.0.signal(node, &[server], &[SIGSTOP])?;
        tokio::time::sleep(away).await;
        self.0.signal(node, &[server], &[SIGCONT])
    }

    /// Stops the nodes. Returns what they have left on their machines.
    pub(super) fn stop(mut self) -> Result<Vec<String>, BenchError> {
        Ok(self.0.stop()?)
    }
}
