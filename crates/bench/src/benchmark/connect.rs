//! `farfork bench connect`: how many connections nodes make per second, by threads and by client machines. For each case,
//! the floor and farfork's connections with each protection alternate, so that other load affects all of them.

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::{BenchResults, BenchRun, Benchmark};
use crate::baseline::connect::{BareConnect, CONNECT};
use crate::endpoint::specification::{EndpointRole, EndpointSpec, RpcSystem};
use crate::error::BenchError;
use crate::experiment::testbed::{ConnectionSecurity, Testbed, start_endpoint};
use crate::figure::Figure;
use crate::machine::Machine;
use crate::machine::program::{ConnectedPrograms, RunningProgram};
use crate::options::{SamplesOption, count, parse_seconds};
use crate::reference::{ConnectReference, PUBLISHED_FIGURES};
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{ReportCell, ReportTable, SUM_ROW};
use crate::samples::FigureSamples;

/// The server runs this much longer than the clients, which take time to start.
const SERVER_EXTRA_SECONDS: f64 = 10.0;

/// Number of network cards of a node, which is also the number of paths between two nodes.
const NICS_PER_NODE: usize = 1;

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
        if let Some(most) = run.machines.clients_max().filter(|_| self.clients.is_empty()) {
            cases.retain(|case| case.clients <= most.max(1));
        }
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
        let all = clients.into_iter().reduce(ClientConnections::with).unwrap_or_default();
        all.figures().into_iter().try_for_each(|(figure, value)| self.samples.add(&sample_case, figure, value))
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
#[derive(Debug, Clone, Copy, Default)]
struct ClientConnections {
    made: f64,
    per_s: f64,
    /// Of the slowest client.
    p50_us: f64,
    p99_us: f64,
    /// The sum of all times.
    total_us: f64,
}

impl ClientConnections {
    /// Reads the last line of a client.
    fn read(client: &mut RunningProgram) -> Result<Self, BenchError> {
        let [made, ns, p50_ns, p99_ns, mean_ns] = client.read_answer("done")?.map(|number| number as f64);
        let (p50_us, p99_us) = (p50_ns / 1e3, p99_ns / 1e3);
        Ok(Self { made, per_s: made / (ns / 1e9), p50_us, p99_us, total_us: made * mean_ns / 1e3 })
    }

    fn with(self, other: Self) -> Self {
        Self {
            made: self.made + other.made,
            per_s: self.per_s + other.per_s,
            p50_us: self.p50_us.max(other.p50_us),
            p99_us: self.p99_us.max(other.p99_us),
            total_us: self.total_us + other.total_us,
        }
    }

    fn figures(&self) -> [(Figure, f64); 4] {
        let Self { made, per_s, p50_us, p99_us, total_us } = *self;
        [(RATE, per_s), (MEDIAN, p50_us), (P99, p99_us), (MEAN, total_us / made.max(1.0))]
    }
}

/// The results of all cases.
struct ConnectResults<'a> {
    cases: Vec<ConnectCase>,
    /// The client hosts; none on one machine.
    hosts: &'a [String],
    samples: &'a FigureSamples<ConnectSampleCase>,
}

/// The tables and plots of a series of cases.
#[derive(Debug, Clone, Copy)]
struct CaseSeries {
    id: &'static str,
    is_wanted: fn(&ConnectCase) -> bool,
    /// The number that varies, and the published rate.
    varied: fn(ConnectCase) -> (usize, Option<f64>),
}

/// By threads of one client machine.
const BY_THREADS: CaseSeries = CaseSeries {
    id: "threads",
    is_wanted: |case| case.clients == 1,
    varied: |case| (case.threads, reference_per_s(case)),
};

/// By client machines with two threads each. One machine has another published rate here.
const BY_MACHINES: CaseSeries = CaseSeries {
    id: "machines",
    is_wanted: |case| case.threads == MACHINE_THREADS,
    varied: |case| (case.clients, PUBLISHED_FIGURES.connect.per_s_by_clients.find(case.clients as u64)),
};

