//! `farfork stress fork` and `farfork stress functions`: client processes on several nodes fork children of one parent, one
//! after another, for a given time. Then the run is judged: leftovers are counted, and logs are searched for errors.

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::Args;
use farfork_terminal::interrupt::InterruptFlag;
use farfork_terminal::output;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    IntervalRates, REFERENCE_NOTE, host_tables_text, hosts_table, unread_lines, until_interrupt, verdict, with_verdict,
};
use crate::GlobalArgs;
use crate::error::BenchError;
use crate::experiment::fork_load::{FORK_INTERVAL_S, ForkLoad, ForkTotals, HostForks};
use crate::experiment::host_report::{HostReport, with_hosts};
use crate::experiment::leak_check::ResourceCount;
use crate::experiment::local_cluster::BenchCluster;
use crate::machine::source::{HostOptions, MachineNeeds, MachineSource};
use crate::options::{EncryptionOption, FunctionCallArgs, NodeOptions, count, parse_seconds, size};
use crate::reference::PUBLISHED_FIGURES;
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::workload::fork_workload::ForkWorkload;
use crate::workload::functions::failures::FunctionFailures;
use crate::workload::functions::{FunctionOptions, FunctionSource};

/// The sizes of MITOSIS's published stress tests: ten machines with twelve clients each, and the machine of the parent.
const DOCUMENT_NODES: usize = 11;
const DOCUMENT_CLIENTS: usize = 12;

/// Why functions are not run on hosts.
const FUNCTIONS_REFUSAL: &str = "the packages of Python functions are on this machine";

/// Fork children of one parent from client processes on several nodes, and judge the outcome.
///
/// Each client requests a child from its own node, waits for the child's result, checks the result, and requests the next
/// child. The test prints the throughput of each second.
///
/// The test passes if no request failed, no result was wrong, no client fell below the floor, and neither a daemon nor the
/// kernel logged an error. The nodes must also have no more processes, namespaces, mounts, control groups and files
/// afterwards than before, and hardly more descriptors, threads and memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork stress fork                                   a minute, two clients on each of three nodes
  farfork stress fork --nodes 2 --clients 1 --seconds 5 --json
  farfork stress fork --like-the-document               ten nodes of twelve clients, and the parent's node

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressFork {
    #[command(flatten)]
    load: ForkLoadArgs,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = size(1..=65_536))]
    mib: u64,
}

impl StressFork {
    pub(crate) fn run(self, hosts: &HostOptions, strict: bool, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let plan = self.load.plan(ForkWorkload::Sparse { mib: self.mib }, FunctionOptions::default());
        run_stress("stress fork", hosts, strict, global, &[plan])
    }
}

/// Run Python functions in children that client processes on several nodes fork, and judge the outcome.
///
/// Does the same as `farfork stress fork` for each function in turn. Each child calls the function once, and its result is
/// compared with the parent's. If a function fails before its children are forked, the others still run, and its error is
/// printed at the end. `farfork bench function --help` describes functions and their packages.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork stress functions                              nine functions, a minute each
  farfork stress functions json image --seconds 600
  farfork stress functions ./mine.py:work --payload '{\"size\": 3}' --python /usr/bin/python3

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressFunctions {
    /// Functions: helloworld, json, compression, pyaes, chameleon, image, pagerank, recognition, micro, or
    /// FILE.py:HANDLER [default: these nine].
    #[arg(value_name = "FUNCTION", value_parser = FunctionSource::parse)]
    functions: Vec<FunctionSource>,
    #[command(flatten)]
    call: FunctionCallArgs,
    #[command(flatten)]
    load: ForkLoadArgs,
}

impl StressFunctions {
    pub(crate) fn run(self, hosts: &HostOptions, strict: bool, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let options = self.call.options()?;
        let functions = FunctionSource::distinct_or_embedded(self.functions);
        let workload = |source| ForkWorkload::Function { source, payload: self.call.payload.clone() };
        let plans: Vec<_> =
            functions.into_iter().map(|source| self.load.plan(workload(source), options.clone())).collect();
        run_stress("stress functions", hosts, strict, global, &plans)
    }
}

