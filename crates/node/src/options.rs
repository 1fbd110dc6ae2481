//! Configuration of a node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use farfork_container::{CACHED_ROOTS_MAX_DEFAULT, USER_RANGES_DEFAULT};
use farfork_trust::{Encryption, JoinToken};
use farfork_volume::process::{CopyMethod, OffloadMode};
use farfork_wire::NodeName;

pub use crate::seeds::SeedBudget;

/// The directory of files that outlive a node and a start of the machine.
const STATE_DIR: &str = "/var/lib/farfork";

/// How a node is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name, unique in its cluster.
    pub name: NodeName,
    /// Where it keeps what it has while it runs.
    pub run_dir: PathBuf,
    /// Where its control API listens; port 0 for any free one.
    pub listen: SocketAddr,
    /// Port of its fabric's server, on the same address; 0 for any free one.
    pub fabric_port: u16,
    /// Control addresses of nodes whose cluster it joins.
    pub join: Vec<SocketAddr>,
    /// Containers that it keeps ready.
    pub pool_size: usize,
    /// Zygotes that it keeps at most; 0 for none.
    pub zygotes_max: usize,
    /// After so long without a fork, a zygote ends.
    pub zygote_idle_max: Duration,
    /// Most roots of children that have ended that it keeps for further ones of their seeds; 0 for none.
    pub kept_roots_max: usize,
    /// Most bytes of memory in which it keeps pages of other nodes' seeds.
    pub cache_bytes_max: u64,
    /// What its seeds' templates may come to hold.
    pub seed_budget: SeedBudget,
    /// What the memory limits of its children may come to together; all that the machine has where that is not said.
    pub child_memory_bytes_max: Option<u64>,
    /// Where Prometheus reads its metrics; port 0 for any free one. Whoever can reach it may.
    pub metrics: Option<SocketAddr>,
    /// Where it keeps the images of sealed seeds; below its run directory where that is not said.
    pub images: Option<PathBuf>,
    /// File by whose locks all nodes of the machine know which users children with a user namespace have.
    pub user_ranges: PathBuf,
    /// Whether its children are led from their parent's vdso to the one here also where both are the same: to try that.
    pub bridges_vdso: bool,
    /// Components of extended state that it takes its processor to have, in place of those that it has: to try processors that differ.
    pub xcr0: Option<u64>,
    /// Where its volumes are.
    pub volumes: VolumeOptions,
    /// Who it is, and whom it trusts.
    pub trust: TrustOptions,
}

/// Where the volumes of a node are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Directory of its replicas, and of the sockets of their processes.
    pub store: PathBuf,
    /// File in which the nodes of the cluster agree on volumes.
    pub catalog: PathBuf,
    /// Time after which a node that does not answer leaves the chains of its volumes, in milliseconds.
    pub detection_ms: u64,
    /// Time in which the replicas of each volume are compared once, in hours; 0 for never.
    pub scrub_hours: u32,
    /// How data gets from logs into shared trees.
    pub copy_method: CopyMethod,
    /// Where the work of replicating and publishing is done.
    pub offload_mode: OffloadMode,
    /// CPUs of the offload process, such as `1` or `2-3`; none for all.
    pub offload_cpus: Option<String>,
}

impl VolumeOptions {
    /// Default of `detection_ms`.
    pub const DETECTION_MS: u64 = 1000;
    /// Default of `scrub_hours`. A week: as often as Linux distributions check RAID arrays, or more.
    pub const SCRUB_HOURS: u32 = 168;

    /// Those of a node that was started without options for volumes: in a directory of the node. The catalog is next to the
    /// store unless another one is named.
    pub fn new(node: &NodeName, store: Option<PathBuf>, catalog: Option<PathBuf>) -> Self {
        let store = store.unwrap_or_else(|| Path::new(STATE_DIR).join(node.as_str()).join("volumes"));
        let catalog = catalog.unwrap_or_else(|| store.with_file_name("catalog"));
        Self {
            store,
            catalog,
            detection_ms: Self::DETECTION_MS,
            scrub_hours: Self::SCRUB_HOURS,
            copy_method: CopyMethod::default(),
            offload_mode: OffloadMode::default(),
            offload_cpus: None,
        }
    }
}

/// Who a node is, and whom it trusts.
#[derive(Debug, Clone)]
pub struct TrustOptions {
    /// Its trust directory. Without an identity there, it joins with the token, or makes a cluster of its own.
    pub directory: PathBuf,
    /// Whether what the fabric carries is encrypted.
    pub encryption: Encryption,
    /// What it shows to join.
    pub token: Option<JoinToken>,
    /// Trust whoever reaches the node, and show nobody who it is.
    pub insecure: bool,
}
