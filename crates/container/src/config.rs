//! The configuration that all containers of a node share, and the options of each.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Default limit on the containers of a node. Each has a dozen kernel objects and at least one process, and a Linux machine
/// has at most 32,768 processes by default.
const CONTAINERS_MAX_DEFAULT: usize = 4096;

/// Default limit on cached roots of ended containers: more than the number of children that start at once. Each root is
/// held by a waiting container.
pub const CACHED_ROOTS_MAX_DEFAULT: usize = 64;

/// Default for [`ContainerConfig::cached_roots_unused_limit`]. It is shorter than for zygotes, since each root holds a
/// container.
const CACHED_ROOTS_UNUSED_LIMIT_DEFAULT: Duration = Duration::from_secs(3);

/// Environment variable with further paths to hide from containers, separated by colons. The nodes of a local cluster have
/// their run directories next to each other on one file system.
pub const HIDDEN_PATHS_VARIABLE: &str = "FARFORK_HIDDEN_PATHS";

/// Default for [`ContainerConfig::user_ranges`]: the same for all nodes of a machine. A reboot deletes the file.
pub const USER_RANGES_DEFAULT: &str = "/run/farfork.users";

/// The configuration that all containers of a node share.
#[derive(Debug, Clone)]
pub struct ContainerConfig {
    /// The node's name, for messages.
    pub node: String,
    /// The daemon's run directory, which has the records of containers. Must exist.
    pub run_dir: PathBuf,
    /// Path of the node's control groups below the daemon's group. No other program may use it. See
    /// [`ContainerConfig::new`].
    pub cgroup_root_name: String,
    /// The init program: a static ELF file, which needs no files of the container's root.
    pub init_image: &'static [u8],
    /// Directories and files of the daemon, to hide from all containers. The run directory is always hidden.
    pub masked_paths: Vec<PathBuf>,
    /// Like `masked_paths`, for paths that need not exist yet. A path is also hidden from containers that are built before
    /// it is created.
    pub masked_future_paths: Vec<PathBuf>,
    /// Limit on containers, waiting and in use.
    pub containers_max: usize,
    /// Limit on cached roots of ended containers; 0 disables the cache.
    pub cached_roots_max: usize,
    /// Cached roots without requests for this time are removed.
    pub cached_roots_unused_limit: Duration,
    /// Lock file that records, for all nodes of the machine, which id ranges are used by containers with their own users.
    /// Created if missing.
    pub user_ranges: PathBuf,
}

/// The parent of the control groups of all nodes.
const CGROUP_PARENT: &str = "farfork";

/// Length of the hash of the run directory at the end of a control group's name, in hexadecimal digits.
const FINGERPRINT_DIGITS: usize = 8;

impl ContainerConfig {
    /// The default configuration of a node. The name of the control groups contains a hash of the run directory, so it
    /// differs between nodes of the same name in different clusters. The environment may hide further paths
    /// ([`HIDDEN_PATHS_VARIABLE`]).
    pub fn new(node: &str, run_dir: &Path, init_image: &'static [u8]) -> Self {
        let real_dir = run_dir.canonicalize().unwrap_or_else(|_| run_dir.to_owned());
        Self {
            node: node.to_owned(),
            run_dir: run_dir.to_owned(),
            cgroup_root_name: format!("{CGROUP_PARENT}/{node}-{:0FINGERPRINT_DIGITS$x}", fingerprint(&real_dir)),
            init_image,
            masked_paths: std::env::var_os(HIDDEN_PATHS_VARIABLE)
                .map_or_else(Vec::new, |paths| std::env::split_paths(&paths).collect()),
            masked_future_paths: Vec::new(),
            containers_max: CONTAINERS_MAX_DEFAULT,
            cached_roots_max: CACHED_ROOTS_MAX_DEFAULT,
            cached_roots_unused_limit: CACHED_ROOTS_UNUSED_LIMIT_DEFAULT,
            user_ranges: USER_RANGES_DEFAULT.into(),
        }
    }

