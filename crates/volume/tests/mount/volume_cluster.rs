//! Nodes that each have a replica of one volume and have mounted it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use farfork_cluster::catalog::{CatalogLocation, Durability};
use farfork_volume::process::LogStatus;
use tempfile::TempDir;

use super::mounted_volume::{LOG_BYTES, SmallDisk, create_volume};
use super::test_network::{NodeNetwork, TestNetwork};
use super::test_node::{NO_DETECTION_MS, TestNode};

/// The usual names of three nodes.
pub(crate) const THREE_NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A volume with a replica on each of its nodes.
pub(crate) struct VolumeCluster {
    pub(crate) nodes: Vec<TestNode>,
    /// The disk of one of the nodes. Unmounted after the processes of all nodes have ended.
    small_disk: Option<SmallDisk>,
    directory: TempDir,
    catalog: CatalogLocation,
    detection_ms: u64,
}

impl VolumeCluster {
    /// Creates a volume with three replicas, for a test that does not test failure detection.
    pub(crate) fn three_replicas() -> Self {
        Self::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, NO_DETECTION_MS)
    }

    /// Creates a volume with a replica on each node, and mounts it on each node.
    pub(crate) fn mounted(names: &[&str], log_bytes: u64, durability: Durability, detection_ms: u64) -> Self {
        let networks = names.iter().map(|_| NodeNetwork::loopback());
        Self::start(TempDir::new().unwrap(), names, networks, log_bytes, durability, detection_ms)
    }

    /// Creates a volume with three replicas, whose catalog is elsewhere.
    pub(crate) fn with_catalog(
        catalog: CatalogLocation,
        networks: impl Iterator<Item = NodeNetwork>,
        detection_ms: u64,
    ) -> Self {
        let directory = TempDir::new().unwrap();
        let (log_bytes, durability) = (LOG_BYTES, Durability::Memory);
        Self::start_with(directory, catalog, &THREE_NODES, networks, log_bytes, durability, detection_ms)
    }

    /// Creates a volume with three replicas, and a link for each node that can be cut.
    pub(crate) fn networked(network: &TestNetwork, detection_ms: u64) -> Self {
        let networks = (0..THREE_NODES.len()).map(|node| network.node(node));
        Self::start(TempDir::new().unwrap(), &THREE_NODES, networks, LOG_BYTES, Durability::Memory, detection_ms)
    }

    /// Creates a volume with three replicas, one of them on a small disk.
    pub(crate) fn with_small_disk(node: usize) -> Self {
        let directory = TempDir::new().unwrap();
        let root = directory.path().join(THREE_NODES[node]);
        fs::create_dir(&root).unwrap();
        let disk = SmallDisk::mount(&root);
        let networks = THREE_NODES.iter().map(|_| NodeNetwork::loopback());
        let mut cluster =
            Self::start(directory, &THREE_NODES, networks, LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
        cluster.small_disk = Some(disk);
        cluster
    }

    fn start(
        directory: TempDir,
        names: &[&str],
        networks: impl Iterator<Item = NodeNetwork>,
        log_bytes: u64,
        durability: Durability,
        detection_ms: u64,
    ) -> Self {
        let catalog = directory.path().join("catalog").into();
        Self::start_with(directory, catalog, names, networks, log_bytes, durability, detection_ms)
    }

    fn start_with(
        directory: TempDir,
        catalog: CatalogLocation,
        names: &[&str],
        networks: impl Iterator<Item = NodeNetwork>,
        log_bytes: u64,
        durability: Durability,
        detection_ms: u64,
    ) -> Self {
        let start = |(name, network): (&&str, NodeNetwork)| {
            TestNode::start(name, &directory.path().join(name), &catalog, detection_ms, network)
        };
        let mut nodes: Vec<_> = names.iter().zip(networks).map(start).collect();
        create_volume(&nodes[0], names, log_bytes, durability);
        nodes.iter_mut().for_each(TestNode::mount);
        Self { nodes, small_disk: None, directory, catalog, detection_ms }
    }

    /// Starts a node without a replica. Returns its index.
    pub(crate) fn add_node(&mut self, name: &str) -> usize {
        let root = self.directory.path().join(name);
        self.nodes.push(TestNode::start(name, &root, &self.catalog, self.detection_ms, NodeNetwork::loopback()));
        self.nodes.len() - 1
    }

    /// The mount point of a node.
    pub(crate) fn path(&self, node: usize) -> PathBuf {
        self.nodes[node].path()
    }

    /// Syncs every mount, and waits until everything is published. Returns the content of the shared trees, which must be
    /// equal.
    pub(crate) fn published_tree(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        let observer = &self.nodes[0];
        let tree = |node: &TestNode| tree_of(&node.volume_path().join("shared/tree"));
        self.nodes.iter().for_each(TestNode::sync);
        observer.wait_for("the shared trees are equal", || {
            let logs: Vec<_> = observer.status().replicas.into_iter().map(|replica| replica.logs).collect();
            let is_published = logs.iter().flatten().all(|log| log.published == log.logged);
            let ends = |logs: &[LogStatus]| logs.iter().map(|log| log.logged).collect::<Vec<_>>();
            is_published && logs.windows(2).all(|pair| ends(&pair[0]) == ends(&pair[1]))
        });
        let trees: Vec<_> = self.nodes.iter().map(tree).collect();
        for pair in trees.windows(2) {
            let is_equal = |path: &&PathBuf| pair[0].get(*path) == pair[1].get(*path);
            let different: Vec<_> = pair[0].keys().chain(pair[1].keys()).filter(|path| !is_equal(path)).collect();
            assert!(different.is_empty(), "in {}: {different:?} differ", self.directory.path().display());
        }
        trees.into_iter().next().unwrap()
    }

    /// Kills all processes of a node without restarting them.
    pub(crate) fn stop_node(&mut self, node: usize) {
        self.nodes[node].stop_client();
        self.nodes[node].stop_processes();
    }

    /// Kills all processes of several nodes at the same time, without restarting them.
    pub(crate) fn kill_nodes(&mut self, nodes: &[usize]) {
        nodes.iter().for_each(|node| self.nodes[*node].begin_stop());
        nodes.iter().for_each(|node| self.stop_node(*node));
    }

    /// Waits until the chain has `length` members.
    pub(crate) fn wait_for_chain(&self, observer: usize, length: usize) {
        self.nodes[observer].wait_for(&format!("the chain has {length} members"), || {
            self.nodes[observer].status().record.chain.len() == length
        });
    }
}

/// Returns mode and content of each file and directory.
fn tree_of(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut tree = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            if metadata.is_dir() {
                pending.push(path.clone());
            }
            tree.insert(path.strip_prefix(root).unwrap().to_owned(), (metadata.mode(), content));
        }
    }
    tree
}
