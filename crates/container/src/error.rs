//! Why a container could not be built or used.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::cgroup::CgroupError;

/// A container could not be built, or an operation on it failed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// Init's program cannot be loaded into memory.
    #[error("cannot load the containers' init program into memory: {0}")]
    InitImage(#[source] io::Error),
    /// A directory of the node is missing or cannot be used.
    #[error("cannot use {}: {cause}; check that it exists and that farfork runs as root", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// An operation on a control group failed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A thread cannot be started, or has panicked.
    #[error("cannot run a thread that builds a container: {0}")]
    Thread(#[source] io::Error),
    /// A namespace cannot be made or entered.
    #[error(
        "cannot {operation}: {cause}; containers need CAP_SYS_ADMIN and room below /proc/sys/user/max_*_namespaces"
    )]
    Namespace {
        /// The operation that failed.
        operation: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The mount table cannot be read.
    #[error("cannot read the node's mount table: {0}")]
    MountTable(#[source] io::Error),
    /// A mount of the container's root cannot be made.
    #[error("cannot mount {what} on {} of a container: {cause}", point.display())]
    Mount {
        /// The thing to be mounted.
        what: &'static str,
        /// The mount point, as the container sees it.
        point: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The root of an ended container differs from when it was built, so it is discarded.
    #[error("the root of an ended container cannot be reused: {path}: {why}")]
    RootChanged {
        /// The object that differs: a path of the root, or the mounts of the node.
        path: String,
        /// How it differs.
        why: String,
    },
    /// Init cannot be started.
    #[error("cannot start the init of a container: {0}")]
    Init(#[source] io::Error),
    /// A path of the node cannot be shown in a container.
    #[error("cannot bind {} to {} in container {id}: {cause}", host_path.display(), inside_path.display())]
    Bind {
        /// The container.
        id: String,
        /// The path on the node.
        host_path: PathBuf,
        /// The path in the container.
        inside_path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A directory of the node cannot be the root of a container.
    #[error(
        "{} cannot be the root of container {id}: {cause}; create or correct it on the node, or name another directory with --root",
        directory.display()
    )]
    Root {
        /// The container.
        id: String,
        /// The directory.
        directory: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The container cannot be protected from its processes.
    #[error("container {id} cannot be protected from its processes: {cause}")]
    Protect {
        /// The container.
        id: String,
        /// The cause.
        cause: io::Error,
    },
    /// A file cannot be put into a container.
    #[error("cannot write {} in container {id}: {cause}", path.display())]
    PutFile {
        /// The container.
        id: String,
        /// The file, as the container sees it.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The record of a container cannot be written or read.
    #[error("cannot keep the record {}: {cause}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A container does not end.
    #[error(
        "container {id} still runs {waited_ms} ms after it was killed; look for processes of its init {init_pid} in uninterruptible sleep"
    )]
    KillTimeout {
        /// The container.
        id: String,
        /// Its init.
        init_pid: i32,
        /// The time waited, in milliseconds.
        waited_ms: u64,
    },
    /// The node has as many containers as its limit permits.
    #[error(
        "node {node} has {containers_max} containers, which is its limit; wait for children to end, or fork on other nodes"
    )]
    TooManyContainers {
        /// The node.
        node: String,
        /// The limit.
        containers_max: usize,
    },
    /// The ids in use cannot be determined.
    #[error(
        "cannot use {}, the lock file for the user ids of containers: {cause}; name a writable file with `farfork node --user-ranges`",
        path.display()
    )]
    UserRanges {
        /// The lock file.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// All id ranges for containers are in use.
    #[error(
        "all {ranges} ranges of user ids for containers of this machine are in use; wait for children with --user-namespace to end"
    )]
    IdRangesExhausted {
        /// The number of ranges.
        ranges: u32,
    },
    /// The pool was empty and no container was built in time.
    #[error(
        "no container on node {node} within {waited_ms} ms: the pool of {size} is empty; ask for fewer children at a time, or make the pool larger"
    )]
    PoolEmpty {
        /// The node.
        node: String,
        /// The pool's size.
        size: usize,
        /// The time waited, in milliseconds.
        waited_ms: u64,
    },
    /// The pool was empty and could not build a container.
    #[error("no container on node {node}: {cause}")]
    PoolBuild {
        /// The node.
        node: String,
        /// Why the last build failed.
        cause: Arc<ContainerError>,
    },
    /// The pool is being stopped.
    #[error("no container on node {node}: the daemon is stopping")]
    PoolStopping {
        /// The node.
        node: String,
    },
}
