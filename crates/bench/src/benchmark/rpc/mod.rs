//! `farfork bench rpc`: how many calls nodes make per second, and how long each takes. For each case, floors, peers and
//! farfork's own calls run several times in turn, so that other load on the machine affects all of them.

pub(crate) mod case;
mod results;

use clap::Args;
use serde::Serialize;

use self::case::{LoadArgs, RpcCase, RpcTimes};
use super::{BenchResults, BenchRun, Benchmark};
use crate::baseline::echo::{BareEcho, ECHO};
use crate::endpoint::latencies::{merge_latencies, quantile_us, read_latencies};
use crate::endpoint::specification::{ClientLoad, EndpointRole, EndpointSpec, RpcSystem};
use crate::error::BenchError;
use crate::experiment::testbed::{ConnectionSecurity, Testbed, start_endpoint};
use crate::figure::Figure;
use crate::machine::Machine;
use crate::machine::program::{ConnectedPrograms, RunningProgram};
use crate::options::{SamplesOption, count, parse_seconds};
use crate::samples::FigureSamples;

/// By default, the server answers this much longer than the clients request.
const SERVER_EXTRA_SECONDS: f64 = 10.0;

/// Length of an interval without `--report-interval`, in seconds.
const INTERVAL_SECONDS: f64 = 1.0;

/// Measure how many calls nodes make per second, and how long each call takes.
///
/// The server and each client node are in their own network namespaces. Veth pairs connect the namespaces. An option that
/// describes a load selects its cases. Without such options, the benchmark measures the cases of the specification.
/// These are one request in flight, with and without polling for work before sleeping, and 64 and 256 requests on one
/// connection. They are also 64 requests on each of 16 connections, and answers of 2,048 random bytes with a checksum of 8
/// bytes, each verified. The last ones are 1 to 10 client nodes with 12 synchronous threads each.
///
/// The report has floors next to unencrypted empty calls of one thread on each side, measured in turn with them: an echo of
/// the same messages by two programs that do nothing else. For one connection, it also has an echo with tokio, tonic and
/// tarpc. Cases that have a published reference, measured on other machines, show it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork bench rpc                                      all usual cases, about three minutes
  farfork bench rpc --clients 4 --threads 2 --window 64  one case
  farfork bench rpc --checksum                           answers of 2,048 random bytes, verified
  farfork bench rpc --checksum --threads 12 --clients 1,2,4,8,10
                                                         the same by number of machines
  farfork bench rpc --clients 2 --client-seconds 10 --report-interval 1
                                                         a line for each second and client node
  farfork bench rpc --inventory HOSTS.toml --exclude n3  a server and clients on hosts
  farfork bench rpc --json                               one JSON document

Exit status: 0 measured, 1 failed or an answer was wrong, 2 wrong usage.")]
pub(crate) struct BenchRpc {
    /// Numbers of client nodes, each number as a case. Each node is a process in its own network namespace [default: 1].
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = count(1..=10))]
    clients: Vec<usize>,
    #[command(flatten)]
    load: LoadArgs,
    /// Time for which the clients send requests, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    client_seconds: f64,
    /// Maximum time for which the server answers, in seconds [default: --client-seconds plus 10].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    server_seconds: Option<f64>,
    /// Print the answers per second of each client node in each interval of this length, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    report_interval: Option<f64>,
    /// Number of runs of each case, in turn with its floors and the other RPC systems.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1..=1000))]
    runs: usize,
    /// Measure no floors and no other RPC systems.
    #[arg(long)]
    no_floors: bool,
    #[command(flatten)]
    samples: SamplesOption,
}

/// Answers per second.
const RATE: Figure = Figure::higher("per_s", "calls", "1/s");
/// The median time of farfork's calls.
const MEDIAN: Figure = Figure::lower("p50_us", "time", "µs");

/// The series of samples of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", content = "system", rename_all = "snake_case")]
pub(crate) enum RpcSeries {
    /// Calls by an RPC system.
    Calls(RpcSystem),
    /// The bare echo.
    Floor,
}

/// A run of a case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct RpcSampleCase {
    #[serde(flatten)]
    case: RpcCase,
    #[serde(flatten)]
    series: RpcSeries,
    /// The host whose figure it is; `None` for all clients together.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
}

impl RpcSampleCase {
    /// The run of all clients together.
    fn new(case: RpcCase, series: RpcSeries) -> Self {
        Self { case, series, host: None }
    }

    /// The part of farfork's calls that a host has made.
    fn of_host(case: RpcCase, host: &str) -> Self {
        Self { case, series: RpcSeries::Calls(RpcSystem::Farfork), host: Some(host.to_owned()) }
    }
}

