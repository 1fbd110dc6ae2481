//! The parameters of `farfork bench connect`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::protection::ConnectionSecurity;

/// What is measured for each number of clients and threads.
pub(crate) const PROTECTIONS: [ConnectionSecurity; 3] =
    [ConnectionSecurity::None, ConnectionSecurity::Authenticated, ConnectionSecurity::Encrypted];

/// One number of clients and threads. Each thread makes one connection after the other, and closes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ConnectCase {
    /// Client nodes, each in a namespace of its own.
    pub clients: usize,
    /// Threads of each.
    pub threads: usize,
}

impl ConnectCase {
    /// Connections that are being made at once.
    pub fn connections(&self) -> usize {
        self.clients * self.threads
    }
}

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct ConnectParameters {
    /// One after the other.
    pub cases: Vec<ConnectCase>,
    /// Runs of each.
    pub runs: usize,
    /// How long clients connect, in seconds, once with each protection and once for the floor.
    pub seconds: f64,
    /// Where each sample is written to.
    pub samples_file: Option<PathBuf>,
}

impl ConnectParameters {
    /// The reference's: by threads of one client, and by clients of two threads.
    pub fn default_cases() -> Vec<ConnectCase> {
        let by_threads = [1, 2, 4, 8, 12].map(|threads| ConnectCase { clients: 1, threads });
        let by_clients = [2, 4, 8].map(|clients| ConnectCase { clients, threads: 2 });
        by_threads.into_iter().chain(by_clients).collect()
    }
}

/// What is measured in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", content = "protection", rename_all = "snake_case")]
pub(crate) enum ConnectSeries {
    /// farfork's connections.
    Connections(ConnectionSecurity),
    /// Bare ones.
    Floor,
}

/// A figure of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ConnectSampleKey {
    #[serde(flatten)]
    pub(crate) case: ConnectCase,
    #[serde(flatten)]
    pub(crate) series: ConnectSeries,
    /// Its unit is part of its name.
    pub(crate) figure: &'static str,
}

/// The figures of farfork's connections. Latencies are those of the slowest client.
pub(crate) const PER_S: &str = "per_s";
pub(crate) const P50_US: &str = "p50_us";
pub(crate) const P99_US: &str = "p99_us";
