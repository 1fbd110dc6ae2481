//! `farfork bench peak`: for each workload, clients on several nodes fork children of a parent on another node, one after
//! another, for a given time.

mod results;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;

use self::results::{hosts_table, latency_table, rate_table, stable_interval, throughput_plot};
use super::{BenchResults, BenchRun, Benchmark};
use crate::error::BenchError;
use crate::experiment::fork_load::{ForkLoad, ForkTotals, HostForks};
use crate::experiment::local_cluster::{BenchCluster, node_arguments};
use crate::figure::Figure;
use crate::machine::description;
use crate::machine::remote::RemoteHosts;
use crate::options::{FunctionCallArgs, SamplesOption, count, parse_seconds};
use crate::reference::{PUBLISHED_FIGURES, PeakReference};
use crate::report::section::ReportSection;
use crate::report::table::ReportCell;
use crate::samples::FigureSamples;
use crate::workload::fork_workload::{ForkWorkload, WorkloadParent};
use crate::workload::functions::FunctionSource;
use crate::workload::functions::failures::FunctionFailures;

/// Time for which children of os.fork() are counted.
const LOCAL_FORK_TIME: Duration = Duration::from_secs(1);

/// The fraction of the available memory that all children of a load may use.
const MEMORY_PART: f64 = 0.5;

/// Measure how many children clients on several nodes fork per second, with functions or a C++ program.
///
/// Starts a node for the parents, and nodes for the clients. For each workload, every client process requests a child from
/// its own node, waits for the child's result, checks the result, and requests the next child. Workloads are the nine
/// functions of `farfork bench function`, functions of your own, and `sparse`, a C++ program of 16 MiB whose children touch
/// four pages.
///
/// The benchmark prints a line for each client process. A workload whose children would need more than half of the
/// available memory gets fewer clients. If a function fails, the others are still measured, and its error is printed at
/// the end.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  farfork bench peak                                    as published for MITOSIS: 8 nodes of 12 clients, 20 s for each row
  farfork bench peak helloworld sparse --nodes 2 --clients 2 --seconds 5
  farfork bench peak json --strategy cow --strategy eager --zygotes off
  farfork bench peak ./mine.py:work --payload '{\"size\": 3}' --python /usr/bin/python3
  farfork bench peak --inventory HOSTS.toml             the workload sparse, with clients on all hosts but the first

Exit status: 0 measured, 1 failed, a function failed or a result was wrong, 2 wrong usage.")]
pub(crate) struct BenchPeak {
    /// Workloads: sparse, helloworld, json, compression, pyaes, chameleon, image, pagerank, recognition, micro, or
    /// FILE.py:HANDLER [default: sparse and the nine functions; with --inventory, sparse].
    #[arg(value_name = "WORKLOAD", value_parser = WorkloadName::parse)]
    workloads: Vec<WorkloadName>,
    #[command(flatten)]
    call: FunctionCallArgs,
    /// Number of nodes with clients. The parent is on one more node [default: 8; with --inventory, all hosts but one].
    #[arg(long, value_name = "N", value_parser = count(1..=NODES_MAX as u64))]
    nodes: Option<usize>,
    /// Number of client processes on each of these nodes.
    #[arg(long, value_name = "C", default_value_t = 12, value_parser = count(1..=64))]
    clients: usize,
    /// Time for which the clients of each row fork, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Whether nodes keep zygotes [default: both; with --inventory, on].
    #[arg(long, value_name = "on|off|both")]
    zygotes: Option<ZygoteChoice>,
    /// Paging strategy of children, as `farfork fork --strategy`. Can be repeated [default: as `farfork fork`].
    #[arg(long, value_name = "STRATEGY")]
    strategy: Vec<String>,
    #[command(flatten)]
    samples: SamplesOption,
}
/// A workload of the command line.
#[derive(Debug, Clone)]
enum WorkloadName {
    Sparse,
    Function(FunctionSource),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ZygoteChoice {
    On,
    Off,
    Both,
}

/// Number of nodes with clients in the published run.
const PUBLISHED_NODES: usize = 8;

/// Maximum number of nodes with clients.
const NODES_MAX: usize = 10;

/// Private memory of the C++ program, in MiB: as in the published stress test.
const SPARSE_MIB: u64 = 16;

impl WorkloadName {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "sparse" => Ok(Self::Sparse),
            _ => FunctionSource::parse(text).map(Self::Function).map_err(|error| format!("{error}, or sparse")),
        }
    }

    fn all() -> Vec<Self> {
        [Self::Sparse].into_iter().chain(FunctionSource::embedded().into_iter().map(Self::Function)).collect()
    }

    /// As [`FunctionSource::make_distinct`]. `sparse` is first.
    fn make_distinct(names: Vec<Self>) -> Vec<Self> {
        let has_sparse = names.iter().any(|name| matches!(name, Self::Sparse));
        let function = |name| if let Self::Function(source) = name { Some(source) } else { None };
        let functions = FunctionSource::make_distinct(names.into_iter().filter_map(function).collect());
        has_sparse.then_some(Self::Sparse).into_iter().chain(functions.into_iter().map(Self::Function)).collect()
    }

    fn into_workload(self, payload: &str) -> ForkWorkload {
        match self {
            Self::Sparse => ForkWorkload::Sparse { mib: SPARSE_MIB },
            Self::Function(source) => ForkWorkload::Function { source, payload: payload.to_owned() },
        }
    }
}

