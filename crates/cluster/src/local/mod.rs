//! A local cluster, for trying and testing: each node is a network namespace of this machine with a daemon in it.
//!
//! `ClusterState` is written to `RUN/cluster.json` before anything is created. A later process that finds the file can
//! therefore remove everything. For a daemon, a node on another machine differs only in its address.

mod address;
mod cgroups;
mod config;
mod daemon;
mod error;
mod etcd;
mod network;
mod node;
mod run_dir;
mod state;
mod trust;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_sys::mount::point;

pub use self::config::LocalClusterConfig;
pub use self::daemon::{COMMAND_VARIABLES, read_log_tail};
pub use self::error::LocalError;
pub use self::etcd::{EtcdTls, TestEtcd};
pub use self::network::netns_path;
pub use self::node::{LocalNode, listening_process};

use self::daemon::LaunchOptions;
use self::network::NetnsLock;
use self::state::ClusterState;
use crate::catalog::CatalogLocation;

/// The mount point for private files of containers with a shared root. The last daemon of the machine removes it, unless
/// that daemon was killed.
const CONTAINER_PRIVATE_DIR: &str = "/run/farfork";

/// A step of `up`, for a progress display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpProgress<'a> {
    /// The remains of an earlier cluster are being removed.
    Cleaning,
    /// Namespaces and links are being made.
    Network,
    /// The members of etcd are being started.
    Etcd,
    /// A node's daemon is being started.
    Starting(&'a str),
    /// A node's daemon answers.
    Ready(&'a str),
}

/// A cluster of this machine. It continues when this value is dropped; [`LocalCluster::down`] ends it.
///
/// ```text
///   ff-NAME-n1        ff-NAME-n2        ff-NAME-n3        network namespaces, with a loopback each
///   eth0 10.x.y.1     eth0 10.x.y.2     eth0 10.x.y.3
///      │ veth            │                 │
///   ┌──┴─────────────────┴─────────────────┴──┐
///   │ n1                n2                n3   │  ff-NAME-net: a namespace too, so that the cluster
///   │                   br0                    │  does not touch the machine's own network
///   └──────────────────────────────────────────┘
/// ```
///
/// `ip` (iproute2) creates interfaces and namespaces. Each daemon starts in its own control groups. Next to these, it
/// creates the groups for everything that it starts. All processes in these groups belong to the cluster, even after
/// the daemon has died.
///
/// ```text
/// RUN/cluster.json       what was created
/// RUN/NODE/              the node's run directory
/// RUN/NODE/node.log      its daemon's log
/// RUN/NODE/trust/        its identity in the cluster
/// RUN/NODE/volumes/      its replicas of volumes
/// RUN/volumes/catalog    the catalog of volumes, which all nodes share
/// RUN/etcd/              data and logs of the members of etcd, which have the catalog instead
/// RUN/client/            an identity for commands that connect to a node over the network
/// ```
#[derive(Debug)]
pub struct LocalCluster {
    run_dir: PathBuf,
    state: ClusterState,
}

impl LocalCluster {
    /// Makes the cluster and waits until every daemon answers. First removes the remains of a crashed cluster in the same
    /// run directory. If a step fails, removes everything that was made.
    ///
    /// # Errors
    /// The [`LocalError`] of the first step that fails; [`LocalError::AlreadyExists`] if a cluster runs in this directory.
    pub fn up(config: &LocalClusterConfig, progress: &mut dyn FnMut(UpProgress<'_>)) -> Result<Self, LocalError> {
        config.check()?;
        let made_run_dir = run_dir::make_run_dir(&config.run_dir)?;
        let lock = run_dir::lock_run_dir(&config.run_dir)?;
        let outcome = Self::up_locked(config, made_run_dir, progress);
        if outcome.is_err() && !ClusterState::exists_in(&config.run_dir) {
            lock.remove();
            if made_run_dir {
                run_dir::remove_run_dir(&config.run_dir);
            }
        }
        outcome
    }

    /// Does the steps of [`Self::up`] for which the run directory must be locked.
    fn up_locked(
        config: &LocalClusterConfig,
        mut made_run_dir: bool,
        progress: &mut dyn FnMut(UpProgress<'_>),
    ) -> Result<Self, LocalError> {
        if let Some(earlier) = Self::load_if_present(&config.run_dir)? {
            if earlier.state.complete && earlier.nodes().iter().any(LocalNode::is_alive) {
                return Err(LocalError::AlreadyExists { run_dir: earlier.run_dir });
            }
            progress(UpProgress::Cleaning);
            earlier.tear_down()?;
            made_run_dir |= earlier.state.made_run_dir;
        }
        let names = network::lock_new_names(&config.all_netns())?;
        let mut cluster = Self::write_planned_state(config, made_run_dir)?;
        match cluster.create_all(names, progress) {
            Ok(()) => Ok(cluster),
            Err(error) => {
                if let Err(second) = cluster.tear_down() {
                    tracing::warn!(error = %second, "a cluster that could not be made is not removed completely");
                }
                Err(error)
            }
        }
    }

    /// Reads the state of the cluster in a run directory.
    ///
    /// # Errors
    /// [`LocalError::NotFound`] if there is none; [`LocalError::State`] if its file cannot be read.
    pub fn load(run_dir: &Path) -> Result<Self, LocalError> {
        Self::load_if_present(run_dir)?.ok_or_else(|| LocalError::NotFound { run_dir: run_dir.to_owned() })
    }

    /// Ends the cluster: stops the daemons, kills all other processes, and removes control groups, network and files of the
    /// cluster.
    ///
    /// # Errors
    /// The [`LocalError`] of the first part that cannot be removed. The cluster's files then stay: repeat with
    /// [`Self::load`].
    pub fn down(self) -> Result<(), LocalError> {
        let lock = run_dir::lock_run_dir(&self.run_dir)?;
        self.tear_down()?;
        lock.remove();
        if self.state.made_run_dir {
            run_dir::remove_run_dir(&self.run_dir);
        }
        Ok(())
    }

    /// Checks that the cluster has the name `wanted`.
    ///
    /// # Errors
    /// [`LocalError::OtherName`].
    pub fn require_name(&self, wanted: &str) -> Result<(), LocalError> {
        if self.state.name == wanted {
            return Ok(());
        }
        let (run_dir, name) = (self.run_dir.clone(), self.state.name.clone());
        Err(LocalError::OtherName { run_dir, name, wanted: wanted.to_owned() })
    }

    /// Its nodes, `n1` first.
    pub fn nodes(&self) -> &[LocalNode] {
        &self.state.nodes
    }

    /// The catalog of volumes. An etcd is reached only from the networks of the nodes.
    pub fn catalog(&self) -> CatalogLocation {
        self.state.catalog(&self.run_dir)
    }

    /// The trust directory of a client of this cluster.
    pub fn client_trust(&self) -> PathBuf {
        trust::client_trust_dir(&self.run_dir)
    }

    /// Sends a signal to a node's daemon, but not to its pager or its children.
    ///
    /// # Errors
    /// [`LocalError::NoNode`], [`LocalError::NotRunning`], [`LocalError::Signal`].
    pub fn signal_node(&self, index: usize, signal: i32) -> Result<(), LocalError> {
        daemon::signal_daemon(self.node(index)?, signal)
    }

    /// Waits until a node's daemon has ended, at most `limit`. Returns whether it has ended.
    ///
    /// # Errors
    /// [`LocalError::NoNode`].
    pub fn wait_node_exit(&self, index: usize, limit: Duration) -> Result<bool, LocalError> {
        Ok(self.node(index)?.wait_exit(limit))
    }

    /// Restarts the members of etcd and the daemons that have ended, and waits until they answer.
    ///
    /// # Errors
    /// As [`LocalCluster::up`]. Daemons that were started continue to run.
    pub fn restart_ended(&mut self, progress: &mut dyn FnMut(UpProgress<'_>)) -> Result<(), LocalError> {
        let _lock = run_dir::lock_run_dir(&self.run_dir)?;
        if !self.state.etcd.is_empty() {
            self.start_etcd(progress)?;
        }
        for index in 0..self.nodes().len() {
            if !self.nodes()[index].is_alive() {
                progress(UpProgress::Starting(&self.nodes()[index].name));
                self.restart_node(index)?;
            }
            progress(UpProgress::Ready(&self.nodes()[index].name));
        }
        Ok(())
    }

    /// Restarts a node's daemon that has ended, and waits until it answers.
    ///
    /// # Errors
    /// [`LocalError::NoNode`], [`LocalError::AlreadyRunning`], and as [`LocalCluster::up`].
    pub fn restart_node(&mut self, index: usize) -> Result<(), LocalError> {
        let node = self.node(index)?;
        if node.is_alive() {
            return Err(LocalError::AlreadyRunning { node: node.name.clone() });
        }
        self.launch_node(index)?;
        daemon::wait_ready(self.node(index)?)
    }

    /// Cuts a node off from the others: sets its link down.
    ///
    /// # Errors
    /// [`LocalError::NoNode`], [`LocalError::Ip`].
    pub fn cut_link(&self, index: usize) -> Result<(), LocalError> {
        network::set_link(&self.state.switch, &self.node(index)?.name, false)
    }

    /// Connects a node with the others again: sets its link up.
    ///
    /// # Errors
    /// [`LocalError::NoNode`], [`LocalError::Ip`].
    pub fn restore_link(&self, index: usize) -> Result<(), LocalError> {
        network::set_link(&self.state.switch, &self.node(index)?.name, true)
    }

    fn load_if_present(run_dir: &Path) -> Result<Option<Self>, LocalError> {
        match ClusterState::read(run_dir)? {
            Some(state) => Ok(Some(Self { run_dir: run_dir::real_path(run_dir)?, state })),
            None => Ok(None),
        }
    }

    /// Writes the plan to `cluster.json`, before anything is made.
    fn write_planned_state(config: &LocalClusterConfig, made_run_dir: bool) -> Result<Self, LocalError> {
        let run_dir = run_dir::real_path(&config.run_dir)?;
        let state = ClusterState::planned(config, &run_dir, made_run_dir, cgroups::plan_cgroups(&config.name)?);
        state.write(&run_dir)?;
        Ok(Self { run_dir, state })
    }

    fn create_all(&mut self, names: NetnsLock, progress: &mut dyn FnMut(UpProgress<'_>)) -> Result<(), LocalError> {
        progress(UpProgress::Network);
        network::create_network(&self.state, names)?;
        cgroups::create_cgroups(&self.state.groups, &self.state.nodes)?;
        self.state.nodes.iter().try_for_each(|node| run_dir::make_private_dir(&node.run_dir))?;
        trust::create_identities(&self.state.name, &self.state.nodes, &self.run_dir)?;
        if !self.state.etcd.is_empty() {
            cgroups::create_etcd_cgroups(&self.state.groups)?;
            run_dir::make_private_dir(&etcd::etcd_dir(&self.run_dir))?;
            self.start_etcd(progress)?;
        }
        // The other nodes join the first node, so the first node must answer before they start. The other nodes may
        // start together.
        for stage in [0..1, 1..self.state.nodes.len()] {
            for index in stage.clone() {
                progress(UpProgress::Starting(&self.state.nodes[index].name));
                self.launch_node(index)?;
            }
            for node in &self.state.nodes[stage] {
                daemon::wait_ready(node)?;
                progress(UpProgress::Ready(&node.name));
            }
        }
        self.state.complete = true;
        self.state.write(&self.run_dir)
    }

    /// Starts the members of etcd that do not run, and waits until most members answer.
    fn start_etcd(&mut self, progress: &mut dyn FnMut(UpProgress<'_>)) -> Result<(), LocalError> {
        progress(UpProgress::Etcd);
        etcd::start_ended(&mut self.state.etcd)?;
        self.state.write(&self.run_dir)?;
        etcd::wait_ready(&self.state.etcd, &self.state.nodes[0])
    }

    fn launch_node(&mut self, index: usize) -> Result<(), LocalError> {
        let first = self.state.nodes[0].address;
        let (client, volumes) = (self.client_trust(), run_dir::volumes_dir(&self.run_dir));
        let (etcd, catalog) = (etcd::etcd_dir(&self.run_dir), self.catalog());
        run_dir::make_private_dir(&volumes)?;
        let run_dirs = self.state.nodes.iter().map(|node| node.run_dir.as_os_str());
        let etcd = (!self.state.etcd.is_empty()).then_some(etcd.as_os_str());
        let shared = [client.as_os_str(), volumes.as_os_str()].into_iter().chain(etcd);
        let hidden_paths = run_dirs.chain(shared).collect::<Vec<_>>().join(OsStr::new(":"));
        let join = (index > 0).then_some(first);
        let launch =
            LaunchOptions { join, catalog: &catalog, command: &self.state.command, hidden_paths: &hidden_paths };
        let process = daemon::start_daemon(&self.state.nodes[index], &launch)?;
        self.state.nodes[index].set_process(process);
        self.state.write(&self.run_dir)
    }

    /// Removes all planned parts that exist. Returns the first failure.
    fn tear_down(&self) -> Result<(), LocalError> {
        daemon::stop_all(&self.state.nodes);
        let outcomes = [cgroups::remove_cgroups(&self.state.groups), network::remove_network(&self.state)];
        point::remove_unused(Path::new(CONTAINER_PRIVATE_DIR));
        // If something is left, keep `cluster.json`, which lists it.
        outcomes.into_iter().collect::<Result<(), _>>()?;
        self.state.remove_files(&self.run_dir)
    }

    fn node(&self, index: usize) -> Result<&LocalNode, LocalError> {
        self.nodes().get(index).ok_or(LocalError::NoNode { index, nodes: self.nodes().len() })
    }
}
