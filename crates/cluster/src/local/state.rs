//! `RUN/cluster.json`: what was made for a cluster, written before it is made.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use farfork_sys::identity::ProcessIdentity;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::address;
use super::config::LocalClusterConfig;
use super::error::LocalError;
use super::groups::GroupPlan;

/// Name of the file.
const FILE: &str = "cluster.json";

/// What was made, or is going to be.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    /// The cluster's name.
    pub(super) name: String,
    /// Whether every daemon has answered.
    pub(super) complete: bool,
    /// The namespace of the bridge.
    pub(super) switch: String,
    /// The cluster's control groups.
    pub(super) groups: Vec<GroupPlan>,
    /// How daemons are started.
    pub(super) command: NodeCommand,
    /// The nodes.
    pub(super) nodes: Vec<LocalNode>,
    /// Whether the run directory was made for this cluster.
    pub(super) made_run_dir: bool,
}

/// How daemons are started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeCommand {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
}

/// A node of a local cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LocalNode {
    /// Its name: `n1`.
    pub name: String,
    /// Where its daemon listens, within the cluster.
    pub address: SocketAddr,
    /// Name of its network namespace, for `ip netns exec`.
    pub netns: String,
    /// The Unix socket of its daemon.
    pub socket: PathBuf,
    /// Its run directory.
    pub run_dir: PathBuf,
    /// Directories of the control groups that hold the daemon and all that it starts.
    pub cgroups: Vec<PathBuf>,
    /// The daemon, as [`ProcessIdentity`] writes itself.
    process: Option<String>,
}

impl LocalNode {
    /// The daemon that was started last; it may have ended.
    pub fn process(&self) -> Option<ProcessIdentity> {
        self.process.as_ref()?.parse().ok()
    }

    /// The process id of the daemon that was started last.
    pub fn pid(&self) -> Option<i32> {
        self.process().map(|process| process.pid)
    }

    /// Whether the daemon runs.
    pub fn is_alive(&self) -> bool {
        !super::daemon::wait_end(self, std::time::Duration::ZERO)
    }

    /// What the daemon says.
    pub fn log(&self) -> PathBuf {
        self.run_dir.join("node.log")
    }

    pub(super) fn set_process(&mut self, process: ProcessIdentity) {
        self.process = Some(process.to_string());
    }
}

impl State {
    /// What a cluster needs, before anything is made.
    pub(super) fn plan(
        config: &LocalClusterConfig,
        run_dir: &Path,
        made_run_dir: bool,
        groups: Vec<GroupPlan>,
    ) -> Self {
        let node = |(index, name): (usize, String)| LocalNode {
            address: address::of_node(&config.name, index),
            netns: config.netns(&name),
            socket: run_dir.join(&name).join("node.sock"),
            run_dir: run_dir.join(&name),
            cgroups: groups.iter().map(|group| group.of_node(&name)).collect(),
            process: None,
            name,
        };
        let nodes = config.node_names().enumerate().map(node).collect();
        Self {
            name: config.name.clone(),
            complete: false,
            switch: config.switch(),
            command: NodeCommand {
                program: config.node_command.clone(),
                arguments: config.node_arguments.clone(),
                environment: config.environment.clone(),
            },
            nodes,
            groups,
            made_run_dir,
        }
    }

    /// Reads the file of a run directory, `None` where there is none.
    pub(super) fn read(run_dir: &Path) -> Result<Option<Self>, LocalError> {
        let path = run_dir.join(FILE);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text
                .and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other))
                .map(Some)
                .map_err(failed("read", &path)),
        }
    }

    /// Writes the file, whole or not at all.
    pub(super) fn write(&self, run_dir: &Path) -> Result<(), LocalError> {
        let path = run_dir.join(FILE);
        let draft = path.with_extension("json.new");
        serde_json::to_vec_pretty(self)
            .map_err(io::Error::other)
            .and_then(|text| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(failed("write", &path))
    }

    /// Removes the nodes' run directories, then the file itself.
    pub(super) fn remove_files(&self, run_dir: &Path) -> Result<(), LocalError> {
        for node in &self.nodes {
            // The file could have been written by anybody who may write there: nothing elsewhere is removed for it.
            if node.run_dir.parent() == Some(run_dir) {
                ignore_missing(fs::remove_dir_all(&node.run_dir)).map_err(failed("remove", &node.run_dir))?;
            }
        }
        let client = super::trust::of_client(run_dir);
        ignore_missing(fs::remove_dir_all(&client)).map_err(failed("remove", &client))?;
        let path = run_dir.join(FILE);
        ignore_missing(fs::remove_file(&path)).map_err(failed("remove", &path))
    }
}

/// Removes the run directory, unless somebody has put something else there.
pub(super) fn remove_run_dir(path: &Path) {
    let _ = fs::remove_dir(path);
}

/// Makes the run directory, for its owner alone; tells whether it was missing.
pub(super) fn make_run_dir(path: &Path) -> Result<bool, LocalError> {
    if path.is_dir() {
        return Ok(false);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("make", path))?;
    Ok(true)
}

/// The path without symbolic links, as it will be compared with.
pub(super) fn real_path(path: &Path) -> Result<PathBuf, LocalError> {
    path.canonicalize().map_err(failed("find", path))
}

/// For `map_err`.
pub(super) fn failed<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LocalError + 'a {
    move |cause| LocalError::State { action, path: path.to_owned(), cause }
}

/// Keeps other commands off the run directory while the cluster in it is made or removed.
pub(super) fn lock(run_dir: &Path) -> Result<File, LocalError> {
    let directory = File::open(run_dir).map_err(failed("lock", run_dir))?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LocalError::Busy { run_dir: run_dir.to_owned() }),
        Err(errno) => Err(failed("lock", run_dir)(errno.into())),
    }
}

fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