/// Number of all client processes.
const CLIENTS: Figure = Figure::property("clients", "clients", "");
/// Children of all clients per second; one sample per second.
const INTERVAL_RATE: Figure = Figure::higher("interval_per_s", "stable interval", "1/s");
/// Children of one client per second, over the whole run; one sample per client.
const CLIENT_RATE: Figure = Figure::higher("client_per_s", "of each client", "1/s");
/// Children per second over the whole run, of the clients of one host or of all.
const HOST_RATE: Figure = Figure::higher("host_per_s", "children", "1/s");
/// Time from the request for a child until its result is checked, of one client; one sample per client.
const CLIENT_MEDIAN: Figure = Figure::lower("client_p50_ms", "median", "ms");
const CLIENT_P99: Figure = Figure::lower("client_p99_ms", "p99", "ms");
/// The same of all children of a host, and of all hosts.
const HOST_MEDIAN: Figure = Figure::lower("host_p50_ms", "median", "ms");
const HOST_P99: Figure = Figure::lower("host_p99_ms", "p99", "ms");
/// Children of os.fork() per second that call the function one after another, on one CPU. Functions only.
const LOCAL_FORK_RATE: Figure = Figure::higher("local_fork_per_s", "os.fork(), one processor", "1/s");

/// A row of the tables: one run of the clients.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct PeakCase {
    workload: String,
    zygotes: bool,
    strategy: String,
    /// The host whose clients are meant; `None` for all clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
}

impl PeakCase {
    fn of_host(&self, host: &str) -> Self {
        Self { host: Some(host.to_owned()), ..self.clone() }
    }

    fn zygotes_text(&self) -> &'static str {
        if self.zygotes { "on" } else { "off" }
    }

    fn strategy_text(&self) -> &str {
        if self.strategy.is_empty() { "default" } else { &self.strategy }
    }

    fn cells(&self) -> [ReportCell; 3] {
        [self.workload.as_str(), self.zygotes_text(), self.strategy_text()].map(ReportCell::text)
    }

    fn published(&self, value: fn(&PeakReference) -> f64) -> Option<f64> {
        PUBLISHED_FIGURES.peak.find(&self.workload).map(value)
    }
}

impl BenchPeak {
    /// Adds the defaults for hosts, of which `clients_max` may have clients. `None` on one machine.
    fn with_defaults(&self, clients_max: Option<usize>) -> Self {
        let mut plan = self.clone();
        if let Some(hosts) = clients_max {
            plan.nodes.get_or_insert(hosts.clamp(1, NODES_MAX));
            plan.zygotes.get_or_insert(ZygoteChoice::On);
            if plan.workloads.is_empty() {
                plan.workloads.push(WorkloadName::Sparse);
            }
        }
        plan
    }

