//! `RpcCase`: a number of clients and how much each requests at once, and the arguments that describe it. `bench rpc` and
//! `stress rpc` share them.

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _};
use serde::Serialize;

use crate::Cli;
use crate::experiment::testbed::ConnectionSecurity;
use crate::options::{count, parse_on_off};

/// Default number of random bytes in an answer with a checksum, without the bytes of the checksum.
const PAYLOAD_BYTES: usize = 2048;

/// Maximum number of counts of a run. A week has 604,800 seconds.
const INTERVALS_MAX: f64 = 1e6;

/// How many clients call the server, and how much each requests at once.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Number of threads of the server. The connections are spread over the threads [default: 1].
    #[arg(long, value_name = "N", value_parser = count(1..=64))]
    server_threads: Option<usize>,
    /// Number of threads of each client node.
    #[arg(long, value_name = "N", value_parser = count(1..=64))]
    threads: Option<usize>,
    /// Number of connections of each thread [default: 1].
    #[arg(long, value_name = "N", value_parser = count(1..=256))]
    connections: Option<usize>,
    /// Number of sessions on each connection [default: 1].
    #[arg(long, value_name = "N", value_parser = count(1..=64))]
    sessions: Option<usize>,
    /// Number of requests in flight on each session. With 1, each request waits for the previous answer.
    #[arg(long, value_name = "N", value_parser = count(1..=4096))]
    window: Option<usize>,
    /// Have the server answer with random bytes and a checksum, and verify each answer.
    #[arg(long)]
    checksum: bool,
    /// Number of random bytes in an answer, without the 8 bytes of the checksum. Implies --checksum [default: 2048].
    #[arg(long, value_name = "BYTES", value_parser = count(1..=(16 << 20) - 8))]
    payload: Option<usize>,
    /// Encrypt the calls. With `on` and with `off`, both ends authenticate each other first.
    #[arg(long, value_name = "on|off", value_parser = parse_on_off())]
    encryption: Option<bool>,
    /// Sleep as soon as there is no work, instead of polling for work for 50 µs first.
    #[arg(long)]
    no_spin: bool,
}

impl LoadArgs {
    /// Whether any option was given.
    pub(crate) fn is_specified(&self) -> bool {
        let numbers = [self.server_threads, self.threads, self.connections, self.sessions, self.window];
        numbers.iter().any(Option::is_some)
            || self.payload.is_some()
            || self.checksum
            || self.no_spin
            || self.encryption.is_some()
    }

    /// The case that the options describe. The number of clients and missing options are taken from `usual`.
    pub(crate) fn to_case(&self, usual: &RpcCase) -> RpcCase {
        let payload = self.payload.or(self.checksum.then_some(PAYLOAD_BYTES));
        RpcCase {
            clients: usual.clients,
            threads: self.threads.unwrap_or(usual.threads),
            connections_per_thread: self.connections.unwrap_or(usual.connections_per_thread),
            sessions: self.sessions.unwrap_or(usual.sessions),
            window: self.window.unwrap_or(usual.window),
            payload_bytes: payload.unwrap_or(usual.payload_bytes),
            server_threads: self.server_threads.unwrap_or(usual.server_threads),
            spins: usual.spins && !self.no_spin,
            protection: match self.encryption {
                Some(true) => ConnectionSecurity::Encrypted,
                Some(false) => ConnectionSecurity::Authenticated,
                None => usual.protection,
            },
        }
    }
}

/// The times of a run, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RpcTimes {
    /// How long clients send requests.
    pub(crate) clients: f64,
    /// Maximum time for which the server answers.
    pub(crate) server: f64,
    /// Time between two counts of answers.
    pub(crate) interval: f64,
}

impl RpcTimes {
    /// Exits with a message if the server would end before its clients, or if the run would have too many counts. By
    /// default, the server answers `server_extra` seconds longer.
    pub(crate) fn new(clients: f64, server: Option<f64>, server_extra: f64, interval: f64) -> Self {
        let server = server.unwrap_or(clients + server_extra);
        if server <= clients {
            refuse(format!("the server would end before its clients: --server-seconds must be more than {clients}"));
        }
        if clients / interval > INTERVALS_MAX {
            let least = clients / INTERVALS_MAX;
            refuse(format!("{clients} s would have too many counts: --report-interval must be at least {least}"));
        }
        Self { clients, server, interval: interval.min(clients) }
    }
}

fn refuse(wrong: String) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, wrong).exit()
}

/// One combination of server, clients and load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct RpcCase {
    /// Client nodes, each in a namespace of its own.
    pub(crate) clients: usize,
    /// Threads of each client.
    pub(crate) threads: usize,
    /// Connections of each thread.
    pub(crate) connections_per_thread: usize,
    /// Sessions on each connection.
    pub(crate) sessions: usize,
    /// Requests in flight on each session; 1 is synchronous.
    pub(crate) window: usize,
    /// Random bytes of each answer, generated and verified each time; 0 for empty answers.
    pub(crate) payload_bytes: usize,
    /// Threads of the server.
    pub(crate) server_threads: usize,
    /// Whether both sides poll for a while before they sleep.
    pub(crate) spins: bool,
    /// The protection of the connections.
    pub(crate) protection: ConnectionSecurity,
}

impl RpcCase {
    /// One client with one connection and empty answers.
    pub(crate) const SINGLE_CONNECTION: Self = Self {
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
    pub(crate) fn connections(&self) -> usize {
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