/// The clients and nodes of a fork load.
#[derive(Debug, Clone, Args, Serialize)]
struct ForkLoadArgs {
    /// Number of nodes. The parent is on the first node.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1..=11))]
    nodes: usize,
    /// Number of client processes on each node.
    #[arg(long, value_name = "C", default_value_t = 2, value_parser = count(1..=64))]
    clients: usize,
    /// The sizes of MITOSIS's stress tests: 11 nodes, and 12 clients on each node except the parent's.
    #[arg(long, conflicts_with_all = ["nodes", "clients"])]
    #[serde(skip)]
    like_the_document: bool,
    /// Time for which the clients fork, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Minimum rate of each client, in children per second. No client may wait longer for a child than the rate allows.
    #[arg(long, value_name = "RATE", default_value_t = 0.1, value_parser = parse_rate)]
    #[serde(rename = "floor_per_s")]
    floor: f64,
    /// Paging strategy of children, as `farfork fork --strategy` [default: as `farfork fork`].
    #[arg(long, value_name = "STRATEGY", default_value = "", hide_default_value = true)]
    strategy: String,
    #[command(flatten)]
    #[serde(flatten)]
    node_options: NodeOptions,
    #[command(flatten)]
    #[serde(flatten)]
    encryption: EncryptionOption,
}

impl ForkLoadArgs {
    /// The parameters of a run with this workload.
    fn plan(&self, workload: ForkWorkload, function_options: FunctionOptions) -> StressForkParameters {
        let (mut load, mut parent_nodes) = (self.clone(), 0);
        if load.like_the_document {
            (load.nodes, load.clients, parent_nodes) = (DOCUMENT_NODES, DOCUMENT_CLIENTS, 1);
        }
        StressForkParameters { load, parent_nodes, workload, function_options }
    }
}

/// Parameters of a run.
#[derive(Debug, Clone, Serialize)]
struct StressForkParameters {
    #[serde(flatten)]
    load: ForkLoadArgs,
    /// Number of nodes without clients: 0, or 1 for the parent's node, which is the first.
    parent_nodes: usize,
    /// The program whose children are forked.
    workload: ForkWorkload,
    /// How functions are run.
    #[serde(skip)]
    function_options: FunctionOptions,
}

/// Result of a run.
#[derive(Debug, Clone, Default, Serialize)]
struct StressForkOutcome {
    /// Children of all clients.
    children: u64,
    /// Children of all clients in each second.
    intervals_per_s: Vec<f64>,
    /// Children per second of all clients.
    per_s: f64,
    /// Time from the request for a child to the child's answer, in ms: median and 99th percentile of all children.
    p50_ms: f64,
    p99_ms: f64,
    /// The longest time of any client without an answer, in ms.
    longest_gap_ms: f64,
    /// The clients of each host; empty on one machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<HostForks>,
    /// The nodes' resources before and after.
    counts: Vec<ResourceCount>,
    /// Reasons why the run has failed; empty if it passed.
    faults: Vec<String>,
    /// A sentence for each log that could not be read.
    unread_logs: Vec<String>,
}

impl StressForkParameters {
    /// Number of client processes on all nodes.
    fn all_clients(&self) -> usize {
        self.load.clients * (self.load.nodes - self.parent_nodes)
    }
}

impl StressForkOutcome {
    /// Whether the run has passed.
    fn has_passed(&self) -> bool {
        self.faults.is_empty()
    }

    /// Children per second of each client process, as published for MITOSIS on other machines; `None` if no figure of
    /// the workload was published.
    fn published_per_s(workload: &ForkWorkload) -> Option<f64> {
        PUBLISHED_FIGURES.peak.find(workload.name()).map(|reference| reference.per_client_s)
    }
}

/// Runs the plans one after the other. Succeeds if all passed. If a function fails before its run, the others still run.
///
/// # Errors
/// A run cannot be started for a reason other than its function, or no run was started: the error of the first.
fn run_stress(
    command: &'static str,
    hosts: &HostOptions,
    strict: bool,
    global: &GlobalArgs,
    plans: &[StressForkParameters],
) -> anyhow::Result<ExitCode> {
    let root_reason = "it traces a process, and makes namespaces and control groups";
    let hosts_refusal = plans.iter().any(|plan| plan.workload.is_function()).then_some(FUNCTIONS_REFUSAL);
    let needs = MachineNeeds { command, root_reason, hosts_refusal };
    let source = MachineSource::open(hosts, needs, global)?;
    let interruption = InterruptFlag::watch()?;
    let mut show = |outcome: &StressForkOutcome| {
        if !global.json {
            let per_s = outcome.intervals_per_s.last().copied().unwrap_or_default();
            output::print_line(&format!("{:4}: {per_s:.0} children/s", outcome.intervals_per_s.len()));
        }
        until_interrupt(&interruption)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut outcomes, mut failures, mut reports) = (Vec::new(), FunctionFailures::default(), Vec::new());
    for plan in plans {
        if !global.json && plans.len() > 1 {
            output::print_line(&format!("== {}", plan.workload.name()));
        }
        let outcome = runtime.block_on(stress_fork(plan, &source, strict, &mut show));
        let Some(mut outcome) = failures.record(plan.workload.name(), outcome)? else { continue };
        reports = source.report_hosts()?;
        outcome.faults.extend(reports.iter().flat_map(|host| host.faults(strict)));
        outcome.unread_logs.extend(reports.iter().flat_map(HostReport::unread_logs));
        if !global.json {
            output::print_line(&outcome_text(plan, &outcome));
        }
        outcomes.push((plan, outcome));
    }
    let failures = failures.require_other(plans.len())?;
    if global.json {
        output::print_json(&stress_document(&outcomes, &failures, &reports));
    } else {
        let section = with_hosts(outcomes_section(&outcomes), &reports);
        host_tables_text(&section).for_each(|table| output::print_line(&table));
        failures.sentences().for_each(|sentence| output::print_line(&sentence));
    }
    let has_passed = failures.is_empty() && outcomes.iter().all(|(_, outcome)| outcome.has_passed());
    Ok(verdict(has_passed).0)
}