const OTHERS: CaseSeries = CaseSeries {
    id: "others",
    is_wanted: |case| case.clients > 1 && case.threads != MACHINE_THREADS,
    varied: |case| (case.connections(), None),
};

impl BenchConnect {
    fn results(
        &self,
        cases: Vec<ConnectCase>,
        hosts: &[String],
        server_threads: usize,
        samples: &FigureSamples<ConnectSampleCase>,
    ) -> BenchResults {
        let results = ConnectResults { cases, hosts, samples };
        let question = "How many connections do nodes make per second, and how long does each take?";
        let source = &PUBLISHED_FIGURES.connect.source;
        let section = ReportSection::new("connect", "Connections", question)
            .with_table(results.time_table(true))
            .with_table(results.rate_table(BY_THREADS, "Connections per second by threads of one client machine"))
            .with_table(results.rate_table(BY_MACHINES, "Connections per second by client machines of 2 threads"))
            .with_table(results.time_table(false))
            .with_table(results.rate_table(OTHERS, "Connections per second by connections at once"))
            .with_table(results.hosts_table())
            .with_plot(results.rate_plot(BY_THREADS, "Connections by threads of one client machine"))
            .with_plot(results.rate_plot(BY_MACHINES, "Connections by client machines of two threads"))
            .with_note("Floor: TCP connect and accept by two programs that do nothing else.")
            .with_note(format!("Reference: {source}."))
            .with_note("The published table of two network cards in each machine is not measured yet.");
        let document = json!({
            "runs": self.runs,
            "seconds": self.seconds,
            "server_threads": server_threads,
            "reference": source,
            "cases": results.to_json(),
        });
        BenchResults::new(section, document)
    }
}

