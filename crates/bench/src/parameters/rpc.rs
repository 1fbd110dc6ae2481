//! The parameters of `farfork bench rpc`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::protection::ConnectionSecurity;
use crate::endpoint::specification::RpcSystem;

/// One combination of servers, clients and loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RpcCase {
    /// Client nodes, each in a namespace of its own.
    pub clients: usize,
    /// Threads of each.
    pub threads: usize,
    /// Connections of each thread.
    pub connections_per_thread: usize,
    /// Sessions on each connection.
    pub sessions: usize,
    /// Requests in flight on each session; 1: synchronous.
    pub window: usize,
    /// Random bytes of each answer, made and checked anew; 0: empty answers.
    pub payload_bytes: usize,
    /// Threads of the server.
    pub server_threads: usize,
    /// Whether both sides look for work for a while before they sleep.
    pub spins: bool,
    /// What protects connections.
    pub protection: ConnectionSecurity,
}

impl RpcCase {
    /// One client with one connection, empty answers.
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

    /// All connections.
    pub fn connections(&self) -> usize {
        self.clients * self.threads * self.connections_per_thread
    }

    /// Whether server and client have a processor each, as all their peers have.
    pub(crate) fn is_pinned(&self) -> bool {
        let enough = std::thread::available_parallelism().is_ok_and(|processors| processors.get() >= 2);
        enough && self.clients == 1 && self.threads == 1 && self.server_threads == 1
    }

    /// Whether a floor of the same shape says something: one thread on each side, nothing in the answers.
    pub(crate) fn has_floor(&self) -> bool {
        let alone = self.clients == 1 && self.threads == 1 && self.server_threads == 1;
        alone && self.payload_bytes == 0 && self.protection == ConnectionSecurity::None
    }

    /// Whether peers are measured beside it: one connection, several requests in flight.
    pub(crate) fn has_peers(&self) -> bool {
        self.has_floor() && self.connections_per_thread == 1 && self.sessions == 1 && self.window > 1
    }
}

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct RpcParameters {
    /// One after the other.
    pub cases: Vec<RpcCase>,
    /// Runs of each.
    pub runs: usize,
    /// How long clients ask, in seconds.
    pub client_seconds: f64,
    /// How long a server answers at most, in seconds.
    pub server_seconds: f64,
    /// How often throughput is told, in seconds.
    pub interval_seconds: f64,
    /// Whether floors and peers are measured, too.
    pub floors: bool,
    /// Where each sample is written to.
    pub samples_file: Option<PathBuf>,
}

impl RpcParameters {
    /// The cases that promises are made for, and the reference's.
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

/// What is measured in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", content = "system", rename_all = "snake_case")]
pub(crate) enum RpcSeries {
    /// Calls by a system.
    Calls(RpcSystem),
    /// The bare echo.
    Floor,
}

/// A figure: answers a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct RpcSampleKey {
    #[serde(flatten)]
    pub(crate) case: RpcCase,
    #[serde(flatten)]
    pub(crate) series: RpcSeries,
    /// Its unit is part of its name.
    pub(crate) figure: &'static str,
}

/// What all clients of a run amount to.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RpcRunOutcome {
    /// Answers a second, of all clients.
    pub per_s: f64,
    /// Answers a second in each interval.
    pub intervals_per_s: Vec<f64>,
    /// Requests that failed.
    pub errors: u64,
    /// Answers whose checksum disagreed.
    pub damaged: u64,
    /// Of the slowest client: half of the requests, 90 %, 99 %, 99.9 % and all took no longer, in µs.
    pub latency_us: [f64; 5],
}