/// Makes the document for scripts. The keys of a single run are at the top level, and several runs are in the list
/// `runs`, next to the list `failures`. Both forms have the key `section`: the section of a report about these runs.
/// With hosts, `hosts` has their reports.
fn stress_document(
    outcomes: &[(&StressForkParameters, StressForkOutcome)],
    failures: &FunctionFailures,
    reports: &[HostReport],
) -> Value {
    let run = |(plan, outcome): &(&StressForkParameters, StressForkOutcome)| json!({ "plan": plan, "passed": outcome.has_passed(), "outcome": outcome });
    let mut document = match outcomes {
        [only] if failures.is_empty() => run(only),
        all => json!({ "runs": all.iter().map(run).collect::<Vec<_>>(), "failures": failures.to_json() }),
    };
    document["section"] = json!(with_hosts(outcomes_section(outcomes), reports));
    if !reports.is_empty() {
        document["hosts"] = json!(reports);
    }
    document
}

/// Parses a number of children per second above 0.
fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("write a number of children per second, above 0".to_owned()),
    }
}

fn outcome_text(plan: &StressForkParameters, outcome: &StressForkOutcome) -> String {
    let StressForkOutcome { children, per_s, p50_ms, p99_ms, longest_gap_ms, .. } = outcome;
    let mut lines: Vec<String> = outcome.faults.iter().map(|fault| format!("FAULT: {fault}")).collect();
    let (_, verdict) = verdict(outcome.has_passed());
    lines.extend(unread_lines(&outcome.unread_logs));
    lines.push(format!(
        "{verdict}: {children} children, {per_s:.1} a second; from call to answer: median {p50_ms:.1} ms, \
         p99 {p99_ms:.1} ms; at most {longest_gap_ms:.0} ms without an answer"
    ));
    lines.extend(
        StressForkOutcome::published_per_s(&plan.workload).map(|per_s| {
            format!("a published reference: {per_s:.0} a second for each client process, on other machines")
        }),
    );
    lines.join("\n")
}

/// Runs the clients for the time of the plan, and judges the run. `show` receives the outcome after each second, and
/// may end the run.
///
/// # Errors
/// The run cannot be started. A failure of a client is in the outcome.
async fn stress_fork(
    plan: &StressForkParameters,
    source: &MachineSource,
    strict: bool,
    show: &mut dyn FnMut(&StressForkOutcome) -> ControlFlow<()>,
) -> Result<StressForkOutcome, BenchError> {
    let (encrypted, arguments) = (plan.load.encryption.encrypted, plan.load.node_options.arguments());
    let mut cluster = BenchCluster::start_nodes(source, plan.load.nodes, encrypted, &arguments).await?;
    let parent = plan.workload.start(&cluster, &plan.function_options)?;
    let seed = cluster.prepare(parent.program.pid()).await?.seed;
    let load = ForkLoad {
        nodes: &cluster.nodes()[plan.parent_nodes..],
        clients_per_node: plan.load.clients,
        seed: &seed,
        task: &parent.task,
        strategy: &plan.load.strategy,
        seconds: plan.load.seconds,
    };
    load.warm_up().await?;
    let before = cluster.running.count_steady_resources().await?;
    let ends = cluster.running.log_ends()?;
    let mut outcome = StressForkOutcome::default();
    match run_load(&load, &mut outcome, show) {
        Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
        Err(failure) => outcome.faults.push(format!("a client: {failure}")),
        Ok(()) => {}
    }
    outcome.counts = cluster.running.wait_released(&before).await?;
    // A daemon may have ended during the run, which is a failure of the run.
    let dropped = drop_seed(&mut cluster, &seed).await;
    outcome.faults.extend(dropped.err().map(|failure| format!("after the clients: {failure}")));
    let logs = cluster.running.find_errors(ends, &[])?;
    outcome.faults.extend(logs.faults(strict));
    outcome.unread_logs = logs.unread;
    drop(parent);
    let leftovers = cluster.stop().unwrap_or_else(|failure| vec![failure.to_string()]);
    judge_outcome(plan, &mut outcome);
    outcome.faults.extend(leftovers);
    Ok(outcome)
}