impl ConnectResults<'_> {
    fn to_json(&self) -> Vec<Value> {
        self.protected_cases().map(|(case, (_, protection))| self.case_json(case, protection)).collect()
    }

    fn case_json(&self, case: ConnectCase, protection: ConnectionSecurity) -> Value {
        let connections = ConnectSampleCase::new(case, ConnectSeries::Connections(protection));
        let floor = ConnectSampleCase::new(case, ConnectSeries::Floor);
        let (rate, median) =
            (self.samples.spread(&connections, RATE), |figure| self.samples.median(&connections, figure));
        let host_json = |host: &String| {
            let of_host = connections.clone().of_host(host);
            let median = |figure| self.samples.median(&of_host, figure);
            json!({ "host": host, "per_s": median(RATE), "p50_us": median(MEDIAN), "p99_us": median(P99) })
        };
        json!({
            "clients": case.clients,
            "threads": case.threads,
            "hosts": self.case_hosts(case).iter().map(host_json).collect::<Vec<_>>(),
            "connections": case.connections(),
            "window": 1,
            "payload_bytes": 0,
            "checksum": false,
            "rails": NICS_PER_NODE,
            "authenticated": protection != ConnectionSecurity::None,
            "encrypted": protection == ConnectionSecurity::Encrypted,
            "per_s": median(RATE),
            "per_s_p10": rate.map(|spread| spread.p10),
            "per_s_p90": rate.map(|spread| spread.p90),
            "floor_per_s": self.samples.median(&floor, RATE),
            "latency_us": { "p50": median(MEDIAN), "p99": median(P99), "mean": median(MEAN) },
            "reference_per_s": reference_per_s(case),
            "reference_latency_us": (case.connections() == 1).then_some(PUBLISHED_FIGURES.connect.latency_us),
        })
    }

    /// The times of connections: of one thread alone, as published, or of several at once.
    fn time_table(&self, is_alone: bool) -> ReportTable {
        let (id, title, key) = match is_alone {
            true => ("latency", "The time of one connection, with one thread", &["connection"][..]),
            false => {
                ("times", "The time of one connection, with several threads", &["clients", "threads", "connection"][..])
            }
        };
        let mut table = ReportTable::new(id, title, &[key, &[MEAN.name, MEDIAN.name, P99.name]].concat());
        let cases = self.cases.iter().copied().filter(|case| (case.connections() == 1) == is_alone);
        for (case, (name, protection)) in cases.flat_map(|case| PROTECTION_COLUMNS.map(|column| (case, column))) {
            let connections = ConnectSampleCase::new(case, ConnectSeries::Connections(protection));
            let published_us = is_alone.then_some(PUBLISHED_FIGURES.connect.latency_us);
            let mean = self.samples.figure(&connections, MEAN).map(|mean| mean.with_reference(published_us));
            let key = [case.clients.to_string(), case.threads.to_string(), name.to_owned()];
            let key = key.into_iter().skip(if is_alone { 2 } else { 0 }).map(ReportCell::text);
            let [median, p99] = [MEDIAN, P99].map(|figure| self.samples.cell(&connections, figure));
            table.add_row(key.chain([mean.into(), median, p99]));
        }
        table
    }

    /// The connections of each client host, and their sum.
    fn hosts_table(&self) -> ReportTable {
        let columns = ["clients", "threads", "connection", "host", RATE.name, MEDIAN.name, P99.name];
        let mut table = ReportTable::new("hosts", "Connections by client hosts", &columns);
        for (case, (protection_name, protection)) in self.protected_cases() {
            let all = ConnectSampleCase::new(case, ConnectSeries::Connections(protection));
            let hosts = self.case_hosts(case);
            let rows = hosts.iter().map(|host| (host.as_str(), all.clone().of_host(host)));
            for (name, sample_case) in rows.chain((!hosts.is_empty()).then(|| (SUM_ROW, all.clone()))) {
                let key =
                    [case.clients.to_string(), case.threads.to_string(), protection_name.to_owned(), name.to_owned()];
                let figures = [RATE, MEDIAN, P99].map(|figure| self.samples.cell(&sample_case, figure));
                table.add_row(key.into_iter().map(ReportCell::text).chain(figures));
            }
        }
        table
    }

    /// The client hosts of a case; none on one machine.
    fn case_hosts(&self, case: ConnectCase) -> &[String] {
        &self.hosts[..case.clients.min(self.hosts.len())]
    }

    /// Each case with each protection.
    fn protected_cases(&self) -> impl Iterator<Item = (ConnectCase, (&'static str, ConnectionSecurity))> {
        self.cases.iter().flat_map(|case| PROTECTION_COLUMNS.map(|column| (*case, column)))
    }

    fn rate_table(&self, CaseSeries { id, is_wanted, varied }: CaseSeries, title: &str) -> ReportTable {
        let columns = [id, PROTECTION_COLUMNS[0].0, PROTECTION_COLUMNS[1].0, PROTECTION_COLUMNS[2].0];
        let mut table = ReportTable::new(id, title, &columns);
        for &case in self.cases.iter().filter(|case| is_wanted(case)) {
            let (count, published) = varied(case);
            let floor = self.samples.median(&ConnectSampleCase::new(case, ConnectSeries::Floor), RATE);
            let rates = PROTECTION_COLUMNS.map(|(_, protection)| {
                let connections = ConnectSampleCase::new(case, ConnectSeries::Connections(protection));
                let rate = self.samples.figure(&connections, RATE);
                ReportCell::from(rate.map(|rate| rate.with_floor(floor).with_reference(published)))
            });
            table.add_row([ReportCell::text(count)].into_iter().chain(rates));
        }
        table
    }

    fn rate_plot(&self, CaseSeries { id, is_wanted, varied }: CaseSeries, title: &str) -> ReportPlot {
        let (x, y) = (PlotAxis::new(id, ""), PlotAxis::new(RATE.name, RATE.unit));
        let cases = || self.cases.iter().copied().filter(is_wanted);
        let points = |series| {
            let point =
                move |case| self.samples.point(varied(case).0 as f64, &ConnectSampleCase::new(case, series), RATE);
            cases().filter_map(point)
        };
        let plot = ReportPlot::new(PlotKind::Scaling, id, title, x, y);
        let plot = PROTECTION_COLUMNS.into_iter().fold(plot, |plot, (name, protection)| {
            plot.with_series(name, SeriesRole::Measured, points(ConnectSeries::Connections(protection)))
        });
        let published = cases().filter_map(|case| Some(PlotPoint::new(varied(case).0 as f64, varied(case).1?)));
        plot.with_series("bare TCP", SeriesRole::Floor, points(ConnectSeries::Floor)).with_series(
            "reference",
            SeriesRole::Reference,
            published,
        )
    }
}

