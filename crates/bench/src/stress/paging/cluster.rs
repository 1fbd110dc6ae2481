//! The nodes of a soak run, and the faults that it injects: killed or stalled processes, and cut links.

use std::path::Path;
use std::time::{Duration, Instant};

use farfork_api::v1;

use super::script::NODES;
use crate::error::BenchError;
use crate::experiment::nodes::{RunningNodes, SIGCONT, SIGKILL, SIGSTOP};
use crate::experiment::observer::NodeProcess;
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

/// Starts the nodes. `farfork` is the program that runs their daemons.
pub(super) async fn start_nodes(farfork: &Path, encrypted: bool) -> Result<RunningNodes, BenchError> {
    let limits = ["--cache", CACHE_SIZE, "--zygotes", ZYGOTES_MAX, "--zygote-idle", ZYGOTE_IDLE_S];
    let name = format!("soak-{}", std::process::id());
    let nodes = RunningNodes::start(SCRATCH_PARENT.as_ref(), &name, farfork, NODES, encrypted, limits)?;
    wait_all_alive(&nodes).await?;
    Ok(nodes)
}

/// Waits until each node sees all others alive.
pub(super) async fn wait_all_alive(nodes: &RunningNodes) -> Result<(), BenchError> {
    for node in 0..NODES {
        nodes.connect_when_all_alive(node).await?;
    }
    Ok(())
}

/// Waits until no node has a zygote, for each node at most [`ZYGOTES_LIMIT`]. Zygotes are not leaks, but their
/// resources could hide a leak.
pub(super) async fn wait_for_no_zygotes(nodes: &RunningNodes) -> Result<(), BenchError> {
    let give_up = Instant::now() + ZYGOTES_LIMIT;
    for node in nodes.nodes() {
        let mut client = node.connect().await?;
        loop {
            let kept = match client.inspect(&node.name).await? {
                Some(v1::inspect_response::Object::Node(detail)) => detail.zygotes.map_or(0, |zygotes| zygotes.kept),
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
pub(super) fn kill_pager(nodes: &RunningNodes, node: usize) -> Result<(), BenchError> {
    nodes.signal(node, &[NodeProcess::Pager], &[SIGKILL])
}

/// Kills a node's pager and its keeper. Both are stopped first, so that neither sees the other's end.
pub(super) fn kill_keeper_and_pager(nodes: &RunningNodes, node: usize) -> Result<(), BenchError> {
    nodes.signal(node, &[NodeProcess::Keeper, NodeProcess::Pager], &[SIGSTOP, SIGKILL])
}

/// Kills a node's daemon, and starts another one after the time `away`.
pub(super) async fn kill_daemon(nodes: &mut RunningNodes, node: usize, away: Duration) -> Result<(), BenchError> {
    nodes.kill_daemon(node)?;
    tokio::time::sleep(away).await;
    nodes.restart_daemon(node)
}

/// Cuts a node off from the others for the time `away`.
pub(super) async fn cut_link(nodes: &RunningNodes, node: usize, away: Duration) -> Result<(), BenchError> {
    nodes.set_link(node, false)?;
    tokio::time::sleep(away).await;
    nodes.set_link(node, true)
}

/// Stops one of a node's processes for the time `away`.
pub(super) async fn stall(
    nodes: &RunningNodes,
    node: usize,
    process: NodeProcess,
    away: Duration,
) -> Result<(), BenchError> {
    nodes.signal(node, &[process], &[SIGSTOP])?;
    tokio::time::sleep(away).await;
    nodes.signal(node, &[process], &[SIGCONT])
}
