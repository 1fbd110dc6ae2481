//! How a node is run.

use std::net::SocketAddr;
use std::path::PathBuf;

use farfork_wire::NodeName;

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
    /// Where Prometheus reads its metrics; port 0 for any free one. Whoever can reach it may.
    pub metrics: Option<SocketAddr>,
}