fn reference_per_s(case: ConnectCase) -> Option<f64> {
    let ConnectReference { per_s_by_threads, per_s_by_clients, .. } = &PUBLISHED_FIGURES.connect;
    match case {
        ConnectCase { clients: 1, threads } => per_s_by_threads.find(threads as u64),
        ConnectCase { clients, threads: 2 } => per_s_by_clients.find(clients as u64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BenchConnect, ConnectCase, ConnectSampleCase, ConnectSeries, ConnectionSecurity, FigureSamples, MEAN, MEDIAN,
        P99, RATE, SamplesOption, reference_per_s,
    };
    use crate::options::parse_arguments;

    #[test]
    fn only_comparable_cases_have_a_reference() {
        let of = |clients, threads| reference_per_s(ConnectCase { clients, threads });
        assert_eq!([of(1, 1), of(1, 12), of(8, 2)], [Some(172.6), Some(400.0), Some(391.2)]);
        assert_eq!([of(1, 3), of(2, 1), of(3, 2)], [None; 3]);
        let cases = parse_arguments::<BenchConnect>(&[]).cases();
        assert!(cases.len() == 8 && cases.into_iter().all(|case| reference_per_s(case).is_some()));
    }

    #[test]
    fn each_case_has_a_row_of_figures() {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        let case = ConnectCase { clients: 2, threads: 3 };
        let mut add =
            |series, figure, value| samples.add(&ConnectSampleCase::new(case, series), figure, value).unwrap();
        let encrypted = ConnectSeries::Connections(ConnectionSecurity::Encrypted);
        add(ConnectSeries::Floor, RATE, 16_000.0);
        for (figure, value) in [(RATE, 4_000.0), (MEDIAN, 250.0), (P99, 900.0), (MEAN, 300.0)] {
            add(encrypted, figure, value);
        }
        let plan: BenchConnect = parse_arguments(&["--clients", "2", "--threads", "3"]);
        let results = plan.results(plan.cases(), &[], 2, &samples);
        let (text, document) = (results.to_text(), results.to_json());
        let cases = document["cases"].as_array().unwrap();
        let found = cases.iter().find(|case| case["encrypted"] == true).unwrap();
        assert_eq!((cases.len(), &found["connections"], &found["rails"]), (3, &6.into(), &1.into()));
        assert_eq!((&found["per_s"], &found["floor_per_s"]), (&4_000.0.into(), &16_000.0.into()));
        assert_eq!(found["latency_us"], serde_json::json!({ "p50": 250.0, "p99": 900.0, "mean": 300.0 }));
        assert!(text.contains("0.25"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    }

    #[test]
    fn a_reference_is_taken_from_the_table_of_its_row() {
        let plan: BenchConnect = parse_arguments(&[]);
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for case in plan.cases() {
            let connections = ConnectSeries::Connections(ConnectionSecurity::Authenticated);
            for (series, figure, value) in
                [(ConnectSeries::Floor, RATE, 9000.0), (connections, RATE, 3000.0), (connections, MEAN, 300.0)]
            {
                samples.add(&ConnectSampleCase::new(case, series), figure, value).unwrap();
            }
        }
        let section = plan.results(plan.cases(), &[], 2, &samples).section;
        section.require_published_rows();
        let of = |table, row| section.figure(table, row, "authenticated").reference;
        assert_eq!((of("threads", "2"), of("machines", "1")), (Some(375.9), Some(397.3)));
        assert_eq!(section.figure("machines", "8", "authenticated").floor, Some(9000.0));
    }
}