/// The figures of all clients of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct RpcRunOutcome {
    /// Answers per second of all clients.
    pub(crate) per_s: f64,
    /// Answers per second in each interval.
    pub(crate) intervals_per_s: Vec<f64>,
    /// The same of each client node: a list for each interval.
    pub(crate) clients_per_s: Vec<Vec<f64>>,
    /// The figures of each client host; empty on one machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hosts: Vec<HostCalls>,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Answers with a wrong length or checksum.
    pub(crate) damaged: u64,
    /// Median, 90th, 99th and 99.9th percentile, and maximum of the latencies of all clients, in µs.
    pub(crate) latency_us: [f64; 5],
}

/// The calls of a client host in a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct HostCalls {
    pub(crate) host: String,
    /// Answers per second.
    pub(crate) per_s: f64,
    /// Median time of a call, in µs.
    pub(crate) p50_us: f64,
}

impl BenchRpc {
    fn cases(&self) -> Vec<RpcCase> {
        let case = |clients| self.load.to_case(&RpcCase { clients, ..RpcCase::SINGLE_CONNECTION });
        match (self.clients.as_slice(), self.load.is_specified()) {
            ([], false) => default_cases(),
            ([], true) => vec![case(1)],
            (numbers, _) => numbers.iter().copied().map(case).collect(),
        }
    }

    fn times(&self) -> RpcTimes {
        let interval = self.report_interval.unwrap_or(INTERVAL_SECONDS);
        RpcTimes::new(self.client_seconds, self.server_seconds, SERVER_EXTRA_SECONDS, interval)
    }

    /// farfork, its floor and its peers in a case.
    fn series(&self, case: &RpcCase) -> Vec<RpcSeries> {
        let floor = (!self.no_floors && case.has_floor()).then_some(RpcSeries::Floor);
        let peers = if !self.no_floors && case.has_peers() { &RpcSystem::PEERS[..] } else { &[] };
        let own = [RpcSeries::Calls(RpcSystem::Farfork)];
        floor.into_iter().chain(own).chain(peers.iter().copied().map(RpcSeries::Calls)).collect()
    }
}

/// The cases with promised figures, and those of the published reference.
fn default_cases() -> Vec<RpcCase> {
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

impl Benchmark for BenchRpc {
    const COMMAND: &'static str = "bench rpc";
    const ROOT_REASON: &'static str = "it makes network namespaces";
    const HOSTS_REFUSAL: Option<&'static str> = None;

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let (mut cases, samples) = (self.cases(), FigureSamples::create(&self.samples)?);
        cases.retain(|case| !self.clients.is_empty() || run.machines.may_have_clients(case.clients));
        let clients = cases.iter().map(|case| case.clients).max().unwrap_or(1);
        let testbed = Testbed::new(&run.machines, clients)?;
        testbed.machines().try_for_each(|machine| ECHO.install(machine))?;
        let mut calls = RpcRun { plan: self, testbed, samples, outcomes: Vec::new() };
        run.expect_steps(cases.iter().map(|case| self.series(case).len() * self.runs).sum());
        for case in &cases {
            for series in self.series(case).repeat(self.runs) {
                run.show(describe(case, series))?;
                calls.measure(case, series, run)?;
                run.complete_step();
            }
        }
        Ok(self.results(cases, &calls.samples, &calls.outcomes))
    }

    fn check(&self) {
        self.times();
    }
}

fn describe(case: &RpcCase, series: RpcSeries) -> String {
    let what = match series {
        RpcSeries::Calls(system) => system.name(),
        RpcSeries::Floor => "raw echo",
    };
    format!("{what}: {} × {}", case.connections(), case.window)
}

struct RpcRun<'a> {
    plan: &'a BenchRpc,
    testbed: Testbed,
    samples: FigureSamples<RpcSampleCase>,
    outcomes: Vec<(RpcCase, RpcRunOutcome)>,
}

