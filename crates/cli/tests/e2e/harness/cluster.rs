//! `Cluster`: a cluster of one test on this machine, started like `farfork up` starts one. It can also kill processes,
//! cut links and limit memory.
//!
//! Dropping a cluster stops its nodes, even after a panic. [`Cluster::stop`] also returns the list of remains on the
//! machine.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use farfork_cluster::local::{LocalCluster, LocalClusterConfig, LocalError, LocalNode};
use farfork_sys::pidfd;
use farfork_sys::process::{KernelStackSummary, ProcStat};

use super::leftovers::{self, RunMarkers};
use super::scratch::{Disk, TestDirectory};
use super::{BINARY, Farfork, print_error, wait};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGSTOP: i32 = 19;

/// A process that belongs to a node: not a child, container or template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeProcess {
    Daemon,
    Keeper,
    Pager,
    FdHolder,
}

/// Longest wait until a killed daemon or pager has ended.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until nodes exchange heartbeats again.
const ALIVE_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until processes that `down` killed have disappeared from `/proc`.
const LEFTOVERS_LIMIT: Duration = Duration::from_secs(60);

/// Number of log lines of a daemon that a failure shows.
const LOG_LINES_MAX: usize = 20;

/// How the nodes of a cluster are started.
struct NodeLaunch<'a> {
    program: &'a Path,
    /// Further arguments of `farfork node`.
    arguments: &'a [&'a str],
    /// Whether an etcd runs next to the nodes, and has their catalog of volumes.
    has_etcd: bool,
}

impl<'a> NodeLaunch<'a> {
    fn new(program: &'a Path, arguments: &'a [&'a str]) -> Self {
        Self { program, arguments, has_etcd: false }
    }
}

/// Nodes on this machine.
pub(crate) struct Cluster {
    local: Mutex<LocalCluster>,
    farforks: Vec<Farfork>,
    names: Vec<String>,
    marks: RunMarkers,
    /// A temporary directory of the test. It contains the file of user ids and, except after `start_on`, the run
    /// directory.
    scratch: TestDirectory,
}

/// Prefix of the names of clusters. The pid of the worker and a number follow.
const CLUSTER_PREFIX: &str = "e2e-";

/// Returns the pid of the worker that started a cluster, by the name of a control group of the cluster.
pub(crate) fn worker_of_group(name: &str) -> Option<i32> {
    let (pid, number) = name.strip_prefix("farfork-")?.strip_prefix(CLUSTER_PREFIX)?.split_once('-')?;
    number.parse::<usize>().ok()?;
    pid.parse().ok()
}

impl Cluster {
    /// Starts `nodes` nodes: `n1` and so on.
    pub(crate) fn start(nodes: usize) -> Self {
        Self::start_with(nodes, &[])
    }

    /// As [`Self::start`], with further arguments of `farfork node`.
    pub(crate) fn start_with(nodes: usize, node_arguments: &[&str]) -> Self {
        let scratch = super::scratch::directory();
        let run_dir = scratch.path().join("run");
        Self::start_at(run_dir, scratch, nodes, &NodeLaunch::new(Path::new(BINARY), node_arguments))
    }

    /// As [`Self::start`], with an etcd next to the nodes.
    pub(crate) fn start_with_etcd(nodes: usize) -> Self {
        let scratch = super::scratch::directory();
        let run_dir = scratch.path().join("run");
        let launch = NodeLaunch { has_etcd: true, ..NodeLaunch::new(Path::new(BINARY), &[]) };
        Self::start_at(run_dir, scratch, nodes, &launch)
    }

    /// As [`Self::start`]. The nodes run `wrapper`, a program that ends by executing `farfork` with its own arguments.
    pub(crate) fn start_wrapped(wrapper: &Path, nodes: usize) -> Self {
        let scratch = super::scratch::directory();
        let run_dir = scratch.path().join("run");
        Self::start_at(run_dir, scratch, nodes, &NodeLaunch::new(wrapper, &[]))
    }

    /// As [`Self::start_with`], with the run directory on a small disk, which must outlive the cluster.
    pub(crate) fn start_on(disk: &Disk, nodes: usize, node_arguments: &[&str]) -> Self {
        let launch = NodeLaunch::new(Path::new(BINARY), node_arguments);
        Self::start_at(disk.path().join("run"), super::scratch::directory(), nodes, &launch)
    }

