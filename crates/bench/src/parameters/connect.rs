//! The parameters of `farfork bench connect`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::protection::ConnectionSecurity;

/// The protections that are measured for each number of clients and threads.
pub(crate) const PROTECTIONS: [ConnectionSecurity; 3] =
    [ConnectionSecurity::None, ConnectionSecurity::Authenticated, ConnectionSecurity::Encrypted];

/// A combination of a number of clients and a number of threads. Each thread opens and closes one connection after the
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ConnectCase {
    /// Client nodes, each in a namespace of its own.
    pub clients: usize,
    /// Threads of each client.
    pub threads: usize,
}

impl ConnectCase {
    /// Number of connections that are being made at the same time.
    pub fn connections(&self) -> usize {
        self.clients * self.threads
    }
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct ConnectParameters {
    /// The cases, in order.
    pub cases: Vec<ConnectCase>,
    /// Number of runs of each case.
    pub runs: usize,
    /// How long clients connect, in seconds: with each protection, and for the floor.
    pub seconds: f64,
    /// The file to which samples are written.
    pub samples_file: Option<PathBuf>,
}

impl ConnectParameters {
    /// The cases of the published reference: one client with 1 to 12 threads, and 2 to 8 clients with two threads each.
    pub fn default_cases() -> Vec<ConnectCase> {
        let by_threads = [1, 2, 4, 8, 12].map(|threads| ConnectCase { clients: 1, threads });
        let by_clients = [2, 4, 8].map(|clients| ConnectCase { clients, threads: 2 });
        by_threads.into_iter().chain(by_clients).collect()
    }
}

/// The series of samples of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", content = "protection", rename_all = "snake_case")]
pub(crate) enum ConnectSeries {
    /// farfork's connections.
    Connections(ConnectionSecurity),
    /// Bare connections.
    Floor,
}

/// The key of a figure of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ConnectSampleKey {
    #[serde(flatten)]
    pub(crate) case: ConnectCase,
    #[serde(flatten)]
    pub(crate) series: ConnectSeries,
    /// The name of the figure, which includes its unit.
    pub(crate) figure: &'static str,
}

/// Names of the figures of farfork's connections. A latency is the latency of the slowest client.
pub(crate) const PER_S: &str = "per_s";
pub(crate) const P50_US: &str = "p50_us";
pub(crate) const P99_US: &str = "p99_us";
