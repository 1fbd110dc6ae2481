//! Configuration of a node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_cluster::catalog::CatalogLocation;
pub use farfork_container::{CACHED_ROOTS_MAX_DEFAULT, USER_RANGES_DEFAULT};
use farfork_trust::{Encryption, JoinToken};
use farfork_volume::chain::LogCompression;
use farfork_volume::process::{CopyMethod, OffloadMode, WorkPriority};
use farfork_wire::NodeName;

pub use crate::seeds::SeedBudget;

/// Directory of files that outlive the daemon and a reboot of the machine.
pub const STATE_DIR: &str = "/var/lib/farfork";

/// Configuration of one node.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name, unique in its cluster.
    pub name: NodeName,
    /// The node's run directory.
    pub run_dir: PathBuf,
    /// Address of the node's control API; port 0 for any free port.
    pub listen: SocketAddr,
    /// Port of the node's fabric server, at the same address; 0 for any free port.
    pub fabric_port: u16,
    /// Control addresses of nodes whose cluster the node joins.
    pub join: Vec<SocketAddr>,
    /// Number of containers that the node keeps ready.
    pub pool_size: usize,
    /// Maximum number of zygotes; 0 for none.
    pub zygotes_max: usize,
    /// A zygote ends after this time without a fork.
    pub zygote_idle_max: Duration,
    /// Maximum number of root file systems of ended children that the node keeps for further children; 0 for none.
    pub kept_roots_max: usize,
    /// Maximum size of the cache for pages of other nodes' seeds, in bytes.
    pub cache_bytes_max: u64,
    /// Limits of the memory that the templates of the node's seeds hold.
    pub seed_budget: SeedBudget,
    /// Maximum sum of the memory limits of the node's children, in bytes; all memory of the machine if `None`.
    pub child_memory_bytes_max: Option<u64>,
    /// Address of the node's metrics for Prometheus; port 0 for any free port. Any host that reaches the address may
    /// read the metrics.
    pub metrics: Option<SocketAddr>,
    /// Directory for the images of sealed seeds; below the run directory if `None`.
    pub images: Option<PathBuf>,
    /// File whose locks mark the user ids of children with a user namespace as in use, for all nodes of the machine.
    pub user_ranges: PathBuf,
    /// For tests: redirects a child's vdso calls to this node's vdso even if it equals the parent's.
    pub bridges_vdso: bool,
    /// For tests of different processors: the extended-state components (XCR0) to report instead of the processor's
    /// own.
    pub xcr0: Option<u64>,
    /// Configuration of the node's volumes.
    pub volumes: VolumeOptions,
    /// The node's identity, and the peers that it trusts.
    pub trust: TrustOptions,
}

/// Configuration of a node's volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Directory of the node's replicas, and of the sockets of the volumes' processes.
    pub store: PathBuf,
    /// Where the nodes of the cluster agree on volumes. `None`: in the catalog that the trust directory names, or else in a
    /// file next to the store.
    pub catalog: Option<CatalogLocation>,
    /// A node that does not respond for this time is removed from the chains of its volumes, in milliseconds.
    pub detection_ms: u64,
    /// A replica that takes less than this number of bytes of its log per detection time is removed from the chain.
    pub replica_rate_min: u64,
    /// Period in which the replicas of each volume are compared once, in hours; 0 for never.
    pub scrub_hours: u32,
    /// Method to copy data from logs into shared trees.
    pub copy_method: CopyMethod,
    /// Compression of log data on its way to the next replica.
    pub compression: LogCompression,
    /// Whether separate processes or threads of the daemon replicate and publish.
    pub offload_mode: OffloadMode,
    /// CPU priority of the threads that replicate and publish.
    pub work_priority: WorkPriority,
    /// CPUs of the offload process, such as `1` or `2-3`; `None` for all.
    pub offload_cpus: Option<String>,
}

impl VolumeOptions {
    /// Default of `detection_ms`.
    pub const DETECTION_MS: u64 = 1000;
    /// Default of `replica_rate_min`: with the default detection time, half a Mbit/s.
    pub const REPLICA_RATE_MIN: u64 = 64 << 10;
    /// Default of `scrub_hours`: one week. Linux distributions check RAID arrays once a week or once a month.
    pub const SCRUB_HOURS: u32 = 168;

    /// Creates the default options. By default, the store is in the node's state directory.
    pub fn new(node: &NodeName, store: Option<PathBuf>, catalog: Option<CatalogLocation>) -> Self {
        let store = store.unwrap_or_else(|| Path::new(STATE_DIR).join(node.as_str()).join("volumes"));
        Self {
            store,
            catalog,
            detection_ms: Self::DETECTION_MS,
            replica_rate_min: Self::REPLICA_RATE_MIN,
            scrub_hours: Self::SCRUB_HOURS,
            copy_method: CopyMethod::default(),
            compression: LogCompression::default(),
            offload_mode: OffloadMode::default(),
            work_priority: WorkPriority::default(),
            offload_cpus: None,
        }
    }
}

/// A node's identity, and the peers that it trusts.
#[derive(Debug, Clone)]
pub struct TrustOptions {
    /// The node's trust directory. If the directory has no identity, the node joins with the token.
    pub directory: PathBuf,
    /// Whether fabric traffic is encrypted.
    pub encryption: Encryption,
    /// The join token.
    pub token: Option<JoinToken>,
    /// Trust any peer that reaches the node, and use no certificate.
    pub insecure: bool,
}
