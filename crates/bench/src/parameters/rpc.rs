//! The parameters of `farfork bench rpc`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::protection::ConnectionSecurity;
use crate::endpoint::specification::RpcSystem;

/// One combination of server, clients and load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RpcCase {
    /// Client nodes, each in a namespace of its own.
    pub clients: usize,
    /// Threads of each client.
    pub threads: usize,
    /// Connections of each thread.
    pub connections_per_thread: usize,
    /// Sessions on each connection.
    pub sessions: usize,
    /// Requests in flight on each session; 1 is synchronous.
    pub window: usize,
    /// Random bytes of each answer, generated and verified each time; 0 for empty answers.
    pub payload_bytes: usize,
    /// Threads of the server.
    pub server_threads: usize,
    /// Whether both sides poll for a while before they sleep.
    pub spins: bool,
    /// The protection of the connections.
    pub protection: ConnectionSecurity,
}

impl RpcCase {
    /// One client with one connection and empty answers.
    pub const SINGLE_CONNECTION: Self = Self {
        clients: 1,
        threads: 1,
        connections_per_thread: 1,
        sessions: 1,
        window: 1,
        payload_bytes: 0,
        server_threads: 1,
        spins: true,
        protection: ConnectionSecurity::None,
    };

    /// Number of all connections.
    pub fn connections(&self) -> usize {
        self.clients * self.threads * self.connections_per_thread
    }

    /// Whether server and client are pinned to one CPU each. The floor and the peers of the case are pinned too.
    pub(crate) fn is_pinned(&self) -> bool {
        let enough = std::thread::available_parallelism().is_ok_and(|processors| processors.get() >= 2);
        enough && self.clients == 1 && self.threads == 1 && self.server_threads == 1
    }

    /// Whether the case has a floor: one client, one thread on each side, empty answers and no protection.
    pub(crate) fn has_floor(&self) -> bool {
        let alone = self.clients == 1 && self.threads == 1 && self.server_threads == 1;
        alone && self.payload_bytes == 0 && self.protection == ConnectionSecurity::None
    }

    /// Whether the case has peers: one connection, and several requests in flight.
    pub(crate) fn has_peers(&self) -> bool {
        self.has_floor() && self.connections_per_thread == 1 && self.sessions == 1 && self.window > 1
    }
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct RpcParameters {
    /// The cases, in order.
    pub cases: Vec<RpcCase>,
    /// Number of runs of each case.
    pub runs: usize,
    /// How long clients send requests, in seconds.
    pub client_seconds: f64,
    /// Maximum time for which a server answers requests, in seconds.
    pub server_seconds: f64,
    /// Interval of throughput reports, in seconds.
    pub interval_seconds: f64,
    /// Whether floors and peers are measured too.
    pub floors: bool,
    /// The file to which samples are written.
    pub samples_file: Option<PathBuf>,
}

impl RpcParameters {
    /// The cases with promised figures, and those of the published reference.
    pub fn default_cases() -> Vec<RpcCase> {
        let one = RpcCase::SINGLE_CONNECTION;
        let mut cases = vec![
            one,
            RpcCase { spins: false, ..one },
            RpcCase { window: 64, ..one },
            RpcCase { window: 256, ..one },
            RpcCase { connections_per_thread: 16, window: 64, ..one },
            RpcCase { connections_per_thread: 4, window: 64, payload_bytes: 2048, ..one },
            RpcCase { protection: ConnectionSecurity::Encrypted, window: 64, ..one },
            RpcCase { protection: ConnectionSecurity::Encrypted, window: 64, payload_bytes: 2048, ..one },
        ];
        cases.extend([1, 2, 4, 8, 10].map(|clients| RpcCase { clients, threads: 12, ..one }));
        cases
    }
}

/// The series of samples of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", content = "system", rename_all = "snake_case")]
pub(crate) enum RpcSeries {
    /// Calls by an RPC system.
    Calls(RpcSystem),
    /// The bare echo.
    Floor,
}

/// The key of a figure of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct RpcSampleKey {
    #[serde(flatten)]
    pub(crate) case: RpcCase,
    #[serde(flatten)]
    pub(crate) series: RpcSeries,
    /// The name of the figure, which includes its unit.
    pub(crate) figure: &'static str,
}

/// The figures of all clients of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RpcRunOutcome {
    /// Answers per second of all clients.
    pub per_s: f64,
    /// Answers per second in each interval.
    pub intervals_per_s: Vec<f64>,
    /// Requests that failed.
    pub errors: u64,
    /// Answers with a wrong length or checksum.
    pub damaged: u64,
    /// Median, 90th, 99th and 99.9th percentile, and maximum of the latencies, in µs. Each is the largest value of all
    /// clients.
    pub latency_us: [f64; 5],
}
