//! Repairs damaged replicas: they leave the chain, and rejoin it with a copy of a tree that is not damaged.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::update_volume;
use farfork_wire::NodeName;

use crate::chain::calls::{HasMount, VolumeKey};
use crate::chain::{CALL_TIMEOUT, membership};
use crate::process::control::CheckReport;
use crate::process::offload::node::OffloadNode;

/// Longest wait until all damaged replicas are copied. After this time, the repair counts as failed.
const COPY_TIMEOUT: Duration = Duration::from_secs(3600);
/// Longest wait until the mounts of the repaired nodes are usable again. After this time, the report names the nodes whose
/// mounts are not. Their supervisors may wait for seconds before they start the next client.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between two checks of the catalog or the mounts during a repair.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The result of a repair.
#[derive(Debug, Default)]
pub(super) struct RepairOutcome {
    /// The replicas that were copied again.
    pub(super) repaired: Vec<NodeName>,
    /// The nodes of `repaired` whose mount is not usable again yet.
    pub(super) remounting: Vec<NodeName>,
}

/// Repairs the replicas in `damaged`, which are all or some of the damaged replicas of a report. Waits until they are live
/// again, and then until the mounts of their nodes are usable.
pub(super) fn repair(
    node: &OffloadNode,
    key: &VolumeKey,
    report: &CheckReport,
    good: Option<&NodeName>,
    damaged: &BTreeSet<NodeName>,
) -> Result<RepairOutcome, String> {
    if damaged.is_empty() {
        return Ok(RepairOutcome::default());
    }
    let name = &key.name;
    let all_damaged = report.damaged_nodes();
    if report.replicas.iter().all(|replica| all_damaged.contains(replica)) {
        return Err(format!(
            "volume {name}: each replica is damaged somewhere; choose the one that the others are copied from with --good"
        ));
    }
    if let Some(good) = good.filter(|good| all_damaged.contains(good)) {
        return Err(format!(
            "volume {name}: the replica on node {good}, which --good names, is damaged itself; choose another one"
        ));
    }
    let mut interrupted: Vec<NodeName> =
        damaged.iter().filter(|member| has_mount(node, key, member)).cloned().collect();
    update_volume(&*node.catalog, name, |record| {
        let is_same = record.id == key.id;
        for member in damaged.iter().filter(|_| is_same) {
            let epoch = record.epoch;
            membership::remove_member(record, member, epoch);
        }
        is_same
    })
    .map_err(|error| error.to_string())?;
    tracing::warn!(%name, ?damaged, "damaged replicas are copied again");
    wait_until_live(node, key, damaged)?;
    let deadline = Instant::now() + MOUNT_TIMEOUT;
    loop {
        interrupted.retain(|member| !has_mount(node, key, member));
        if interrupted.is_empty() || Instant::now() >= deadline {
            return Ok(RepairOutcome { repaired: damaged.iter().cloned().collect(), remounting: interrupted });
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn wait_until_live(node: &OffloadNode, key: &VolumeKey, damaged: &BTreeSet<NodeName>) -> Result<(), String> {
    let name = &key.name;
    let deadline = Instant::now() + COPY_TIMEOUT;
    loop {
        let record = node.record(name).map_err(|error| error.to_string())?;
        if damaged.iter().all(|member| record.chain.contains(member)) {
            return Ok(());
        }
        if record.id != key.id || Instant::now() >= deadline {
            return Err(format!("volume {name} is still being copied: see `farfork volume status {name}`"));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Whether programs of a node can use its mount; false also when the node does not answer.
fn has_mount(node: &OffloadNode, key: &VolumeKey, member: &NodeName) -> bool {
    node.peers.call::<HasMount>(member, &HasMount(key.clone()), CALL_TIMEOUT).unwrap_or(false)
}
