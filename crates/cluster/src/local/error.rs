//! Errors of creating, changing and removing a local cluster.

use std::io;
use std::path::PathBuf;

/// Why a local cluster cannot be made, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The cluster's name is invalid.
    #[error("`{name}` is not a valid cluster name: {cause}")]
    InvalidName {
        /// The given name.
        name: String,
        /// The rule that the name breaks.
        cause: farfork_wire::IdError,
    },
    /// There are too few or too many nodes.
    #[error("a local cluster cannot have {nodes} nodes; use 1 to {nodes_max}")]
    NodeCount {
        /// The requested number of nodes.
        nodes: usize,
        /// The limit.
        nodes_max: usize,
    },
    /// A cluster runs in the run directory.
    #[error("a cluster already runs in {}; restart its ended daemons with `farfork up --restart`, end it with `farfork down`, or start another one with --run-dir and --name", run_dir.display())]
    AlreadyExists {
        /// The run directory.
        run_dir: PathBuf,
    },
    /// Another command makes or removes the cluster.
    #[error("another command makes or removes the cluster in {}; wait for it to end", run_dir.display())]
    Busy {
        /// The run directory.
        run_dir: PathBuf,
    },
    /// No cluster runs in the run directory.
    #[error("no cluster runs in {}; start one with `farfork up`", run_dir.display())]
    NotFound {
        /// The run directory.
        run_dir: PathBuf,
    },
    /// The cluster in the run directory has another name than the requested one.
    #[error("the cluster in {} is called `{name}`, not `{wanted}`; drop --name, or give the run directory of the other cluster with --run-dir", run_dir.display())]
    OtherName {
        /// The run directory.
        run_dir: PathBuf,
        /// The name of the cluster in the run directory.
        name: String,
        /// The requested name.
        wanted: String,
    },
    /// A network namespace that this cluster did not make has the name.
    #[error(
        "network namespace {netns} exists, and this cluster did not make it; choose another name for the cluster with --name"
    )]
    NetnsTaken {
        /// The namespace.
        netns: String,
    },
    /// `cluster.json`, or a directory next to it, cannot be used.
    #[error("cannot {action} {}: {cause}", path.display())]
    State {
        /// The action that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The cluster's authority and its members' keys cannot be made.
    #[error("the cluster's keys cannot be made: {cause}")]
    Trust {
        /// The cause.
        cause: farfork_trust::member::MemberError,
    },
    /// `ip` fails.
    #[error("`ip {arguments}` failed: {cause}; making networks needs root and the package iproute2")]
    Ip {
        /// The arguments of `ip`.
        arguments: String,
        /// The error of `ip`.
        cause: String,
    },
    /// The directory of named network namespaces cannot be locked or cleaned up.
    #[error("cannot {action} /run/netns: {cause}")]
    NetnsDirectory {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// A control group cannot be made or removed.
    #[error("cannot {action} control group {}: {cause}", path.display())]
    Cgroup {
        /// The action that failed.
        action: &'static str,
        /// The group's directory.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A daemon cannot be started.
    #[error("cannot start `{}` for node {node}: {cause}", command.display())]
    Start {
        /// The node.
        node: String,
        /// The program.
        command: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// A daemon ended before it answered.
    #[error("the daemon of node {node} ended before it answered; the end of its log:\n{log_tail}")]
    DaemonEnded {
        /// The node.
        node: String,
        /// The last lines of its log.
        log_tail: String,
    },
    /// A daemon does not answer.
    #[error("the daemon of node {node} does not answer at {} after {waited_ms} ms; the end of its log:\n{log_tail}", socket.display())]
    NoAnswer {
        /// The node.
        node: String,
        /// Its socket.
        socket: PathBuf,
        /// The time waited, in milliseconds.
        waited_ms: u64,
        /// The last lines of its log.
        log_tail: String,
    },
    /// The program `etcd` is missing.
    #[error(
        "the program `etcd` is not installed; install it (Debian, Ubuntu: `apt-get install etcd-server`), or drop --etcd"
    )]
    NoEtcd,
    /// The members of etcd do not answer.
    #[error("etcd does not answer: {cause}; the end of {}:\n{log_tail}", log.display())]
    EtcdNoAnswer {
        /// The reason.
        cause: io::Error,
        /// The log of one of its members.
        log: PathBuf,
        /// The last lines of that log.
        log_tail: String,
    },
    /// The cluster has no node with this index.
    #[error("the cluster has {nodes} nodes, none with index {index}")]
    NoNode {
        /// The requested index.
        index: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// A daemon does not run.
    #[error("the daemon of node {node} does not run")]
    NotRunning {
        /// The node.
        node: String,
    },
    /// A daemon runs.
    #[error("the daemon of node {node} runs already")]
    AlreadyRunning {
        /// The node.
        node: String,
    },
    /// A daemon cannot be sent a signal.
    #[error("cannot send signal {signal} to the daemon of node {node}: {cause}")]
    Signal {
        /// The node.
        node: String,
        /// The signal's number.
        signal: i32,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Processes do not end.
    #[error(
        "processes {pids:?} of the cluster still exist {waited_ms} ms after they were killed; see /proc/PID/stack for what they wait for"
    )]
    KillTimeout {
        /// The process ids.
        pids: Vec<i32>,
        /// The time waited, in milliseconds.
        waited_ms: u64,
    },
}
