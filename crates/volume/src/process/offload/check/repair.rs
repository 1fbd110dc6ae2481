//! Repairs damaged replicas: they leave the chain, and rejoin it with a copy of a tree that is not damaged.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::update_volume;
use farfork_wire::NodeName;

use crate::chain::calls::VolumeKey;
use crate::chain::membership;
use crate::process::control::CheckReport;
use crate::process::offload::node::OffloadNode;

/// A replica is copied within this, or the command does not wait for it any longer.
const COPY_TIMEOUT: Duration = Duration::from_secs(3600);
/// How often the catalog is read meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Repairs some of the replicas that a report calls damaged, and waits until they are live again.
pub(super) fn repair(
    node: &OffloadNode,
    key: &VolumeKey,
    report: &CheckReport,
    good: Option<&NodeName>,
    damaged: &BTreeSet<NodeName>,
) -> Result<Vec<NodeName>, String> {
    if damaged.is_empty() {
        return Ok(Vec::new());
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
    let deadline = Instant::now() + COPY_TIMEOUT;
    loop {
        let record = node.record(name).map_err(|error| error.to_string())?;
        if damaged.iter().all(|member| record.chain.contains(member)) {
            return Ok(damaged.iter().cloned().collect());
        }
        if record.id != key.id || Instant::now() >= deadline {
            return Err(format!("volume {name} is still being copied: see `farfork volume status {name}`"));
        }
        thread::sleep(POLL_INTERVAL);
    }
}
