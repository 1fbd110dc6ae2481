//! `farfork stress rpc`: many clients call one server for a while. The run is judged by failed requests, wrong checksums and
//! the rate of each interval.

use std::process::ExitCode;

use clap::Args;
use farfork_terminal::interrupt::InterruptFlag;
use farfork_terminal::output;
use serde::Serialize;
use serde_json::json;

use super::{IntervalRates, REFERENCE_NOTE, host_tables_text, unread_lines, verdict, with_verdict};
use crate::GlobalArgs;
use crate::benchmark::rpc::case::{LoadArgs, RpcCase, RpcTimes};
use crate::benchmark::rpc::{RpcRunOutcome, run_once};
use crate::endpoint::specification::RpcSystem;
use crate::error::BenchError;
use crate::experiment::error_log::LogEnds;
use crate::experiment::host_report::{HostReport, with_hosts};
use crate::experiment::testbed::Testbed;
use crate::machine::source::{HostOptions, MachineNeeds, MachineSource};
use crate::options::{count, parse_seconds};
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, HOST_COLUMN, ReportCell, ReportFigure, ReportTable, with_sum_row};

/// The default case: few enough nodes and threads for a small machine.
const DEFAULT_CASE: RpcCase = RpcCase { clients: 4, threads: 4, ..RpcCase::SINGLE_CONNECTION };

/// By default, the server answers this much longer than the clients request.
const SERVER_EXTRA_SECONDS: f64 = 20.0;

/// Threads of each client machine in the published runs.
const PUBLISHED_THREADS: usize = 12;

/// Call one server from many clients, and judge the outcome.
///
/// The server and each client node are in their own network namespaces. The test prints the throughput of each interval.
///
/// The test passes if no request failed, the checksum of each answer matched the answer's bytes, and the kernel logged no error.
/// The whole run, and each interval after the first, must also reach the floor.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork stress rpc                             a minute of empty calls by 4 nodes with 4 threads each
  farfork stress rpc --checksum --seconds 600    ten minutes of 2,048 random bytes, each answer verified

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressRpc {
    /// Number of client nodes. Each is a process in its own network namespace [default: 4].
    #[arg(long, value_name = "N", value_parser = count(1..=10))]
    clients: Option<usize>,
    #[command(flatten)]
    load: LoadArgs,
    /// Time for which the clients send requests, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Maximum time for which the server answers, in seconds [default: --seconds plus 20].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    server_seconds: Option<f64>,
    /// Time between two counts of answers, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    report_interval: f64,
    /// Minimum number of answers per second in each interval.
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = parse_floor)]
    floor: f64,
}

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
struct StressRpcOutcome {
    /// The measurements of all clients.
    #[serde(flatten)]
    run: RpcRunOutcome,
    /// The minimum rate of each interval, in answers per second.
    floor_per_s: f64,
    /// Reasons why the run has failed; empty if it passed.
    faults: Vec<String>,
    /// A sentence for each log that could not be read.
    unread_logs: Vec<String>,
}

impl StressRpcOutcome {
    /// Whether the run has passed.
    fn has_passed(&self) -> bool {
        self.faults.is_empty()
    }
}

impl StressRpc {
    pub(crate) fn run(self, hosts: &HostOptions, strict: bool, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let times = RpcTimes::new(self.seconds, self.server_seconds, SERVER_EXTRA_SECONDS, self.report_interval);
        let root_reason = "it makes network namespaces";
        let needs = MachineNeeds { command: "stress rpc", root_reason, hosts_refusal: None };
        let machines = MachineSource::open(hosts, needs, global)?;
        let clients = self.clients.or(machines.clients_max()).unwrap_or(DEFAULT_CASE.clients);
        let case = self.load.to_case(&RpcCase { clients, ..DEFAULT_CASE });
        let interruption = InterruptFlag::watch()?;
        let mut show = |interval: usize, run: &RpcRunOutcome| {
            if !global.json {
                output::print_line(&interval_text(interval, run));
            }
            if interruption.is_set() { Err(BenchError::Interrupted) } else { Ok(()) }
        };
        let testbed = Testbed::new(&machines, case.clients)?;
        // Hosts search their own logs.
        let log = testbed.is_local().then(LogEnds::read_kernel);
        let run = run_once(&testbed, times, &case, RpcSystem::Farfork, &mut show)?;
        drop(testbed);
        let logs = log.map(|ends| ends.find_kernel_errors()).unwrap_or_default();
        let hosts = machines.report_hosts()?;
        let mut faults = judge_run(&run, self.floor);
        faults.extend(logs.faults(strict));
        faults.extend(hosts.iter().flat_map(|host| host.faults(strict)));
        let unread_logs = logs.unread.into_iter().chain(hosts.iter().flat_map(HostReport::unread_logs)).collect();
        let outcome = StressRpcOutcome { run, floor_per_s: self.floor, faults, unread_logs };
        let (status, verdict) = verdict(outcome.has_passed());
        let section = with_hosts(stress_rpc_section(times.interval, &case, &outcome), &hosts);
        if global.json {
            let passed = outcome.has_passed();
            let document =
                json!({ "case": case, "passed": passed, "outcome": outcome, "section": section, "hosts": hosts });
            output::print_json(&document);
        } else {
            outcome.faults.iter().for_each(|fault| output::print_line(&format!("FAULT: {fault}")));
            unread_lines(&outcome.unread_logs).for_each(|line| output::print_line(&line));
            let per_s = outcome.run.per_s;
            output::print_line(&format!("{verdict}: {per_s:.0} answers a second over {} s", self.seconds));
            host_tables_text(&section).for_each(|table| output::print_line(&table));
        }
        Ok(status)
    }
}