    fn start_at(run_dir: PathBuf, scratch: TestDirectory, nodes: usize, launch: &NodeLaunch<'_>) -> Self {
        static CLUSTERS: AtomicUsize = AtomicUsize::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{CLUSTER_PREFIX}{}-{number}", std::process::id());
        let mut config = LocalClusterConfig::new(&name, &run_dir, nodes, launch.program);
        config.has_etcd = launch.has_etcd;
        // A file of its own: other nodes of the machine may use up their ranges.
        config.node_arguments = vec!["--user-ranges".into(), user_ranges_in(&scratch).to_string_lossy().into_owned()];
        // A busy machine must not make a node count as failed.
        config.node_arguments.extend(["--detect-ms".to_owned(), "10000".to_owned()]);
        config.node_arguments.extend(launch.arguments.iter().map(|argument| (*argument).to_owned()));
        let local = LocalCluster::up(&config, &mut |_| ()).unwrap_or_else(|error| fail_start(&error));
        let marks = RunMarkers {
            run_dir,
            network_prefix: format!("ff-{name}-"),
            group: format!("farfork-{name}"),
            cgroups: local.nodes().iter().flat_map(|node| node.cgroups.clone()).collect(),
        };
        let cluster = Self {
            farforks: local.nodes().iter().map(|node| Farfork::at(&node.socket)).collect(),
            names: local.nodes().iter().map(|node| node.name.clone()).collect(),
            local: Mutex::new(local),
            marks,
            scratch,
        };
        // Nodes that join the first one at the same time learn of each other by heartbeats.
        cluster.wait_until_all_are_alive();
        cluster
    }

    /// The command `farfork`, connected to the first node.
    pub(crate) fn first(&self) -> &Farfork {
        &self.farforks[0]
    }

    /// The command `farfork`, connected to a node. Nodes count from 0.
    pub(crate) fn node(&self, index: usize) -> &Farfork {
        &self.farforks[index]
    }

    /// Name of a node.
    pub(crate) fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// Names of nodes, in the format of `--to`.
    pub(crate) fn names(&self, indices: &[usize]) -> String {
        let names: Vec<&str> = indices.iter().map(|index| self.name(*index)).collect();
        names.join(",")
    }

    /// Run directory of a node.
    pub(crate) fn run_dir(&self, index: usize) -> PathBuf {
        self.local_node(index).run_dir
    }

    /// Name of a node's network namespace.
    pub(crate) fn netns(&self, index: usize) -> String {
        self.local_node(index).netns
    }

    /// Address of a node on the cluster's network.
    pub(crate) fn ip(&self, index: usize) -> IpAddr {
        self.address(index).ip()
    }

    /// Address and port of a node on the cluster's network.
    pub(crate) fn address(&self, index: usize) -> SocketAddr {
        self.local_node(index).address
    }

    /// Calls a function in the network namespace of a node.
    pub(crate) fn in_network_of<T: Send>(
        &self,
        index: usize,
        to_do: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        self.local_node(index).run_in_network(to_do)
    }

    /// The file whose locks reserve the user ids of children on the cluster's nodes.
    pub(crate) fn user_ranges(&self) -> PathBuf {
        user_ranges_in(&self.scratch)
    }

    /// Process id of a node's daemon.
    pub(crate) fn daemon_pid(&self, index: usize) -> i32 {
        self.local_node(index).pid().expect("the daemon was started")
    }

    /// Whether `farfork down` finds a live daemon of a node: the last one that the cluster started, or one that listens at
    /// the node's socket.
    pub(crate) fn has_live_daemon(&self, index: usize) -> bool {
        self.local_node(index).is_alive()
    }

    /// Returns the number of open descriptors of each process of a node: daemon, keeper, pager.
    pub(crate) fn descriptors(&self, index: usize) -> BTreeMap<String, usize> {
        let count = |pid: i32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let mut own = self.local_node(index).pager_pids();
        own.push(self.daemon_pid(index));
        own.into_iter().map(|pid| (format!("process {pid}"), count(pid))).collect()
    }

    /// Name of the control group that contains all nodes of the cluster.
    pub(crate) fn group(&self) -> &str {
        &self.marks.group
    }

    /// Memory that is charged to a node's children and templates, in KiB.
    pub(crate) fn children_memory_kb(&self, index: usize) -> u64 {
        let node = self.local_node(index);
        let groups = node.cgroups.iter().map(|group| group.join("farfork"));
        let files = groups.flat_map(|group| ["memory.usage_in_bytes", "memory.current"].map(|file| group.join(file)));
        let bytes: Vec<u64> = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).collect();
        assert!(!bytes.is_empty(), "no control group of {} counts memory", node.name);
        bytes.iter().sum::<u64>() >> 10
    }

