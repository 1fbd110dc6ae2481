//! The observer: a process of the benchmark on the machine of a node, which counts resources, reads logs, and sends signals
//! there: `farfork bench process observer`, once for each observation.

use std::io;
use std::path::Path;

use farfork_cluster::local::{LocalNode, netns_path};
use farfork_sys::pidfd;
use farfork_sys::process::{ProcStat, ResidentMemory, read_text};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error_log::LogEnds;
use super::leak_check::ResourceCounts;
use crate::endpoint::print_line;

/// A node, and its observation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ObservedNode {
    pub(super) node: LocalNode,
    pub(super) observation: ObserverRequest,
}

/// An observation. Its result is JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ObserverRequest {
    /// The [`ResourceCounts`].
    Resources,
    /// The [`LogEnds`].
    LogEnds,
    /// The [`LogErrors`](super::error_log::LogErrors) after these ends, without those that have an expected text.
    LogErrors { ends: LogEnds, expected: Vec<String> },
    /// The [`ProcessMemory`] of a process.
    Memory { pid: i32 },
    /// Nothing. Sends these signals in turn, each to all of these processes that run.
    Signal { processes: Vec<NodeProcess>, signals: Vec<i32> },
}

/// A process of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeProcess {
    Daemon,
    Keeper,
    Pager,
    /// The process that publishes volumes.
    VolumeWorker,
    /// The process that replicates volumes.
    VolumeOffload,
}

/// Memory of a process, in KiB.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ProcessMemory {
    /// Resident memory that no other process shares.
    pub(crate) private: f64,
    pub(crate) page_tables: f64,
}

/// Makes the observation of a specification, which is JSON, and prints its result.
///
/// # Errors
/// The observed process or file does not exist, or standard output fails.
pub(crate) fn run_observer(specification: &str) -> io::Result<()> {
    let ObservedNode { node, observation } = serde_json::from_str(specification)?;
    let result = match observation {
        ObserverRequest::Resources => json!(ResourceCounts::of_node(&node)),
        ObserverRequest::LogEnds => json!(LogEnds::read(&node.log_path())),
        ObserverRequest::LogErrors { ends, expected } => {
            json!(ends.read_new(&node.log_path()).find_errors(&node.name, &expected))
        }
        ObserverRequest::Memory { pid } => json!(ProcessMemory::read(pid)?),
        ObserverRequest::Signal { processes, signals } => json!(send_signals(&node, &processes, &signals)?),
    };
    print_line(&result.to_string())
}

impl ProcessMemory {
    fn read(pid: i32) -> io::Result<Self> {
        let private = ResidentMemory::read(pid)?.private_bytes as f64 / 1024.0;
        let status = read_text(&format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
        let page_tables = kib.ok_or_else(|| io::Error::other("/proc/PID/status has no valid VmPTE"))?;
        Ok(Self { private, page_tables })
    }
}

fn send_signals(node: &LocalNode, processes: &[NodeProcess], signals: &[i32]) -> io::Result<()> {
    let pids = processes.iter().filter_map(|process| process.find(node).transpose()).collect::<io::Result<Vec<_>>>()?;
    // Opened first, so that all signals reach the same process.
    let opened = pids.into_iter().map(pidfd::open).collect::<io::Result<Vec<_>>>()?;
    let send = |signal: &i32| opened.iter().try_for_each(|process| pidfd::send_signal(process, *signal));
    let named = |error| io::Error::other(format!("signals {signals:?} to {processes:?} of {}: {error}", node.name));
    signals.iter().try_for_each(send).map_err(named)
}

impl NodeProcess {
    /// Its process id. `None` if a daemon or pager does not run.
    fn find(self, node: &LocalNode) -> io::Result<Option<i32>> {
        let find = |role| find_volume_process(role, &node.volumes_dir()).map(Some);
        match self {
            Self::Daemon => Ok(node.pid()),
            Self::Pager => Ok(node.pager_pid()),
            Self::Keeper => {
                let parent = node.pager_pid().and_then(|pager| Some(ProcStat::read(pager).ok()?.parent));
                Ok(parent.filter(|pid| node.pager_pids().contains(pid)))
            }
            Self::VolumeWorker => find("worker"),
            Self::VolumeOffload => find("offload"),
        }
    }
}

/// The process `farfork volume ROLE` that serves a store.
fn find_volume_process(role: &str, store: &Path) -> io::Result<i32> {
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has = |wanted: &[u8]| line.split(|byte| *byte == 0).any(|argument| argument == wanted);
        if has(b"volume") && has(role.as_bytes()) && has(store.as_os_str().as_encoded_bytes()) {
            return Ok(pid);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no {role} of {}", store.display())))
}

/// Finds the resources that ended nodes have left. Returns a sentence for each.
pub(super) fn find_leftovers(nodes: &[LocalNode]) -> Vec<String> {
    let groups = nodes.iter().flat_map(|node| node.cgroups.clone());
    let names = nodes.iter().map(|node| netns_path(&node.netns));
    let directories = nodes.iter().map(|node| node.run_dir.clone());
    let left = groups.chain(names).chain(directories).filter(|path| path.exists());
    left.map(|path| format!("{} is left after the nodes have ended", path.display())).collect()
}
