//! `RunningNodes`: the nodes of a run, each on its machine. A run connects to them, kills and stops their processes, cuts
//! their links, and observes them (`observer`). Only this module knows whether they are a local cluster, or nodes that run on
//! hosts and continue after the run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_cluster::local::{LocalCluster, LocalClusterConfig, LocalError, LocalNode};
use serde::de::DeserializeOwned;

use super::error_log::{LogEnds, LogErrors};
use super::leak_check::{ResourceCount, ResourceCounts};
use super::node_client::NodeClient;
use super::observer::{self, NodeProcess, ObservedNode, ObserverRequest, ProcessMemory};
use crate::endpoint::specification::{EndpointRole, EndpointSpec, RpcSystem};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::namespace::NamespaceMachine;
use crate::machine::remote::RemoteMachine;
use crate::scratch::{CLUSTER_DIRECTORY, ScratchDirectory};

/// Time limit for the nodes to discover each other, which takes a few heartbeats, on a busy machine.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(30);

/// How often discovery is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time limit for a killed daemon to end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for a node to release resources that it keeps for some time: connections for half a minute, statistics,
/// threads.
const RELEASE_LIMIT: Duration = Duration::from_secs(60);

/// Time between two counts.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// Signal numbers for kill(2).
pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGCONT: i32 = 18;
pub(crate) const SIGSTOP: i32 = 19;

/// A node and its machine.
#[derive(Debug)]
pub(crate) struct ClusterNode {
    pub(crate) name: String,
    machine: Box<dyn Machine>,
    /// The socket of the node's API, for programs of its machine.
    pub(crate) socket: PathBuf,
    /// The same for this process.
    api: PathBuf,
    /// How far the clock of its machine is ahead of the first node's.
    pub(crate) clock: ClockOffset,
}

/// The difference of two clocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClockOffset {
    pub(crate) ns: i64,
    /// Half of the time of a question and its answer.
    pub(crate) error_ns: i64,
}

impl ClockOffset {
    /// Compares the clock of a machine with the clock of `first`.
    fn measure(first: &dyn Machine, machine: &dyn Machine) -> Result<Self, BenchError> {
        let start = |machine: &dyn Machine, role| {
            machine.start_process("clock", "endpoint", &EndpointSpec::new(RpcSystem::Farfork, role))
        };
        let mut server = start(first, EndpointRole::Clock { ip: first.address() })?;
        let [port] = server.read_answer("listening")?;
        let to = SocketAddr::new(first.address(), port as u16);
        let [ns, error_ns] = start(machine, EndpointRole::ClockClient { to })?.read_answer("offset")?;
        Ok(Self { ns, error_ns })
    }
}

impl ClusterNode {
    pub(crate) fn machine(&self) -> &dyn Machine {
        self.machine.as_ref()
    }

    /// Makes a new connection to the node's API.
    pub(crate) async fn connect(&self) -> Result<NodeClient, Failure> {
        NodeClient::connect(&self.api).await
    }
}

/// The nodes of a run. They are stopped when this value is dropped.
#[derive(Debug)]
pub(crate) struct RunningNodes {
    // Dropped before their files.
    nodes: Vec<ClusterNode>,
    /// `None` after the stop, and for nodes of hosts.
    local: Option<LocalCluster>,
    /// `None` for nodes of hosts.
    scratch: Option<ScratchDirectory>,
}