    /// Limits the memory of a node and its processes to the current usage plus `room_kb`. `None` removes the limit.
    pub(crate) fn limit_memory(&self, index: usize, room_kb: Option<u64>) {
        // The files of the limit and of the usage, and the value for no limit: for version 1, then for version 2.
        const FILES: [(&str, &str, &str); 2] =
            [("memory.limit_in_bytes", "memory.usage_in_bytes", "-1"), ("memory.max", "memory.current", "max")];
        let groups = &self.local_node(index).cgroups;
        let mut limits = FILES.iter().flat_map(|files| groups.iter().map(move |group| (group, files)));
        let found = limits.find(|(group, (limit, _, _))| group.join(limit).exists());
        let (group, (limit, usage, unlimited)) = found.expect("a control group that limits memory");
        let value = room_kb.map_or((*unlimited).to_owned(), |room_kb| {
            let used: u64 = fs::read_to_string(group.join(usage)).expect("usage").trim().parse().expect("a number");
            (used + (room_kb << 10)).to_string()
        });
        fs::write(group.join(limit), value).expect("the limit can be set");
    }

    /// Kills only the daemon of a node.
    pub(crate) fn kill_daemon(&self, index: usize) {
        self.local().signal_node(index, SIGKILL).unwrap_or_else(|error| panic!("{error}"));
        self.wait_for_end(index);
    }

    /// Waits until the killed daemon of a node has ended.
    pub(crate) fn wait_for_end(&self, index: usize) {
        let has_ended = self.local().wait_node_exit(index, END_LIMIT).expect("the node exists");
        require_end(has_ended, "the daemon");
    }

    /// Sends SIGTERM to a node's daemon, and waits until it has ended.
    pub(crate) fn stop_daemon(&self, index: usize) {
        let local = self.local();
        local.signal_node(index, SIGTERM).unwrap_or_else(|error| panic!("{error}"));
        require_end(local.wait_node_exit(index, END_LIMIT).expect("the node exists"), "the daemon");
    }

    /// Starts the daemon of a node again.
    pub(crate) fn restart_daemon(&self, index: usize) {
        self.local().restart_node(index).unwrap_or_else(|error| fail_start(&error));
    }

    /// Kills a node's pager. The pager's keeper detects the end, and starts another pager.
    pub(crate) fn kill_pager(&self, index: usize) {
        let pager = self.pager_pid(index);
        let pidfd = pidfd::open(pager).expect("the pager lives");
        pidfd::send_signal(&pidfd, SIGKILL).expect("the pager lives");
        require_end(pidfd::wait_exit(&pidfd, END_LIMIT).expect("poll works"), "the pager");
    }

    /// Kills several processes of a node at once, so that none of them sees the end of another.
    pub(crate) fn kill_together(&self, index: usize, victims: &[NodeProcess]) {
        let pids = victims.iter().map(|victim| match victim {
            NodeProcess::Daemon => self.daemon_pid(index),
            NodeProcess::Pager => self.pager_pid(index),
            NodeProcess::Keeper => self.keeper_pid(index),
            NodeProcess::FdHolder => self.fd_holder_pid(index),
        });
        let processes: Vec<_> =
            pids.collect::<Vec<i32>>().into_iter().filter_map(|pid| pidfd::open(pid).ok()).collect();
        for signal in [SIGSTOP, SIGKILL] {
            processes.iter().for_each(|process| drop(pidfd::send_signal(process, signal)));
        }
        for process in &processes {
            require_end(pidfd::wait_exit(process, END_LIMIT).expect("poll works"), "a process of the node");
        }
        if victims.contains(&NodeProcess::Daemon) {
            require_end(self.local().wait_node_exit(index, END_LIMIT).expect("the node exists"), "the daemon");
        }
    }

    /// Process id of the keeper, the parent of a node's pager.
    fn keeper_pid(&self, index: usize) -> i32 {
        wait::wait_until("a keeper", END_LIMIT, || {
            let pager = self.local_node(index).pager_pid()?;
            Some(ProcStat::read(pager).ok()?.parent)
        })
    }

