//! Configuration of a local cluster, and the names derived from it.

use std::path::PathBuf;

use farfork_wire::NodeName;

use super::address::NODES_MAX;
use super::error::LocalError;
use super::etcd;

/// The configuration of a local cluster.
#[derive(Debug, Clone)]
pub struct LocalClusterConfig {
    /// The cluster's name. It is part of the names of namespaces and control groups, so several clusters can run at a time.
    pub name: String,
    /// The directory of the cluster's files; made if missing.
    pub run_dir: PathBuf,
    /// Number of nodes.
    pub nodes: usize,
    /// The program `farfork`, or one that takes its `node` command.
    pub node_command: PathBuf,
    /// Further arguments of `node`, in addition to `--name`, `--run-dir`, `--listen`, `--trust`, `--volumes`, `--catalog`
    /// and `--join`.
    pub node_arguments: Vec<String>,
    /// Additions to the environment of the daemons.
    pub environment: Vec<(String, String)>,
    /// Whether an etcd of three members runs next to the nodes, and has their catalog of volumes.
    pub has_etcd: bool,
}

impl LocalClusterConfig {
    /// A cluster of `nodes` daemons without further arguments.
    pub fn new(name: &str, run_dir: impl Into<PathBuf>, nodes: usize, node_command: impl Into<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            run_dir: run_dir.into(),
            nodes,
            node_command: node_command.into(),
            node_arguments: Vec::new(),
            environment: Vec::new(),
            has_etcd: false,
        }
    }

    /// Checks the name and the number of nodes, before anything is made.
    pub(super) fn check(&self) -> Result<(), LocalError> {
        NodeName::new(&self.name).map_err(|cause| LocalError::InvalidName { name: self.name.clone(), cause })?;
        if !(1..=NODES_MAX).contains(&self.nodes) {
            return Err(LocalError::NodeCount { nodes: self.nodes, nodes_max: NODES_MAX });
        }
        if self.has_etcd { etcd::require_program() } else { Ok(()) }
    }

    /// Name of the namespace that holds the bridge.
    pub(super) fn bridge_netns(&self) -> String {
        format!("ff-{}-net", self.name)
    }

    /// Name of a node's namespace.
    pub(super) fn node_netns(&self, node: &str) -> String {
        format!("ff-{}-{node}", self.name)
    }

    /// Names of the nodes, `n1` first.
    pub(super) fn node_names(&self) -> impl Iterator<Item = String> + use<> {
        (1..=self.nodes).map(|number| format!("n{number}"))
    }

    /// Names of all namespaces.
    pub(super) fn all_netns(&self) -> Vec<String> {
        std::iter::once(self.bridge_netns()).chain(self.node_names().map(|node| self.node_netns(&node))).collect()
    }
}
