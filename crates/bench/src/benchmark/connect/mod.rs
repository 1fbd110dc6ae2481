//! `farfork bench connect`: how many connections nodes make per second, by threads and by client machines. For each case,
//! the floor and farfork's connections with each protection alternate, so that other load affects all of them.

mod results;

use clap::Args;
use serde::Serialize;

use super::{BenchResults, BenchRun, Benchmark};
use crate::baseline::connect::{BareConnect, CONNECT};
use crate::endpoint::latencies::{Latencies, merge_latencies, quantile_us, read_latencies};
use crate::endpoint::specification::{EndpointRole, EndpointSpec, RpcSystem};
use crate::error::BenchError;
use crate::experiment::testbed::{ConnectionSecurity, Testbed, start_endpoint};
use crate::figure::Figure;
use crate::machine::Machine;
use crate::machine::program::{ConnectedPrograms, RunningProgram};
use crate::options::{SamplesOption, count, parse_seconds};
use crate::samples::FigureSamples;

/// The server runs this much longer than the clients, which take time to start.
const SERVER_EXTRA_SECONDS: f64 = 10.0;

/// Measure how many connections nodes make per second, and how long each connection takes.
///
/// The server and each client node are in their own network namespaces. Veth pairs connect the namespaces. Each thread of a
/// client makes one connection after the other. A connection is a TCP connection and a handshake in which both ends
/// authenticate each other. It counts once its first request, one byte, is answered. Then it is closed.
///
/// The benchmark measures each case three times: without the handshake, with the handshake but no encryption, and with the
/// handshake and encryption. Without arguments, the cases are one client with 1, 2, 4, 8 and 12 threads,
/// and 2, 4 and 8 clients with two threads each.
///
/// During a run of a second or more, the benchmark prints the connections of all clients in each second, and their mean
/// time.
///
/// The report has a floor next to each figure, measured in turn with it: the same over TCP by two programs that do
/// nothing else. It also has a published reference, measured on other machines.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork bench connect                               all usual cases, about a minute
  farfork bench connect --threads 1 --seconds 5       the time of one connection
  farfork bench connect --clients 1,2,4 --threads 2   several numbers of client nodes
  farfork bench connect --json --samples samples.jsonl

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchConnect {
    /// Number of client nodes. Each is a process in its own network namespace. Each of several numbers is a case
    /// [default: 1, if --threads is given].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = count(1..=10))]
    clients: Vec<usize>,
    /// Number of threads of each client node. Each of several numbers is a case [default: 1, if --clients is given].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = count(1..=64))]
    threads: Vec<usize>,
    /// Time for which the clients connect in a run, in seconds, for each kind of connection and for the floor.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = parse_seconds)]
    seconds: f64,
    /// Number of runs of each case, in turn with its floor.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1..=1000))]
    runs: usize,
    #[command(flatten)]
    samples: SamplesOption,
}

const RATE: Figure = Figure::higher("per_s", "connections", "1/s");
/// Times of farfork's connections, of the slowest client.
const MEDIAN: Figure = Figure::lower("p50_us", "time", "µs");
const P99: Figure = Figure::lower("p99_us", "time, p99", "µs");
/// The mean time of all clients' connections, as published.
const MEAN: Figure = Figure::lower("mean_us", "time, mean", "µs");

/// A combination of a number of clients and a number of threads. Each thread opens and closes one connection after the
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct ConnectCase {
    /// Client nodes, each in a namespace of its own.
    clients: usize,
    /// Threads of each client.
    threads: usize,
}

impl ConnectCase {
    /// Number of connections that are being made at the same time.
    fn connections(&self) -> usize {
        self.clients * self.threads
    }
}

/// The series of samples of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", content = "protection", rename_all = "snake_case")]
enum ConnectSeries {
    /// farfork's connections.
    Connections(ConnectionSecurity),
    /// Bare connections.
    Floor,
}