    fn nodes(&self) -> usize {
        self.nodes.unwrap_or(PUBLISHED_NODES)
    }

    fn workloads(&self) -> Vec<ForkWorkload> {
        let names = if self.workloads.is_empty() { WorkloadName::all() } else { self.workloads.clone() };
        let names = WorkloadName::make_distinct(names).into_iter();
        names.map(|name| name.into_workload(&self.call.payload)).collect()
    }

    fn zygotes(&self) -> &'static [bool] {
        match self.zygotes.unwrap_or(ZygoteChoice::Both) {
            ZygoteChoice::On => &[true],
            ZygoteChoice::Off => &[false],
            ZygoteChoice::Both => &[true, false],
        }
    }

    fn strategies(&self) -> Vec<String> {
        if self.strategy.is_empty() { vec![String::new()] } else { self.strategy.clone() }
    }

    /// The cases of the workloads that did not fail, in the order of the tables.
    fn cases(&self, failures: &FunctionFailures) -> Vec<PeakCase> {
        let mut cases = Vec::new();
        for workload in self.workloads().iter().map(ForkWorkload::name).filter(|name| !failures.contains(name)) {
            for zygotes in self.zygotes().iter().copied() {
                let case = |strategy| PeakCase { workload: workload.to_owned(), zygotes, strategy, host: None };
                cases.extend(self.strategies().into_iter().map(case));
            }
        }
        cases
    }
}

impl Benchmark for BenchPeak {
    const COMMAND: &'static str = "bench peak";
    const HOSTS_REFUSAL: Option<&'static str> = None;

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        self.with_defaults(run.machines.clients_max()).measure_all(run).await
    }
}

impl BenchPeak {
    async fn measure_all(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let workloads = self.workloads();
        let hosts: Vec<String> = run.machines.hosts().into_iter().flat_map(RemoteHosts::names).skip(1).collect();
        let refuse = |part, reason| Err(BenchError::NotOnHosts { part, reason });
        if !hosts.is_empty() && workloads.iter().any(ForkWorkload::is_function) {
            return refuse("Python functions", "their packages are on this machine; choose the workload sparse");
        }
        if !hosts.is_empty() && self.zygotes().contains(&false) {
            return refuse("nodes without zygotes", "their nodes run already; choose --zygotes on");
        }
        run.expect_steps(self.cases(&FunctionFailures::default()).len());
        let mut samples = FigureSamples::create(&self.samples)?;
        let mut failures = FunctionFailures::default();
        for zygotes in self.zygotes().iter().copied() {
            // Nodes keep the default number of zygotes, or none.
            let encrypted = run.machines.encrypts_by_default();
            let arguments = node_arguments(&[("--zygotes", (!zygotes).then_some(0))]);
            let mut cluster = BenchCluster::start_nodes(&run.machines, self.nodes() + 1, encrypted, &arguments).await?;
            for workload in &workloads {
                if !failures.contains(workload.name()) {
                    let measured = self.measure_workload(&mut cluster, workload, zygotes, &mut samples, run).await;
                    failures.record(workload.name(), measured)?;
                }
            }
            cluster.stop()?;
        }
        Ok(self.results(&samples, &hosts, &failures.require_other(workloads.len())?))
    }

    /// Measures all strategies with one seed.
    async fn measure_workload(
        &self,
        cluster: &mut BenchCluster,
        workload: &ForkWorkload,
        zygotes: bool,
        samples: &mut FigureSamples<PeakCase>,
        run: &BenchRun,
    ) -> Result<(), BenchError> {
        run.show(format!("starting {}", workload.name()))?;
        let mut parent = workload.start(cluster, &self.call.options()?)?;
        let seed = cluster.prepare(parent.program.pid()).await?.seed;
        let mut measured = Ok(());
        for strategy in self.strategies() {
            let case = PeakCase { workload: workload.name().to_owned(), zygotes, strategy, host: None };
            if measured.is_ok() {
                measured = self.measure_case(cluster, &mut parent, &seed, &case, samples, run).await;
                run.complete_step();
            }
        }
        // While the clients ran, this thread answered no keep-alive probes, so the node has closed the connection.
        cluster.reconnect().await?;
        // Also after a failure: children that still run would take the processors from the next workload.
        cluster.drop_seed(&seed).await?;
        measured
    }

