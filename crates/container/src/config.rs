//! The configuration that all containers of a node share, and the options of each.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most containers of a node at a time unless configured: each has a dozen kernel objects and at least one process,
/// and the default limit on processes of a Linux machine is 32,768.
const CONTAINERS_MAX_DEFAULT: usize = 4096;

/// Most roots of containers that have ended that are kept unless configured: as many as children end while one container is built, and
/// more than start at once. Each has a container around it, as those of the pool.
pub const CACHED_ROOTS_MAX_DEFAULT: usize = 64;

/// Environment variable with further paths to hide from containers, separated by colons: a local cluster's nodes have
/// their run directories beside each other on one file system.
pub const HIDDEN_PATHS_VARIABLE: &str = "FARFORK_HIDDEN_PATHS";

/// The file of [`ContainerConfig::user_ranges`] unless configured: the same for all nodes of a machine, and gone with its restart.
pub const USER_RANGES_DEFAULT: &str = "/run/farfork.users";

/// What the containers of a node have in common.
#[derive(Debug, Clone)]
pub struct ContainerConfig {
    /// The node's name, for messages.
    pub node: String,
    /// The daemon's run directory: holds the records of containers. Must exist.
    pub run_dir: PathBuf,
    /// Path of the node's control groups below the daemon's own: nobody else may use it. See [`ContainerConfig::new`].
    pub cgroup_root_name: String,
    /// The init program, an ELF file that needs nothing of the container's root to start (a static one).
    pub init_image: &'static [u8],
    /// Directories and files that no container shall see: those of the daemon. The run directory is always hidden.
    pub masked_paths: Vec<PathBuf>,
    /// The same, for what need not exist yet: it is hidden from containers that are built before it is made, too.
    pub masked_future_paths: Vec<PathBuf>,
    /// Most containers at a time, waiting and in use.
    pub containers_max: usize,
    /// Most roots of containers that have ended that are kept for others; 0 for none.
    pub cached_roots_max: usize,
    /// File by whose locks all nodes of the machine know which users containers have that have some of their own. Made where missing.
    pub user_ranges: PathBuf,
}

impl ContainerConfig {
    /// The configuration of a node; its control groups are told apart from those of a node of the same name in another
    /// cluster by the run directory. The environment may hide further paths ([`HIDDEN_PATHS_VARIABLE`]).
    pub fn new(node: &str, run_dir: &Path, init_image: &'static [u8]) -> Self {
        let real_dir = run_dir.canonicalize().unwrap_or_else(|_| run_dir.to_owned());
        Self {
            node: node.to_owned(),
            run_dir: run_dir.to_owned(),
            cgroup_root_name: format!("farfork/{node}-{:08x}", fingerprint(&real_dir)),
            init_image,
            masked_paths: std::env::var_os(HIDDEN_PATHS_VARIABLE)
                .map_or_else(Vec::new, |paths| std::env::split_paths(&paths).collect()),
            masked_future_paths: Vec::new(),
            containers_max: CONTAINERS_MAX_DEFAULT,
            cached_roots_max: CACHED_ROOTS_MAX_DEFAULT,
            user_ranges: USER_RANGES_DEFAULT.into(),
        }
    }

    /// Where the records of containers are.
    pub(crate) fn records_dir(&self) -> PathBuf {
        self.run_dir.join("containers")
    }

    /// Where the directories of the node's control groups are written down, one per line, for whoever cleans up.
    pub(crate) fn cgroups_file(&self) -> PathBuf {
        self.run_dir.join("cgroups")
    }
}

/// FNV-1a: short names for few paths, the same in every version of farfork.
fn fingerprint(path: &Path) -> u32 {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Which kind of container: what of it cannot be had later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ContainerSpec {
    /// Its root file system.
    pub root: RootSpec,
    /// Its network.
    pub network: NetworkSpec,
    /// Its users and groups.
    pub users: UsersSpec,
    /// Whether it is to have limits: else it has control groups of its own only where they cost next to nothing.
    pub limited: bool,
}

impl ContainerSpec {
    /// Whether another container may have its root after it: that of one with limits, of users of its own, or of the node itself is
    /// nobody else's.
    pub(crate) fn has_reusable_root(self) -> bool {
        let Self { root, network: _, users, limited } = self;
        root == RootSpec::Overlay && users == UsersSpec::Host && !limited
    }
}

/// Who may have the root of a container when all in it has ended and left no trace there: children of one line, and where a
/// network is not one's own, of the same fan-out. Through a network a process can hand a descriptor to another, and with that the other
/// would see what the next in that root does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootReuseKey {
    /// What only they have in common.
    pub lineage: Arc<str>,
    /// The fan-out whose network they share.
    pub fan_out: Option<u64>,
}

impl From<RootSpec> for ContainerSpec {
    fn from(root: RootSpec) -> Self {
        Self { root, ..Self::default() }
    }
}

/// Which users and groups those in a container are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum UsersSpec {
    /// The node's.
    #[default]
    Host,
    /// Numbers of its own, in a user namespace that its child enters. The node's files are shown as theirs.
    Private,
}

/// Which network a container is built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum NetworkSpec {
    /// One of its own, with a loopback interface.
    #[default]
    Private,
    /// The node's: for what is to be there, or is led into another before anything of it runs. None has to be made for it.
    Host,
}

/// Which root file system a container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum RootSpec {
    /// The node's files, under an overlay that takes the container's writes and vanishes with it.
    #[default]
    Overlay,
    /// The node's own files: writes are the node's.
    Shared,
}