/// A run of a case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct ConnectSampleCase {
    #[serde(flatten)]
    case: ConnectCase,
    #[serde(flatten)]
    series: ConnectSeries,
    /// The host whose figure it is; `None` for all clients together.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
}

impl ConnectSampleCase {
    /// The run of all clients together.
    fn new(case: ConnectCase, series: ConnectSeries) -> Self {
        Self { case, series, host: None }
    }

    fn of_host(self, host: &str) -> Self {
        Self { host: Some(host.to_owned()), ..self }
    }
}

/// The columns of a table: the rate with each protection.
const PROTECTION_COLUMNS: [(&str, ConnectionSecurity); 3] = [
    ("neither authenticated nor encrypted", ConnectionSecurity::None),
    ("authenticated", ConnectionSecurity::Authenticated),
    ("encrypted", ConnectionSecurity::Encrypted),
];

/// Threads of each client machine in the tables by machines.
const MACHINE_THREADS: usize = 2;

impl BenchConnect {
    /// The cases, by default those of the published reference: one client with 1 to 12 threads, and 2 to 8 clients with two
    /// threads each.
    fn cases(&self) -> Vec<ConnectCase> {
        let or_one = |numbers: &[usize]| {
            let mut numbers = if numbers.is_empty() { vec![1] } else { numbers.to_vec() };
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        if self.clients.is_empty() && self.threads.is_empty() {
            let by_threads = [1, 2, 4, 8, 12].map(|threads| ConnectCase { clients: 1, threads });
            let by_clients = [2, 4, 8].map(|clients| ConnectCase { clients, threads: MACHINE_THREADS });
            return by_threads.into_iter().chain(by_clients).collect();
        }
        let threads = or_one(&self.threads);
        let with_threads = |clients| threads.iter().map(move |&threads| ConnectCase { clients, threads });
        or_one(&self.clients).into_iter().flat_map(with_threads).collect()
    }
}

impl Benchmark for BenchConnect {
    const COMMAND: &'static str = "bench connect";
    const ROOT_REASON: &'static str = "it makes network namespaces";
    const HOSTS_REFUSAL: Option<&'static str> = None;

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let (mut cases, samples) = (self.cases(), FigureSamples::create(&self.samples)?);
        cases.retain(|case| !self.clients.is_empty() || run.machines.may_have_clients(case.clients));
        let clients = cases.iter().map(|case| case.clients).max().unwrap_or(1);
        let testbed = Testbed::new(&run.machines, clients)?;
        testbed.machines().try_for_each(|machine| CONNECT.install(machine))?;
        let server_threads = testbed.server_processors()?;
        let mut connections = ConnectRun { seconds: self.seconds, server_threads, testbed, samples };
        let series = [ConnectSeries::Floor].into_iter();
        let series: Vec<_> =
            series.chain(PROTECTION_COLUMNS.map(|(_, security)| ConnectSeries::Connections(security))).collect();
        run.expect_steps(cases.len() * self.runs * series.len());
        for case in &cases {
            for series in series.repeat(self.runs) {
                run.show(describe(case, series))?;
                connections.measure(case, series, run)?;
                run.complete_step();
            }
        }
        let hosts = connections.testbed.client_hosts(clients);
        Ok(self.results(cases, &hosts, server_threads, &connections.samples))
    }
}

fn describe(case: &ConnectCase, series: ConnectSeries) -> String {
    let what = match series {
        ConnectSeries::Floor => "TCP alone",
        ConnectSeries::Connections(ConnectionSecurity::None) => "unauthenticated",
        ConnectSeries::Connections(ConnectionSecurity::Authenticated) => "authenticated",
        ConnectSeries::Connections(ConnectionSecurity::Encrypted) => "encrypted",
    };
    format!("{what}: {} × {}", case.clients, case.threads)
}

struct ConnectRun {
    seconds: f64,
    server_threads: usize,
    testbed: Testbed,
    samples: FigureSamples<ConnectSampleCase>,
}