    /// Process id of the process that holds the pager's descriptors.
    pub(crate) fn fd_holder_pid(&self, index: usize) -> i32 {
        let is_holder = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "farfork-holder")
        };
        let find = || self.local_node(index).pager_pids().into_iter().find(is_holder);
        wait::wait_until("a holder", END_LIMIT, find)
    }

    /// Process id of a node's pager. When a pager is killed, its keeper soon starts another one.
    pub(crate) fn pager_pid(&self, index: usize) -> i32 {
        wait::wait_until("a pager", END_LIMIT, || self.local_node(index).pager_pid())
    }

    /// Disconnects a node from the other nodes.
    pub(crate) fn cut_link(&self, index: usize) {
        self.local().cut_link(index).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Connects a node to the other nodes again.
    pub(crate) fn restore_link(&self, index: usize) {
        self.local().restore_link(index).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns a counter of a node's zygotes.
    pub(crate) fn zygote_count(&self, index: usize, what: &str) -> u64 {
        let told = self.first().json(&["inspect", self.name(index)]);
        told["zygotes"][what].as_u64().unwrap_or_else(|| panic!("no zygotes.{what} in {told}"))
    }

    /// Returns the processes of the cluster's nodes that have this command line.
    pub(crate) fn processes(&self, command_line: &str) -> Vec<i32> {
        leftovers::marked_processes(&self.marks).filter(|(_, own)| own == command_line).map(|(pid, _)| pid).collect()
    }

    /// Waits until each node counts all nodes as alive.
    pub(crate) fn wait_until_all_are_alive(&self) {
        for farfork in &self.farforks {
            wait::wait_until("all nodes are alive", ALIVE_LIMIT, || {
                let said = farfork.json(&["nodes"]);
                let nodes = said["nodes"].as_array()?;
                let alive = nodes.iter().filter(|node| node["state"] == "alive").count();
                (alive == self.names.len()).then_some(())
            });
        }
    }

    /// Takes the cluster down. Returns everything that it left on the machine.
    pub(crate) fn stop(self) -> Vec<String> {
        self.print_standstills();
        if let Err(error) = LocalCluster::load(&self.marks.run_dir).and_then(LocalCluster::down) {
            return vec![format!("`down` failed: {error}")];
        }
        let mut left = leftovers::find_leftovers(&self.marks);
        let give_up = Instant::now() + LEFTOVERS_LIMIT;
        while !left.is_empty() && Instant::now() < give_up {
            thread::sleep(Duration::from_millis(50));
            left = leftovers::find_leftovers(&self.marks);
        }
        left
    }

    fn local(&self) -> MutexGuard<'_, LocalCluster> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn local_node(&self, index: usize) -> LocalNode {
        self.local().nodes()[index].clone()
    }

    /// Prints where the threads of each daemon wait, and the ends of the daemon's and the pager's logs. Called when a test
    /// has failed.
    pub(crate) fn print_logs(&self) {
        for node in self.local().nodes() {
            if let Some(Ok(threads)) = node.pid().map(KernelStackSummary::read) {
                print_error(format_args!("-- threads of {}: {threads}", node.name));
            }
            for log in [node.log_path(), node.run_dir.join("pager.log")] {
                let text = fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n");
                print_error(format_args!(
                    "-- {} of {}:\n{tail}",
                    log.file_name().unwrap_or_default().display(),
                    node.name
                ));
            }
        }
    }

    /// Returns the log lines in which a node's daemon reports that it did not run for a time.
    pub(crate) fn standstills(&self, index: usize) -> Vec<String> {
        let text = fs::read_to_string(self.local_node(index).log_path()).unwrap_or_default();
        let is_of_that = |line: &&str| line.contains("the daemon stalls") || line.contains("the daemon responds again");
        text.lines().filter(is_of_that).map(str::to_owned).collect()
    }

    /// Prints the lines of the logs that report times in which a daemon did not run.
    fn print_standstills(&self) {
        for (index, name) in self.names.iter().enumerate() {
            self.standstills(index).iter().for_each(|line| print_error(format_args!("-- {name}: {line}")));
        }
    }
}

/// Fails the test. The failure counts as a timeout if a daemon did not answer in time.
fn fail_start(error: &LocalError) -> ! {
    match error {
        LocalError::NoAnswer { .. } => wait::time_out(format!("a node does not start: {error}")),
        _ => panic!("a node does not start: {error}"),
    }
}

fn require_end(has_ended: bool, process: &str) {
    if !has_ended {
        wait::time_out(format!("{process} did not end within {} s", END_LIMIT.as_secs()));
    }
}

fn user_ranges_in(scratch: &TestDirectory) -> PathBuf {
    scratch.path().join("user-ranges")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Loading fails if `stop` was called.
        let Ok(local) = LocalCluster::load(&self.marks.run_dir) else { return };
        if thread::panicking() {
            self.print_logs();
        }
        self.print_standstills();
        // A test that panicked has already failed. If a test only forgot to stop the cluster, its author sees the
        // message.
        if let Err(error) = local.down() {
            print_error(format_args!("the cluster of a test is not removed completely: {error}"));
            // The runner needs the state file to remove the rest, for example if a signal ends the run, after which no
            // command can be started.
            self.scratch.keep();
        }
    }
}