async fn drop_seed(cluster: &mut BenchCluster, seed: &str) -> Result<(), BenchError> {
    // While the clients ran, this thread answered no keep-alive probes, so the node has closed the connection.
    cluster.reconnect().await?;
    cluster.drop_seed(seed).await
}

/// Runs the clients, and adds up their reports.
fn run_load(
    load: &ForkLoad<'_>,
    outcome: &mut StressForkOutcome,
    show: &mut dyn FnMut(&StressForkOutcome) -> ControlFlow<()>,
) -> Result<(), BenchError> {
    let results = load.run(&mut |interval| {
        outcome.longest_gap_ms = outcome.longest_gap_ms.max(interval.longest_gap_ms);
        outcome.intervals_per_s.push(interval.per_s);
        show(outcome)
    })?;
    outcome.hosts = load.by_host(&results);
    let ForkTotals { children, per_s, p50_ms, p99_ms } = ForkTotals::of(&results);
    (outcome.children, outcome.per_s, outcome.p50_ms, outcome.p99_ms) = (children, per_s, p50_ms, p99_ms);
    Ok(())
}

fn judge_outcome(plan: &StressForkParameters, outcome: &mut StressForkOutcome) {
    let gap_ms_max = 1e3 / plan.load.floor;
    if outcome.longest_gap_ms > gap_ms_max {
        let gap = outcome.longest_gap_ms;
        outcome.faults.push(format!("a client got no child for {gap:.0} ms; the limit is {gap_ms_max:.0} ms"));
    }
    let all = plan.all_clients() as f64;
    if outcome.per_s < plan.load.floor * all {
        outcome.faults.push(format!("{:.2} children a second by {all} clients in all", outcome.per_s));
    }
    outcome.faults.extend(outcome.counts.iter().filter_map(ResourceCount::leak_text));
}

/// The section of a run of `farfork stress fork`.
fn stress_fork_section(plan: &StressForkParameters, outcome: &StressForkOutcome) -> ReportSection {
    let question = "How many children per second do clients on several nodes fork, second by second, without a fault?";
    let rates = IntervalRates {
        rates: &outcome.intervals_per_s,
        interval_s: FORK_INTERVAL_S,
        whole: outcome.per_s,
        clients: plan.all_clients(),
        reference: StressForkOutcome::published_per_s(&plan.workload),
    };
    let latency = |value| Some(ReportFigure::single(value, "ms", BetterDirection::Lower)).into();
    let mut times = ReportTable::new("times", "From the request for a child to its answer", &["figure", "time"]);
    times.add_row([ReportCell::text("median"), latency(outcome.p50_ms)]);
    times.add_row([ReportCell::text("p99"), latency(outcome.p99_ms)]);
    times.add_row([ReportCell::text("longest time without an answer"), latency(outcome.longest_gap_ms)]);
    let section = ReportSection::new("stress_fork", "Stress: forks", question)
        .with_table(rates.table("children"))
        .with_table(times)
        .with_table(hosts_table(&outcome.hosts, [outcome.per_s, outcome.p50_ms, outcome.p99_ms]))
        .with_plot(rates.plot("Children per second"))
        .with_note(format!("{} clients in all, of the workload {}.", plan.all_clients(), plan.workload.name()))
        .with_note(REFERENCE_NOTE);
    with_verdict(section, &outcome.faults)
}

