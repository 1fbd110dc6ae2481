//! Configuration of a node.

use std::net::SocketAddr;
use std::path::PathBuf;

pub use farfork_container::{CACHED_ROOTS_MAX_DEFAULT, USER_RANGES_DEFAULT};
use farfork_trust::{Encryption, JoinToken};
use farfork_wire::NodeName;

pub use crate::seeds::SeedBudget;

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
    /// Who it is, and whom it trusts.
    pub trust: TrustOptions,
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