impl RunningNodes {
    /// Starts nodes whose files are in the directory `parent`. `farfork` is the program that runs their daemons, with these
    /// additional arguments.
    pub(crate) fn start(
        parent: &Path,
        name: &str,
        farfork: &Path,
        count: usize,
        encrypted: bool,
        arguments: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, BenchError> {
        let scratch = ScratchDirectory::create(parent, farfork)?;
        let mut config = LocalClusterConfig::new(name, scratch.path().join(CLUSTER_DIRECTORY), count, farfork);
        let encryption = ["--encryption", if encrypted { "on" } else { "off" }].map(str::to_owned);
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        config.node_arguments = encryption.into_iter().chain(arguments).collect();
        let local = LocalCluster::up(&config, &mut |_| ())?;
        let started = local.nodes().to_vec();
        let parent = scratch.path().to_owned();
        let mut running = Self { nodes: Vec::new(), local: Some(local), scratch: Some(scratch) };
        for node in started {
            let machine = Box::new(NamespaceMachine::of_node(&node, &parent, farfork)?);
            let (name, api, socket, clock) = (node.name, node.socket.clone(), node.socket, ClockOffset::default());
            running.nodes.push(ClusterNode { name, machine, api, socket, clock });
        }
        Ok(running)
    }

    /// The nodes that run on hosts.
    ///
    /// # Errors
    /// [`BenchError::NoNode`].
    pub(crate) async fn on_hosts(machines: Vec<RemoteMachine>) -> Result<Self, BenchError> {
        let mut nodes: Vec<ClusterNode> = Vec::new();
        for machine in machines {
            let (name, socket, api) =
                (machine.host_name().to_owned(), machine.node_socket(), machine.forwarded_socket());
            let first = nodes.first().map(ClusterNode::machine);
            let clock = first.map(|first| ClockOffset::measure(first, &machine)).transpose()?.unwrap_or_default();
            let node = ClusterNode { name, socket, api, clock, machine: Box::new(machine) };
            let missing = |cause| {
                let (host, socket) = (node.name.clone(), node.socket.clone());
                BenchError::NoNode { host, socket, cause: Box::new(cause) }
            };
            // ssh accepts a connection to a socket that does not exist on the host, and closes it.
            node.connect().await.map_err(missing)?.list_alive_nodes().await.map_err(missing)?;
            nodes.push(node);
        }
        Ok(Self { nodes, local: None, scratch: None })
    }

    /// The nodes. None after the stop.
    pub(crate) fn nodes(&self) -> &[ClusterNode] {
        &self.nodes
    }

    /// Connects to a node. Returns once the node sees all nodes alive.
    pub(crate) async fn connect_when_all_alive(&self, node: usize) -> Result<NodeClient, BenchError> {
        let mut client = self.nodes[node].connect().await?;
        let give_up = Instant::now() + DISCOVERY_LIMIT;
        loop {
            let alive = client.list_alive_nodes().await?;
            let Some(missing) = self.nodes.iter().find(|node| !alive.contains(&node.name)) else { return Ok(client) };
            if Instant::now() >= give_up {
                let names = [&self.nodes[node].name, &missing.name].map(Clone::clone);
                let log = self.scratch.as_ref().map(|scratch| scratch.path().join(CLUSTER_DIRECTORY));
                return Err(BenchError::NodesNotConnected { names, seconds: DISCOVERY_LIMIT.as_secs(), log });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Kills the daemon of a node.
    pub(crate) fn kill_daemon(&self, node: usize) -> Result<(), BenchError> {
        let Some(local) = &self.local else { return Ok(()) };
        local.signal_node(node, SIGKILL)?;
        local.wait_node_exit(node, END_LIMIT)?;
        Ok(())
    }

    /// Starts the daemon of a node again.
    pub(crate) fn restart_daemon(&mut self, node: usize) -> Result<(), BenchError> {
        self.local.as_mut().map_or(Ok(()), |local| Ok(local.restart_node(node)?))
    }

    /// Cuts a node off from the others, or connects it again.
    pub(crate) fn set_link(&self, node: usize, is_up: bool) -> Result<(), BenchError> {
        let Some(local) = &self.local else { return Ok(()) };
        Ok(if is_up { local.restore_link(node) } else { local.cut_link(node) }?)
    }

    /// Sends these signals in turn, each to all of these processes of a node that run.
    pub(crate) fn signal(&self, node: usize, processes: &[NodeProcess], signals: &[i32]) -> Result<(), BenchError> {
        self.observe(node, ObserverRequest::Signal { processes: processes.to_vec(), signals: signals.to_vec() })
    }

    /// Counts the resources of each node repeatedly until the counts without a tolerance are stable, because nodes create
    /// containers in the background. After [`RELEASE_LIMIT`], returns the last counts even if they are not stable.
    pub(crate) async fn count_steady_resources(&self) -> Result<Vec<ResourceCounts>, BenchError> {
        let give_up = Instant::now() + RELEASE_LIMIT;
        let mut last = self.count_resources()?;
        loop {
            tokio::time::sleep(COUNT_INTERVAL).await;
            let now = self.count_resources()?;
            if now.iter().zip(&last).all(|(now, last)| now.is_steady(last)) || Instant::now() >= give_up {
                return Ok(now);
            }
            last = now;
        }
    }

    /// Counts again until there is no leak, or until the time limit is over. Returns the counts from before and after.
    pub(crate) async fn wait_released(&self, before: &[ResourceCounts]) -> Result<Vec<ResourceCount>, BenchError> {
        let give_up = Instant::now() + RELEASE_LIMIT;
        loop {
            let after = self.count_resources()?;
            let pairs = self.nodes.iter().zip(before.iter().zip(&after));
            let counts: Vec<_> = pairs.flat_map(|(node, (one, other))| one.compare_with(other, &node.name)).collect();
            if !counts.iter().any(ResourceCount::is_leak) || Instant::now() >= give_up {
                return Ok(counts);
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }

    /// None for nodes of hosts, which `host_report` observes.
    fn count_resources(&self) -> Result<Vec<ResourceCounts>, BenchError> {
        self.local_indices().map(|node| self.observe(node, ObserverRequest::Resources)).collect()
    }

    fn local_indices(&self) -> std::ops::Range<usize> {
        0..if self.local.is_some() { self.nodes.len() } else { 0 }
    }

    /// Observes a node from the inside of its machine.
    fn observe<T: DeserializeOwned>(&self, node: usize, observation: ObserverRequest) -> Result<T, BenchError> {
        let local = self.local.as_ref().expect("the nodes run").nodes()[node].clone();
        self.nodes[node].machine().run_process("observer", &ObservedNode { node: local, observation })
    }

    /// Reads the memory of a process of a node, by default of the first one.
    pub(crate) fn read_memory(&self, node: Option<&str>, pid: i32) -> Result<ProcessMemory, BenchError> {
        let index = self.nodes.iter().position(|other| Some(other.name.as_str()) == node).unwrap_or(0);
        self.observe(index, ObserverRequest::Memory { pid })
    }

    /// The ends of the logs of all nodes; none for nodes of hosts.
    pub(crate) fn log_ends(&self) -> Result<Vec<LogEnds>, BenchError> {
        self.local_indices().map(|node| self.observe(node, ObserverRequest::LogEnds)).collect()
    }

    /// Searches the logs of all nodes after these ends, for errors without an expected text. Nodes of one machine have the same
    /// kernel.
    pub(crate) fn find_errors(&self, ends: Vec<LogEnds>, expected: &[&str]) -> Result<LogErrors, BenchError> {
        let mut errors = LogErrors::default();
        for (node, ends) in ends.into_iter().enumerate() {
            let expected = expected.iter().copied().map(str::to_owned).collect();
            errors.add(self.observe(node, ObserverRequest::LogErrors { ends, expected })?);
        }
        Ok(errors)
    }

    /// Stops the nodes. Returns a sentence for each resource that they have left.
    ///
    /// # Errors
    /// A resource of a node cannot be removed.
    pub(crate) fn stop(&mut self) -> Result<Vec<String>, LocalError> {
        self.nodes.clear();
        let Some(local) = self.local.take() else { return Ok(Vec::new()) };
        let nodes: Vec<LocalNode> = local.nodes().to_vec();
        // If they cannot be removed completely, keep the files that list the rest.
        local.down().inspect_err(|_| self.scratch.iter_mut().for_each(ScratchDirectory::keep))?;
        Ok(observer::find_leftovers(&nodes))
    }
}

impl Drop for RunningNodes {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("farfork: cannot remove all of the benchmark's nodes: {error}");
        }
    }
}