/// The section of a run of `farfork stress functions`.
fn stress_functions_section(outcomes: &[(&StressForkParameters, StressForkOutcome)]) -> ReportSection {
    let question =
        "How many children per second do clients on several nodes fork, function by function, without a fault?";
    let columns = ["function", "all clients", "of each client", "median", "p99", "longest time without an answer"];
    let mut table = ReportTable::new("rates", "Throughput and latency", &columns);
    let mut section = ReportSection::new("stress_functions", "Stress: functions", question);
    let mut faults = Vec::new();
    for (plan, outcome) in outcomes {
        let rate = |value| ReportFigure::single(value, "1/s", BetterDirection::Higher);
        let time = |value| ReportFigure::single(value, "ms", BetterDirection::Lower);
        let of_each = rate(outcome.per_s / plan.all_clients() as f64);
        table.add_row([
            ReportCell::text(plan.workload.name()),
            Some(rate(outcome.per_s)).into(),
            Some(of_each.with_reference(StressForkOutcome::published_per_s(&plan.workload))).into(),
            Some(time(outcome.p50_ms)).into(),
            Some(time(outcome.p99_ms)).into(),
            Some(time(outcome.longest_gap_ms)).into(),
        ]);
        faults.extend(outcome.faults.iter().map(|fault| format!("{}: {fault}", plan.workload.name())));
    }
    let clients = outcomes.first().map_or(0, |(plan, _)| plan.all_clients());
    section = section.with_table(table).with_note(format!("{clients} clients in all.")).with_note(FUNCTIONS_NOTE);
    with_verdict(section, &faults)
}

/// The section of a report: of one run, or of one run per function.
fn outcomes_section(outcomes: &[(&StressForkParameters, StressForkOutcome)]) -> ReportSection {
    match outcomes {
        [(plan, outcome)] if !plan.workload.is_function() => stress_fork_section(plan, outcome),
        _ => stress_functions_section(outcomes),
    }
}

const FUNCTIONS_NOTE: &str = "The published log of this test has four lines, of a function that it does not name: 1.92 to 2.58 children per \
                              second of each client. The reference is the published peak throughput of the function.";

#[cfg(test)]
mod tests {
    use super::{
        ForkLoadArgs, ForkWorkload, FunctionOptions, FunctionSource, ReportSection, ResourceCount, StressForkOutcome,
        StressForkParameters, judge_outcome, outcomes_section,
    };
    use crate::options::parse_arguments;

    fn plan(arguments: &[&str], workload: ForkWorkload) -> StressForkParameters {
        parse_arguments::<ForkLoadArgs>(arguments).plan(workload, FunctionOptions::default())
    }

    fn section(workload: ForkWorkload) -> ReportSection {
        let intervals_per_s = vec![100.0, 590.0, 600.0, 610.0, 600.0];
        let outcome = StressForkOutcome { intervals_per_s, per_s: 600.0, ..StressForkOutcome::default() };
        outcomes_section(&[(&plan(&["--seconds", "5"], workload), outcome)])
    }

    #[test]
    fn a_stress_test_has_its_stable_interval_and_the_rate_of_each_client() {
        let section = section(ForkWorkload::Sparse { mib: 16 });
        section.require_published_rows();
        let stable = section.figure("rates", "stable interval", "of each client");
        assert_eq!((stable.median, stable.reference), (100.0, Some(120.4)));
        let interval = section.plots[0].stable.unwrap();
        assert_eq!((interval.from_s, interval.until_s, interval.mean), (1.0, 5.0, 600.0));
        assert!(section.notes.iter().any(|note| note == "Verdict: passed."), "{:?}", section.notes);
    }

    #[test]
    fn a_function_has_its_reference() {
        let (source, payload) = (FunctionSource::parse("helloworld").unwrap(), "{}".to_owned());
        section(ForkWorkload::Function { source, payload }).require_published_rows();
    }

    #[test]
    fn each_kind_of_fault_fails_the_run() {
        let plan = plan(&["--nodes", "2", "--seconds", "20"], ForkWorkload::Sparse { mib: 1 });
        let good =
            StressForkOutcome { children: 400, per_s: 20.0, longest_gap_ms: 9_000.0, ..StressForkOutcome::default() };
        let count = |after| ResourceCount { node: "n1".to_owned(), of: "mounts", before: 1, after, slack: 0 };
        let judged = |mut outcome: StressForkOutcome| {
            judge_outcome(&plan, &mut outcome);
            outcome.faults.len()
        };
        assert_eq!(judged(StressForkOutcome { counts: vec![count(1)], ..good.clone() }), 0);
        for bad in [
            StressForkOutcome { longest_gap_ms: 10_001.0, ..good.clone() },
            StressForkOutcome { per_s: 0.39, ..good.clone() },
            StressForkOutcome { counts: vec![count(2)], ..good.clone() },
        ] {
            assert_eq!(judged(bad.clone()), 1, "{bad:?}");
        }
    }
}
