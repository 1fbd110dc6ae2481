//! `DemoCluster`: the nodes that the demo starts for itself, and stops when it ends.

use std::env;
use std::fs;
use std::io::{Write as _, stderr};
use std::path::Path;

use anyhow::Context as _;
use farfork_cluster::local::{LocalCluster, LocalClusterConfig, LocalNode};

use crate::commands::up;

/// Number of nodes: one for the parent, two for its children.
const NODES: usize = 3;

/// The interface that connects a node with the others.
const INTERFACE: &str = "eth0:";

/// Column of `/proc/PID/net/dev` with the bytes sent. Columns after the interface's name count from 0.
const SENT_COLUMN: usize = 8;

/// Three nodes, which end when this is dropped.
pub(super) struct DemoCluster {
    /// The running nodes; `None` after `stop`.
    local: Option<LocalCluster>,
}

impl DemoCluster {
    /// Starts the nodes, with their files below `scratch`.
    pub(super) fn start(scratch: &Path) -> anyhow::Result<Self> {
        let program = env::current_exe().context("cannot read the path of this program")?;
        let name = format!("demo-{}", std::process::id());
        let config = LocalClusterConfig::new(&name, scratch.join("cluster"), NODES, program);
        Ok(Self { local: Some(up::start_cluster(&config)?) })
    }

    /// The node of the parent.
    pub(super) fn parent_node(&self) -> &LocalNode {
        &self.nodes()[0]
    }

    /// The nodes of the parent's children.
    pub(super) fn child_nodes(&self) -> &[LocalNode] {
        &self.nodes()[1..]
    }

    /// Bytes that the parent's node has sent over the network, headers included.
    pub(super) fn bytes_sent(&self) -> anyhow::Result<u64> {
        let pid = self.parent_node().pid().context("the daemon of the first node does not run")?;
        // A process sees the interfaces of its own network namespace.
        let table = fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
        let counters = table.lines().find_map(|line| line.trim().strip_prefix(INTERFACE));
        let sent = counters.and_then(|counters| counters.split_whitespace().nth(SENT_COLUMN)?.parse().ok());
        sent.context("/proc/PID/net/dev has no counter of sent bytes")
    }

    /// Stops the nodes.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        match self.local.take() {
            Some(local) => Ok(local.down()?),
            None => Ok(()),
        }
    }

    /// All nodes, the parent's first.
    pub(super) fn nodes(&self) -> &[LocalNode] {
        self.local.as_ref().map_or(&[], LocalCluster::nodes)
    }
}

impl Drop for DemoCluster {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.local.take().map(LocalCluster::down) {
            let _ = writeln!(stderr(), "farfork: the demo's cluster is not removed completely: {error}");
        }
    }
}
