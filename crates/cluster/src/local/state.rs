//! `RUN/cluster.json`: everything created for a cluster, recorded before it is created.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cgroups::{self, CgroupPlan};
use super::config::LocalClusterConfig;
use super::error::LocalError;
use super::etcd::{self, EtcdNode};
use super::node::{DaemonCommand, LocalNode};
use super::run_dir::{self, run_dir_error};
use super::{address, trust};
use crate::catalog::CatalogLocation;

/// Name of the file.
const FILE: &str = "cluster.json";

/// The parts of a cluster. Each exists or is planned.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ClusterState {
    /// The cluster's name.
    pub(super) name: String,
    /// Whether every daemon has answered.
    pub(super) complete: bool,
    /// The namespace of the bridge.
    pub(super) switch: String,
    /// The cluster's control groups.
    pub(super) groups: Vec<CgroupPlan>,
    /// The command that starts daemons.
    pub(super) command: DaemonCommand,
    /// The nodes.
    pub(super) nodes: Vec<LocalNode>,
    /// The members of etcd. Without them, the catalog of volumes is a file.
    #[serde(default)]
    pub(super) etcd: Vec<EtcdNode>,
    /// Whether the run directory was made for this cluster.
    pub(super) made_run_dir: bool,
}

impl ClusterState {
    /// Plans a cluster of which nothing exists yet.
    pub(super) fn planned(
        config: &LocalClusterConfig,
        run_dir: &Path,
        made_run_dir: bool,
        groups: Vec<CgroupPlan>,
    ) -> Self {
        let node = |(index, name): (usize, String)| {
            let cgroups = groups.iter().map(|group| group.node_directory(&name)).collect();
            let (netns, run_dir) = (config.node_netns(&name), run_dir.join(&name));
            LocalNode::new(name, address::node_address(&config.name, index), netns, run_dir, cgroups)
        };
        let nodes: Vec<LocalNode> = config.node_names().enumerate().map(node).collect();
        let etcd_groups = cgroups::etcd_cgroups(&groups);
        let etcd = if config.has_etcd { etcd::plan_members(&nodes, run_dir, &etcd_groups) } else { Vec::new() };
        Self {
            name: config.name.clone(),
            complete: false,
            switch: config.bridge_netns(),
            command: DaemonCommand {
                program: config.node_command.clone(),
                arguments: config.node_arguments.clone(),
                environment: config.environment.clone(),
            },
            nodes,
            etcd,
            groups,
            made_run_dir,
        }
    }

    /// Whether a run directory has a `cluster.json`.
    pub(super) fn exists_in(run_dir: &Path) -> bool {
        run_dir.join(FILE).exists()
    }

    /// Reads the file of a run directory; `None` if there is none.
    pub(super) fn read(run_dir: &Path) -> Result<Option<Self>, LocalError> {
        let path = run_dir.join(FILE);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text
                .and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other))
                .map(Some)
                .map_err(run_dir_error("read", &path)),
        }
    }

    /// Replaces the file atomically.
    pub(super) fn write(&self, run_dir: &Path) -> Result<(), LocalError> {
        let path = run_dir.join(FILE);
        let draft = path.with_extension("json.new");
        serde_json::to_vec_pretty(self)
            .map_err(io::Error::other)
            .and_then(|text| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|error| {
                // The draft may be incomplete, for example on a full disk.
                let _ = fs::remove_file(&draft);
                run_dir_error("write", &path)(error)
            })
    }

    /// The catalog of volumes.
    pub(super) fn catalog(&self, run_dir: &Path) -> CatalogLocation {
        match self.etcd.as_slice() {
            [] => run_dir::volumes_dir(run_dir).join("catalog").into(),
            members => CatalogLocation::Etcd(etcd::location(members)),
        }
    }

    /// Removes the nodes' run directories, the client's trust directory, the volumes and the data of etcd. The file itself is removed last.
    pub(super) fn remove_files(&self, run_dir: &Path) -> Result<(), LocalError> {
        for node in &self.nodes {
            // Do not trust the file: any user with write access to the run directory may have changed it. Remove only
            // directories in the run directory.
            if node.run_dir.parent() == Some(run_dir) {
                ignore_missing(fs::remove_dir_all(&node.run_dir)).map_err(run_dir_error("remove", &node.run_dir))?;
            }
        }
        for directory in [trust::client_trust_dir(run_dir), run_dir::volumes_dir(run_dir), etcd::etcd_dir(run_dir)] {
            ignore_missing(fs::remove_dir_all(&directory)).map_err(run_dir_error("remove", &directory))?;
        }
        let path = run_dir.join(FILE);
        ignore_missing(fs::remove_file(&path)).map_err(run_dir_error("remove", &path))
    }
}

fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
