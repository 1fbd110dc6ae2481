//! The scrub: the head of a chain checks the volume when the last check is older than the scrub interval. One thread per
//! node.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_cluster::catalog::{VolumeName, VolumeState};
use farfork_wire::NodeName;

use super::{compare, repair};
use crate::chain::CALL_TIMEOUT;
use crate::chain::calls::{HasClient, SaveLastCheck, VolumeKey};
use crate::process::control::{CheckReport, LastCheck, VolumeCheck};
use crate::process::offload::node::{OffloadNode, ReplicaError};

/// Longest time between two tests whether a check is due.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Starts the thread. It checks each volume once per `interval`; zero for never.
pub(in crate::process::offload) fn start(node: &Arc<OffloadNode>, interval: Duration) -> io::Result<()> {
    if interval.is_zero() {
        return Ok(());
    }
    let node = Arc::clone(node);
    thread::Builder::new().name("scrub".to_owned()).spawn(move || {
        loop {
            thread::sleep(POLL_INTERVAL_MAX.min(interval / 4));
            for name in due_volumes(&node, interval) {
                // A check fails if the volume is dropped meanwhile.
                if let Err(error) = scrub(&node, &name)
                    && is_ready(&node, &name)
                {
                    tracing::warn!(error, %name, "a volume is not checked, it is tried again");
                }
            }
        }
    })?;
    Ok(())
}

/// Whether a volume exists and is not being dropped. While the catalog cannot be read, it counts as existing.
fn is_ready(node: &OffloadNode, name: &VolumeName) -> bool {
    match node.record(name) {
        Ok(record) => record.state == VolumeState::Ready,
        Err(error) => !matches!(error, ReplicaError::UnknownVolume(_)),
    }
}

fn due_volumes(node: &OffloadNode, interval: Duration) -> Vec<VolumeName> {
    let Ok(contents) = node.catalog.read() else { return Vec::new() };
    let is_due = |name: &VolumeName| {
        let last = node.store.volume(name.as_str()).last_check();
        last.is_none_or(|last| now_seconds().saturating_sub(last.at_seconds) >= interval.as_secs())
    };
    let heads = contents.volumes.iter().filter(|(_, record)| record.chain.first() == Some(&node.name));
    // A single replica cannot be compared with another one.
    let heads = heads.filter(|(_, record)| record.chain.len() > 1);
    heads.map(|(name, _)| name.clone()).filter(is_due).collect()
}

/// Checks a volume. Pauses after each batch for as long as the batch took, to use at most half of a processor and a disk.
/// Repairs damaged replicas that no program uses.
fn scrub(node: &Arc<OffloadNode>, name: &VolumeName) -> Result<(), String> {
    let began_at_seconds = now_seconds();
    let mut batch_began = Instant::now();
    let pause = |_| {
        thread::sleep(batch_began.elapsed());
        batch_began = Instant::now();
        true
    };
    let request = VolumeCheck { name: name.clone(), should_repair: false, good: None };
    let (key, mut report) = compare(node, &request, pause)?;
    // A node that does not answer may have a client.
    let call = HasClient(key.clone());
    let is_used = |damaged: &NodeName| node.peers.call::<HasClient>(damaged, &call, CALL_TIMEOUT).unwrap_or(true);
    let mut unused = report.damaged_nodes();
    unused.retain(|damaged| !is_used(damaged));
    if !report.differences.is_empty() {
        let (count, first) = (report.differences.len(), &report.differences[0]);
        tracing::error!(%name, count, ?first, ?unused, "replicas differ: see `farfork volume check`");
    }
    report.repaired = repair::repair(node, &key, &report, None, &unused)?.repaired;
    // A check that a user requested meanwhile has the newer result.
    let last = node.store.volume(name.as_str()).last_check();
    let is_outdated = last.is_some_and(|last| last.at_seconds >= began_at_seconds);
    if !is_outdated || !report.repaired.is_empty() {
        save(node, &key, &report);
    }
    Ok(())
}

/// Saves the result for `farfork volume status` on this node. If this node has no replica, a member of the chain saves it.
pub(super) fn save(node: &OffloadNode, key: &VolumeKey, report: &CheckReport) {
    let last = LastCheck {
        at_seconds: now_seconds(),
        differences: report.differences.len() as u64,
        repaired: report.repaired.clone(),
    };
    let saved = match node.store.volume(key.name.as_str()).save_last_check(&last) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let call = SaveLastCheck { volume: key.clone(), last };
            let save = |member: &NodeName| node.peers.call::<SaveLastCheck>(member, &call, CALL_TIMEOUT).is_ok();
            if report.replicas.iter().any(save) { Ok(()) } else { Err("no replica saves it".to_owned()) }
        }
        saved => saved.map_err(|error| error.to_string()),
    };
    if let Err(error) = saved
        && is_ready(node, &key.name)
    {
        tracing::warn!(error, name = %key.name, "the result of a check is not saved");
    }
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