impl RpcRun<'_> {
    fn measure(&mut self, case: &RpcCase, series: RpcSeries, run: &BenchRun) -> Result<(), BenchError> {
        let sample_case = RpcSampleCase::new(*case, series);
        let RpcSeries::Calls(system) = series else {
            return self.samples.add(&sample_case, RATE, self.measure_floor(case)?);
        };
        let is_reported = self.plan.report_interval.is_some() && system == RpcSystem::Farfork;
        let times = self.plan.times();
        let mut show_interval = |interval: usize, outcome: &RpcRunOutcome| {
            if is_reported {
                let seconds = (interval + 1) as f64 * times.interval;
                for (client, per_s) in outcome.clients_per_s[interval].iter().enumerate() {
                    run.print_line(&format!("{seconds:.1} s, client {}: {per_s:.0} calls/s", client + 1));
                }
            }
            Ok(())
        };
        let outcome = run_once(&self.testbed, times, case, system, &mut show_interval)?;
        self.samples.add(&sample_case, RATE, outcome.per_s)?;
        if system == RpcSystem::Farfork {
            self.samples.add(&sample_case, MEDIAN, outcome.latency_us[0])?;
            for HostCalls { host, per_s, p50_us } in &outcome.hosts {
                let of_host = RpcSampleCase::of_host(*case, host);
                self.samples.add(&of_host, RATE, *per_s)?;
                self.samples.add(&of_host, MEDIAN, *p50_us)?;
            }
            self.outcomes.push((*case, outcome));
        }
        Ok(())
    }

    /// Measures the bare echo with the same number of connections and requests. With several requests in flight,
    /// returns the better result of spinning and sleeping, so that the floor does not favour farfork.
    fn measure_floor(&self, case: &RpcCase) -> Result<f64, BenchError> {
        let (connections, window) = (case.connections(), case.window * case.sessions);
        let pinned = self.testbed.is_local() && case.is_pinned();
        let seconds = self.plan.client_seconds / if window > 1 { 2.0 } else { 1.0 };
        let echo = BareEcho { connections, window, seconds, spins: case.spins, pinned };
        let per_s = echo.measure_per_s(&self.testbed)?;
        if window == 1 {
            return Ok(per_s);
        }
        Ok(per_s.max(BareEcho { spins: !echo.spins, ..echo }.measure_per_s(&self.testbed)?))
    }
}

/// One run of a case: a server and its clients. `on_interval` receives the throughput of each interval.
pub(crate) fn run_once(
    testbed: &Testbed,
    times: RpcTimes,
    case: &RpcCase,
    system: RpcSystem,
    on_interval: &mut dyn FnMut(usize, &RpcRunOutcome) -> Result<(), BenchError>,
) -> Result<RpcRunOutcome, BenchError> {
    let load = ClientLoad {
        threads: case.threads,
        connections: case.connections_per_thread,
        sessions: case.sessions,
        window: case.window,
        payload_bytes: case.payload_bytes,
        seconds: times.clients,
        interval_seconds: times.interval,
    };
    let start = |machine: &dyn Machine, role, processor: usize| {
        let processors = if testbed.is_local() && case.is_pinned() { vec![processor] } else { Vec::new() };
        let end = EndpointSpec { spins: case.spins, processors, ..EndpointSpec::new(system, role) };
        start_endpoint(machine, case.protection, end)
    };
    let (on, clients) = (testbed.server(), testbed.clients(case.clients));
    let role = EndpointRole::Server { ip: [0, 0, 0, 0].into(), threads: case.server_threads, seconds: times.server };
    let server = start(on, role, 0)?;
    let start_client = |machine: &dyn Machine, to| start(machine, EndpointRole::Client { to, load }, 1);
    let mut connected = ConnectedPrograms::start(on, server, clients, start_client)?;
    connected.begin()?;
    let mut outcome = RpcRunOutcome::default();
    for interval in 0..load.interval_count() as usize {
        let mut clients_per_s = Vec::new();
        (outcome.errors, outcome.damaged) = (0, 0);
        for client in &mut connected.clients {
            let [answers, ns, errors, damaged] = client.read_answer("interval")?;
            clients_per_s.push(answers as f64 / (ns as f64 / 1e9));
            outcome.errors += errors as u64;
            outcome.damaged += damaged as u64;
        }
        outcome.intervals_per_s.push(clients_per_s.iter().sum());
        outcome.clients_per_s.push(clients_per_s);
        on_interval(interval, &outcome)?;
    }
    let outcome = finish(&mut connected.clients, &testbed.client_hosts(case.clients), outcome)?;
    // A client waits for a server that has ended, so its requests have not failed.
    match connected.server.last_line_if_ended() {
        None => Ok(outcome),
        Some(end) => {
            Err(BenchError::ProgramFailed { program: system.name(), why: format!("the server has ended: {end}") })
        }
    }
}

/// Reads the last lines of the clients. `hosts` has the names of their hosts; none on one machine.
fn finish(
    clients: &mut [RunningProgram],
    hosts: &[String],
    mut outcome: RpcRunOutcome,
) -> Result<RpcRunOutcome, BenchError> {
    let mut all = Vec::new();
    (outcome.errors, outcome.damaged) = (0, 0);
    for (index, client) in clients.iter_mut().enumerate() {
        let [answers, ns, errors, damaged] = client.read_answer("done")?;
        let latencies = read_latencies(client)?;
        let per_s = answers as f64 / (ns as f64 / 1e9);
        outcome.per_s += per_s;
        let host = hosts.get(index).cloned();
        outcome.hosts.extend(host.map(|host| HostCalls { host, per_s, p50_us: quantile_us(&latencies, 0.5) }));
        outcome.errors += errors as u64;
        outcome.damaged += damaged as u64;
        all.push(latencies);
    }
    let latencies = merge_latencies(&all);
    outcome.latency_us = [0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| quantile_us(&latencies, quantile));
    Ok(outcome)
}