    /// The directory of the records of containers.
    pub(crate) fn records_dir(&self) -> PathBuf {
        self.run_dir.join("containers")
    }

    /// Path of the file that lists the directories of the node's control groups, one per line, for a later cleanup.
    pub(crate) fn cgroups_file(&self) -> PathBuf {
        self.run_dir.join("cgroups")
    }
}

/// Returns the name of the node that made a control group, from its path or from a line of `/proc/PID/cgroup`.
pub fn node_of_control_group(path: &str) -> Option<&str> {
    // The last such part: the daemon's own group may be below a group of another node.
    let (_, below) = path.rsplit_once(&format!("/{CGROUP_PARENT}/"))?;
    let (name, hash) = below.split('/').next()?.rsplit_once('-')?;
    let is_hash = hash.len() == FINGERPRINT_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(name)
}

/// Returns the FNV-1a hash of a path: short, and the same in every version of farfork.
fn fingerprint(path: &Path) -> u32 {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The kind of a container: the properties that cannot be changed after it is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ContainerSpec {
    /// Its root file system.
    pub root: RootSpec,
    /// Its network.
    pub network: NetworkSpec,
    /// Its users and groups.
    pub users: UsersSpec,
    /// Whether it will have limits. Without limits, it has a group of its own only in the unified hierarchy, if the machine
    /// has both versions.
    pub limited: bool,
}

impl ContainerSpec {
    /// Whether another container may reuse its root. A root is not reused if it belongs to a container with limits or with
    /// its own users, or to the node itself.
    pub(crate) fn has_reusable_root(self) -> bool {
        let Self { root, network: _, users, limited } = self;
        root == RootSpec::Overlay && users == UsersSpec::Host && !limited
    }
}

/// Selects the containers that may reuse the root of an ended container that left no trace in it: children of one lineage,
/// and, without their own network, of the same fan-out. Through a common network, a process can send a descriptor of the
/// root to another process. That process would then see what the next container in the root does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootReuseKey {
    /// Identifies the lineage.
    pub lineage: Arc<str>,
    /// The fan-out whose network the containers share.
    pub fan_out: Option<u64>,
}

/// The key of a cached root. Only a container with an equal key may have the root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RootCacheKey {
    /// The kind of the container.
    pub(crate) spec: ContainerSpec,
    pub(crate) reuse_key: RootReuseKey,
}

impl From<RootSpec> for ContainerSpec {
    fn from(root: RootSpec) -> Self {
        Self { root, ..Self::default() }
    }
}

/// The users and groups of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum UsersSpec {
    /// The node's.
    #[default]
    Host,
    /// Its own ids, in a user namespace that the child enters. In it, the node's files have the same owner ids as on the
    /// node.
    Private,
}

/// The network that a container is built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum NetworkSpec {
    /// Its own, with a loopback interface.
    #[default]
    Private,
    /// The node's. For containers that use the node's network, or that enter another network before a process runs in them.
    /// Saves creating a network.
    Host,
}

/// The root file system of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum RootSpec {
    /// The node's files, under an overlay that takes the container's writes and is removed with it.
    #[default]
    Overlay,
    /// The node's own files: writes change the node.
    Shared,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_names_its_node() {
        assert_eq!(node_of_control_group("0::/farfork-local/n2/farfork/n2-01abcdef/pool-7"), Some("n2"));
        assert_eq!(node_of_control_group("4:memory:/a/farfork/my-node-01abcdef/children"), Some("my-node"));
        let config = ContainerConfig::new("n2", Path::new("/run/farfork"), &[]);
        assert_eq!(node_of_control_group(&format!("/{}/pool-7", config.cgroup_root_name)), Some("n2"));
        for other in ["0::/", "0::/farfork-local/n2/farfork-daemon", "0::/farfork/n2", "0::/farfork/n2-x/pool-7"] {
            assert_eq!(node_of_control_group(other), None, "{other}");
        }
    }
}