    async fn measure_case(
        &self,
        cluster: &BenchCluster,
        parent: &mut WorkloadParent,
        seed: &str,
        case: &PeakCase,
        samples: &mut FigureSamples<PeakCase>,
        run: &BenchRun,
    ) -> Result<(), BenchError> {
        if let Some(per_s) = count_local_forks(parent)? {
            samples.add(case, LOCAL_FORK_RATE, per_s)?;
        }
        let load = ForkLoad {
            nodes: &cluster.nodes()[1..],
            clients_per_node: self.clients_per_node(parent.resident_kib, cluster),
            seed,
            task: &parent.task,
            strategy: &case.strategy,
            seconds: self.seconds,
        };
        samples.add(case, CLIENTS, (load.clients_per_node * load.nodes.len()) as f64)?;
        load.warm_up().await?;
        let mut intervals = Vec::new();
        let clients = load.run(&mut |interval| {
            intervals.push(interval.per_s);
            match run.show(format!("{}: {:.0} children/s", case.workload, interval.per_s)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        for per_s in intervals {
            samples.add(case, INTERVAL_RATE, per_s)?;
        }
        let by_host = load.by_host(&clients);
        let of_hosts = by_host.iter().map(|HostForks { host, totals }| (case.of_host(host), *totals));
        let of_all = (!by_host.is_empty()).then(|| (case.clone(), ForkTotals::of(&clients)));
        for (of, totals) in of_hosts.chain(of_all) {
            samples.add(&of, HOST_RATE, totals.per_s)?;
            samples.add(&of, HOST_MEDIAN, totals.p50_ms)?;
            samples.add(&of, HOST_P99, totals.p99_ms)?;
        }
        for (index, client) in clients.iter().enumerate() {
            let ForkTotals { p50_ms, p99_ms, .. } = ForkTotals::of([client]);
            run.print_line(&format!(
                "{}, zygotes {}, {} strategy, client {}: {:.1} children/s, median {:.2} ms",
                case.workload,
                case.zygotes_text(),
                case.strategy_text(),
                index + 1,
                client.per_s,
                p50_ms
            ));
            samples.add(case, CLIENT_RATE, client.per_s)?;
            samples.add(case, CLIENT_MEDIAN, p50_ms)?;
            samples.add(case, CLIENT_P99, p99_ms)?;
        }
        Ok(())
    }

    /// The number of clients of the command line, or fewer: each child may copy the whole memory of the parent, and all must
    /// fit into memory.
    fn clients_per_node(&self, resident_kib: u64, cluster: &BenchCluster) -> usize {
        if cluster.machine().name().is_some() {
            return self.clients;
        }
        let available_kib = description::available_mib() as f64 * 1024.0 * MEMORY_PART;
        let fitting = available_kib / (resident_kib.max(1) as f64 * self.nodes() as f64);
        (fitting as usize).clamp(1, self.clients)
    }

    /// `hosts` have clients; none on one machine.
    fn results(
        &self,
        samples: &FigureSamples<PeakCase>,
        hosts: &[String],
        failures: &FunctionFailures,
    ) -> BenchResults {
        let cases = self.cases(failures);
        let question = "How many children per second do clients on several nodes fork, with each function?";
        let section = ReportSection::new("peak", "Peak throughput", question)
            .with_table(rate_table(&cases, samples))
            .with_table(latency_table(&cases, samples))
            .with_table(hosts_table(&cases, hosts, samples));
        let section = cases
            .iter()
            .map(|case| throughput_plot(case, samples))
            .fold(section, ReportSection::with_plot)
            .with_note(format!("{} nodes with clients, and one with the parent. {} s for each row.", self.nodes(), self.seconds))
            .with_note(
                "Stable interval: children of all clients per second in the longest interval whose seconds are within a tenth \
                 of their middle.",
            )
            .with_note("A workload whose children would need more than half of the memory has fewer clients.")
            .with_note("The rate of os.fork() is that of one process, whose children run one after another on one processor.")
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.peak.source))
            .with_notes(failures.sentences_or("No result was wrong."));
        let figures =
            samples.to_json_with(None, |case, _, document| (!failures.contains(&case.workload)).then_some(document));
        let runs = cases.iter().map(|case| {
            json!({
                "case": case,
                "intervals_per_s": samples.values(case, INTERVAL_RATE),
                "stable": stable_interval(case, samples),
                "clients_per_s": samples.values(case, CLIENT_RATE),
                "clients_p50_ms": samples.values(case, CLIENT_MEDIAN),
            })
        });
        let document = json!({
            "plan": {
                "workloads": self.workloads(),
                "child_nodes": self.nodes(),
                "clients": self.clients,
                "seconds": self.seconds,
                "zygotes": self.zygotes(),
                "strategies": self.strategies(),
            },
            "figures": figures,
            "runs": runs.collect::<Vec<_>>(),
            "failures": failures.to_json(),
            "reference": PUBLISHED_FIGURES.peak.workloads,
        });
        BenchResults { is_complete: failures.is_empty(), ..BenchResults::new(section, document) }
    }
}

/// Children of os.fork() per second that call the parent's function; `None` without a function.
fn count_local_forks(parent: &mut WorkloadParent) -> Result<Option<f64>, BenchError> {
    let Some(function) = parent.program.function() else { return Ok(None) };
    let (began, mut children) = (Instant::now(), 0_u32);
    while children == 0 || began.elapsed() < LOCAL_FORK_TIME {
        function.call_in_local_fork()?;
        children += 1;
    }
    Ok(Some(f64::from(children) / began.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::{
        BenchPeak, CLIENT_MEDIAN, CLIENT_RATE, FigureSamples, FunctionFailures, INTERVAL_RATE, PeakCase, SamplesOption,
        stable_interval,
    };
    use crate::options::parse_arguments;

    #[test]
    fn the_stable_interval_counts_next_to_the_reference() {
        let plan: BenchPeak = parse_arguments(&["helloworld", "--nodes", "2"]);
        let case =
            |zygotes| PeakCase { workload: "helloworld".to_owned(), zygotes, strategy: String::new(), host: None };
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for (zygotes, intervals) in [(true, [10.0, 400.0, 402.0, 404.0, 90.0]), (false, [1.0, 50.0, 7.0, 90.0, 2.0])] {
            for per_s in intervals {
                samples.add(&case(zygotes), INTERVAL_RATE, per_s).unwrap();
            }
        }
        samples.add(&case(true), CLIENT_RATE, 67.5).unwrap();
        samples.add(&case(true), CLIENT_MEDIAN, 19.0).unwrap();
        let stable = |zygotes| stable_interval(&case(zygotes), &samples).map(|stable| stable.mean);
        assert_eq!((stable(true), stable(false)), (Some(402.0), None));
        let results = plan.results(&samples, &[], &FunctionFailures::default());
        let (text, document) = (results.to_text(), results.to_json());
        assert!(text.contains("402") && text.contains("50.5") && text.contains("67.5"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert_eq!(document["runs"][0]["stable"]["from_s"], 1.0);
        assert_eq!(document["runs"][1]["stable"], serde_json::Value::Null);
        let section = results.section;
        section.require_published_rows();
        assert_eq!((section.figure("rate", "helloworld", "stable interval").median, section.plots.len()), (402.0, 2));
        let latency = section.figure("latency", "helloworld", "median");
        assert_eq!((latency.median, latency.reference), (19.0, Some(19.8)));
    }
}