/// Parses a number of answers per second. NaN would be reached by every rate.
fn parse_floor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate >= 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("write a number of answers per second, such as 1000".to_owned()),
    }
}

fn interval_text(interval: usize, run: &RpcRunOutcome) -> String {
    let per_s = run.intervals_per_s.last().copied().unwrap_or_default();
    format!("{:4}: {per_s:.0} answers/s, {} errors, {} damaged", interval + 1, run.errors, run.damaged)
}

/// The section of a run of `farfork stress rpc`.
fn stress_rpc_section(interval_s: f64, case: &RpcCase, outcome: &StressRpcOutcome) -> ReportSection {
    let question = "How many calls per second does a server answer, interval by interval, without a fault?";
    let (id, title) = match case.payload_bytes {
        0 => ("stress_rpc", "Stress: calls"),
        _ => ("stress_rpc_checksum", "Stress: calls with a checksum"),
    };
    let published = &crate::reference::PUBLISHED_FIGURES.rpc;
    let is_comparable = case.threads == PUBLISHED_THREADS && case.window == 1 && case.server_threads == 1;
    let reference = match case.payload_bytes {
        0 => published.requests_per_s_by_clients.find(case.clients as u64).map(|all| all / case.clients as f64),
        _ => Some(published.checksum_per_s),
    };
    let rates = IntervalRates {
        rates: &outcome.run.intervals_per_s,
        interval_s,
        whole: outcome.run.per_s,
        clients: case.clients,
        reference: reference.filter(|_| is_comparable),
    };
    let section = ReportSection::new(id, title, question)
        .with_table(rates.table("calls"))
        .with_table(hosts_table(&outcome.run))
        .with_plot(rates.plot("Calls per second"))
        .with_note(format!("{} client machines with {} threads each.", case.clients, case.threads))
        .with_note(REFERENCE_NOTE);
    with_verdict(section, &outcome.faults)
}

/// The calls of each client host, and their sum. No rows on one machine.
fn hosts_table(run: &RpcRunOutcome) -> ReportTable {
    let mut table = ReportTable::new("hosts", "Calls by client hosts", &[HOST_COLUMN, "calls"]);
    let rows = run.hosts.iter().map(|calls| (calls.host.as_str(), calls.per_s));
    for (name, per_s) in with_sum_row(rows, run.per_s) {
        let figure = ReportFigure::single(per_s, "1/s", BetterDirection::Higher);
        table.add_row([ReportCell::text(name), Some(figure).into()]);
    }
    table
}

fn judge_run(run: &RpcRunOutcome, floor_per_s: f64) -> Vec<String> {
    let mut faults = Vec::new();
    if run.errors > 0 {
        faults.push(format!("{} requests failed", run.errors));
    }
    if run.damaged > 0 {
        faults.push(format!("{} answers had a wrong checksum", run.damaged));
    }
    for (interval, per_s) in run.intervals_per_s.iter().enumerate().skip(1) {
        if *per_s < floor_per_s {
            faults.push(format!("interval {}: {per_s:.0} answers a second, {floor_per_s:.0} at least", interval + 1));
        }
    }
    if run.per_s < floor_per_s {
        faults.push(format!("the whole run: {:.0} answers a second, {floor_per_s:.0} at least", run.per_s));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{RpcRunOutcome, judge_run, parse_floor};

    #[test]
    fn a_floor_is_a_number_that_rates_can_miss() {
        assert!(["0", "1000", "0.5", "1e6"].iter().all(|text| parse_floor(text).is_ok()));
        assert!(["-1", "nan", "inf", "many", ""].iter().all(|text| parse_floor(text).is_err()));
    }

    #[test]
    fn each_kind_of_fault_fails_the_run() {
        let good =
            RpcRunOutcome { per_s: 900.0, intervals_per_s: vec![10.0, 1000.0, 800.0], ..RpcRunOutcome::default() };
        assert!(judge_run(&good, 500.0).is_empty(), "the first interval may be slow");
        for bad in [
            RpcRunOutcome { errors: 1, ..good.clone() },
            RpcRunOutcome { damaged: 1, ..good.clone() },
            RpcRunOutcome { intervals_per_s: vec![1000.0, 1000.0, 499.0], ..good.clone() },
            RpcRunOutcome { per_s: 400.0, ..good.clone() },
        ] {
            assert_eq!(judge_run(&bad, 500.0).len(), 1, "{bad:?}");
        }
    }
}