impl ConnectRun {
    fn measure(&mut self, case: &ConnectCase, series: ConnectSeries, run: &BenchRun) -> Result<(), BenchError> {
        let sample_case = ConnectSampleCase::new(*case, series);
        let ConnectSeries::Connections(protection) = series else {
            return self.samples.add(&sample_case, RATE, self.measure_floor(case)?);
        };
        let clients = self.measure_connections(case, protection, run)?;
        for (host, client) in self.testbed.client_hosts(case.clients).iter().zip(&clients) {
            let of_host = sample_case.clone().of_host(host);
            client.figures().into_iter().try_for_each(|(figure, value)| self.samples.add(&of_host, figure, value))?;
        }
        ClientConnections::of_all(&clients)
            .figures()
            .into_iter()
            .try_for_each(|(figure, value)| self.samples.add(&sample_case, figure, value))
    }

    fn measure_floor(&self, case: &ConnectCase) -> Result<f64, BenchError> {
        let (clients, threads) = (case.clients, case.threads);
        let (server_threads, seconds) = (self.server_threads, self.seconds);
        BareConnect { clients, threads, server_threads, seconds }.measure_per_s(&self.testbed)
    }

    /// One run: a server and its clients. Returns the connections of each client.
    fn measure_connections(
        &self,
        case: &ConnectCase,
        protection: ConnectionSecurity,
        run: &BenchRun,
    ) -> Result<Vec<ClientConnections>, BenchError> {
        let start = |machine: &dyn Machine, role| {
            let end = EndpointSpec::new(RpcSystem::Farfork, role);
            start_endpoint(machine, protection, end)
        };
        let (on, threads, seconds) = (self.testbed.server(), self.server_threads, self.seconds + SERVER_EXTRA_SECONDS);
        let server = start(on, EndpointRole::Acceptor { ip: [0, 0, 0, 0].into(), threads, seconds })?;
        let clients = self.testbed.clients(case.clients);
        let mut connected = ConnectedPrograms::start(on, server, clients, |machine, to| {
            start(machine, EndpointRole::Connector { to, threads: case.threads, seconds: self.seconds })
        })?;
        connected.begin()?;
        for second in 1..=self.seconds as u64 {
            let (mut made, mut ns) = (0, 0);
            for client in &mut connected.clients {
                let [connections, time_ns] = client.read_answer("interval")?;
                (made, ns) = (made + connections, ns + time_ns);
            }
            let mean_us = ns as f64 / 1e3 / made.max(1) as f64;
            run.print_line(&format!(
                "{second} s, {}: {made} connections, mean {mean_us:.0} µs",
                describe(case, ConnectSeries::Connections(protection))
            ));
        }
        connected.clients.iter_mut().map(ClientConnections::read).collect()
    }
}

/// The connections of one client, or of several.
#[derive(Debug)]
struct ClientConnections {
    per_s: f64,
    latencies: Latencies,
}

impl ClientConnections {
    /// Reads the last lines of a client.
    fn read(client: &mut RunningProgram) -> Result<Self, BenchError> {
        let [made, ns] = client.read_answer("done")?;
        Ok(Self { per_s: made as f64 / (ns as f64 / 1e9), latencies: read_latencies(client)? })
    }

    fn of_all(clients: &[Self]) -> Self {
        let latencies = merge_latencies(clients.iter().map(|client| &client.latencies));
        Self { per_s: clients.iter().map(|client| client.per_s).sum(), latencies }
    }

    fn figures(&self) -> [(Figure, f64); 4] {
        let Self { per_s, latencies } = self;
        let [p50_us, p99_us] = [0.5, 0.99].map(|quantile| quantile_us(latencies, quantile));
        [(RATE, *per_s), (MEDIAN, p50_us), (P99, p99_us), (MEAN, latencies.mean() / 1e3)]
    }
}
