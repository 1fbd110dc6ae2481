//! Detects nodes whose offload processes do not answer, and removes them from the chain. Called whenever something waits for
//! a node: a client, the copier of a log, or a replica that rejoins.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

use super::node::{OffloadNode, ReplicaError};
use super::volume::ReplicatedVolume;
use crate::chain::calls::{HasClient, VolumeKey};
use crate::chain::{PeerError, membership};

/// A node that answers within this time is alive, so the other nodes are not called. Much shorter than the detection time.
const PROMPT_ANSWER_MAX: Duration = Duration::from_millis(100);
/// Interval in which a call measures whether this process gets CPU time.
const STALL_INTERVAL: Duration = Duration::from_millis(10);
/// A call is repeated if this process has lost more than this part of the detection time.
const LOST_PART_MAX: u32 = 10;
/// Maximum number of calls to one node. Repeated calls get shorter, unless this process gets no CPU time at all.
const CALLS_MAX: u32 = 8;

/// The result of an attempt to remove silent nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SilentRemoval {
    /// The node has answered.
    NotSilent,
    /// No member answers, so none is removed.
    LastMembers,
    /// The node has left the chain with all other silent nodes, or the chain has changed meanwhile.
    Removed,
}

impl ReplicatedVolume {
    /// Returns the silent nodes of the chain, if `suspect` is one of them, and none otherwise. The others are called while the
    /// answer of `suspect` is missing, so that several dead nodes take no longer than one.
    pub(super) fn find_silent_nodes(&self, record: &VolumeRecord, suspect: &NodeName) -> Vec<NodeName> {
        let (answer, answers) = mpsc::channel();
        self.start_call(suspect, answer.clone());
        if answers.recv_timeout(PROMPT_ANSWER_MAX).is_ok() {
            return Vec::new();
        }
        let is_other = |node: &&NodeName| **node != self.node.name && *node != suspect;
        let mut silent: Vec<NodeName> = record.chain.iter().chain(&record.joining).filter(is_other).cloned().collect();
        silent.iter().for_each(|node| self.start_call(node, answer.clone()));
        silent.push(suspect.clone());
        drop(answer);
        // Ends when each call has ended.
        for alive in answers {
            if alive == *suspect {
                return Vec::new();
            }
            silent.retain(|node| *node != alive);
        }
        silent
    }

    /// Calls a node in a thread of its own. Sends the name of the node if it is alive.
    fn start_call(&self, called: &NodeName, answer: Sender<NodeName>) {
        let (node, key, name) = (Arc::clone(&self.node), self.key.clone(), called.clone());
        let unsent = answer.clone();
        let call = move || {
            // The threads of this process may have a low priority. A thread that waits for a CPU would take the other node
            // for dead.
            let is_alive = node.priority.suspend_during(|| node.is_alive(&key, &name));
            // The caller may have got the answer that it needs.
            is_alive.then(|| answer.send(name))
        };
        if let Err(error) = thread::Builder::new().name("liveness".to_owned()).spawn(call) {
            // A node that was not called is not silent.
            tracing::error!(%error, volume = %self.key.name, node = %called, "a node cannot be called");
            let _ = unsent.send(called.clone());
        }
    }

    /// Removes the silent nodes from the chain, if `suspect` is one of them.
    pub(super) fn remove_silent_nodes(
        &self,
        record: &VolumeRecord,
        suspect: &NodeName,
    ) -> Result<SilentRemoval, ReplicaError> {
        let silent = self.find_silent_nodes(record, suspect);
        if silent.is_empty() {
            return Ok(SilentRemoval::NotSilent);
        }
        self.require_trust()?;
        let own_name = &self.node.name;
        let remove = |current: &mut VolumeRecord| membership::remove_silent(current, &silent, own_name, record.epoch);
        let changed = self.update_catalog(remove)?;
        if changed.epoch == record.epoch {
            return Ok(SilentRemoval::LastMembers);
        }
        let names: Vec<&str> = silent.iter().map(NodeName::as_str).collect();
        tracing::warn!(volume = %self.key.name, nodes = names.join(", "), epoch = changed.epoch, "nodes do not answer, and have left the chain");
        Ok(SilentRemoval::Removed)
    }
}

impl OffloadNode {
    /// Whether the offload process of a node answers within the time of failure detection. Time in which this process got no
    /// CPU time does not count. While this node cannot read the catalog, the other node counts as alive: it may have another
    /// address now, and no node can leave a chain.
    fn is_alive(&self, volume: &VolumeKey, node: &NodeName) -> bool {
        let request = HasClient(volume.clone());
        let mut limit = self.detection_time;
        for _ in 0..CALLS_MAX {
            let meter = StallMeter::start();
            let answer = self.peers.call::<HasClient>(node, &request, limit);
            if matches!(answer, Ok(_) | Err(PeerError::Catalog(_))) {
                return true;
            }
            let lost = meter.stop();
            if lost <= self.detection_time / LOST_PART_MAX {
                break;
            }
            limit = lost.clamp(self.detection_time / 4, self.detection_time);
        }
        self.catalog.read().is_err()
    }
}

/// Measures how long this process got no CPU time: it was stopped, or other processes used all CPUs.
struct StallMeter {
    stop: Sender<()>,
    lost: thread::JoinHandle<Duration>,
}

impl StallMeter {
    fn start() -> Self {
        let (stop, stopped) = mpsc::channel();
        // The time until the thread runs counts, too: this process may be stopped before.
        let mut slept_at = Instant::now();
        let lost = thread::spawn(move || {
            let mut lost = Duration::ZERO;
            while stopped.recv_timeout(STALL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // Timers are late by less than an interval on an idle machine.
                lost += slept_at.elapsed().saturating_sub(2 * STALL_INTERVAL);
                slept_at = Instant::now();
            }
            lost + slept_at.elapsed().saturating_sub(2 * STALL_INTERVAL)
        });
        Self { stop, lost }
    }

    fn stop(self) -> Duration {
        drop(self.stop);
        self.lost.join().unwrap_or_default()
    }
}
