//! `farfork stress`: one long run per module, with a verdict. A run fails if it has faults.

mod fork;
mod paging;
mod rpc;

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use farfork_terminal::interrupt::InterruptFlag;

use crate::GlobalArgs;
use crate::experiment::fork_load::HostForks;
use crate::machine::source::OnHosts;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::stable_interval::StableInterval;
use crate::report::table::{BetterDirection, HOST_COLUMN, ReportCell, ReportFigure, ReportTable, with_sum_row};
use crate::report::text::render_table;
use crate::samples::Spread;

/// A note of sections whose reference is the rate of one client.
const REFERENCE_NOTE: &str =
    "The reference is published for one client process or client machine, measured on other machines.";

/// Put load on one part of farfork for as long as you like, and judge the outcome.
///
/// Each test starts its own nodes, as `farfork up` does. At its end it removes everything that it created, even if
/// it is killed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress fork
  farfork stress functions json image
  farfork stress paging
  farfork stress rpc
  farfork stress rpc --checksum --seconds 600

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressCommand {
    #[command(subcommand)]
    test: StressTest,
    /// Fail if the log of a daemon or of the kernel cannot be read, instead of only saying so.
    #[arg(long, global = true)]
    strict: bool,
}

#[derive(Subcommand)]
enum StressTest {
    Fork(OnHosts<fork::StressFork>),
    Functions(OnHosts<fork::StressFunctions>),
    Paging(OnHosts<paging::StressPaging>),
    Rpc(OnHosts<rpc::StressRpc>),
}

impl StressCommand {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        match self.test {
            StressTest::Fork(test) => test.experiment.run(&test.hosts, self.strict, global),
            StressTest::Functions(test) => test.experiment.run(&test.hosts, self.strict, global),
            StressTest::Paging(test) => test.experiment.run(&test.hosts, self.strict, global),
            StressTest::Rpc(test) => test.experiment.run(&test.hosts, self.strict, global),
        }
    }
}

/// Continues a run until an interrupt.
fn until_interrupt(interruption: &InterruptFlag) -> ControlFlow<()> {
    if interruption.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// The exit status and the word for a verdict.
fn verdict(has_passed: bool) -> (ExitCode, &'static str) {
    if has_passed { (ExitCode::SUCCESS, "passed") } else { (ExitCode::FAILURE, "failed") }
}

/// The rates of a run's intervals.
#[derive(Debug, Clone, Copy)]
struct IntervalRates<'a> {
    rates: &'a [f64],
    interval_s: f64,
    /// The rate of the whole run.
    whole: f64,
    /// The number of clients whose rates are summed up.
    clients: usize,
    /// The published rate of one client.
    reference: Option<f64>,
}

impl IntervalRates<'_> {
    fn stable(&self) -> Option<StableInterval> {
        StableInterval::find(self.rates, self.interval_s)
    }

    /// The rates of the whole run and of its stable interval, for all clients and per client.
    fn table(&self, what: &str) -> ReportTable {
        let columns = ["part of the run", what, "of each client"];
        let mut table = ReportTable::new("rates", "Throughput", &columns);
        let higher = |value| ReportFigure::single(value, "1/s", BetterDirection::Higher);
        let mut add = |name: &str, all: ReportFigure| {
            let clients = self.clients as f64;
            let spread = Spread { count: all.samples, median: all.median, p10: all.p10, p90: all.p90 };
            let each = ReportFigure::higher(spread.scaled(1.0 / clients), "1/s").with_reference(self.reference);
            table.add_row([ReportCell::text(name), Some(all).into(), Some(each).into()]);
        };
        add("whole run", higher(self.whole));
        if let Some(spread) = Spread::from_samples(self.rates) {
            add("intervals", ReportFigure::higher(spread, "1/s"));
        }
        if let Some(stable) = self.stable() {
            add("stable interval", higher(stable.mean));
        }
        table
    }

    fn plot(&self, title: &str) -> ReportPlot {
        let (x, y) = (PlotAxis::new("time", "s"), PlotAxis::new("throughput", "1/s"));
        let points = self.rates.iter().enumerate();
        let points = points.map(|(index, rate)| PlotPoint::new((index as f64 + 0.5) * self.interval_s, *rate));
        let plot = ReportPlot::new(PlotKind::OverTime, "throughput", title, x, y);
        let plot = plot.with_series("all clients", SeriesRole::Measured, points);
        ReportPlot { stable: self.stable(), ..plot }
    }
}

/// The lines for people about the logs that could not be read.
fn unread_lines(unread: &[String]) -> impl Iterator<Item = String> {
    unread.iter().map(|log| format!("not searched for errors: {log}"))
}

fn with_verdict(section: ReportSection, faults: &[String]) -> ReportSection {
    match faults {
        [] => section.with_note("Verdict: passed."),
        faults => section.with_note(format!("Verdict: failed. {}.", faults.join("; "))),
    }
}

/// The tables of a section that have a row for each host, as text for people. None on one machine.
fn host_tables_text(section: &ReportSection) -> impl Iterator<Item = String> {
    let tables = section.tables.iter().filter(|table| table.columns.iter().any(|column| column == HOST_COLUMN));
    tables.map(|table| format!("\n{}", render_table(table)))
}

/// The children of each host's clients, and those of all: children per second, median and 99th percentile. No rows on one
/// machine.
fn hosts_table(hosts: &[HostForks], all: [f64; 3]) -> ReportTable {
    let mut table = ReportTable::new("hosts", "Children by hosts", &[HOST_COLUMN, "children", "median", "p99"]);
    let rows = hosts.iter().map(|of| (of.host.as_str(), [of.totals.per_s, of.totals.p50_ms, of.totals.p99_ms]));
    for (name, [per_s, p50_ms, p99_ms]) in with_sum_row(rows, all) {
        let time = |value| Some(ReportFigure::single(value, "ms", BetterDirection::Lower)).into();
        let rate = Some(ReportFigure::single(per_s, "1/s", BetterDirection::Higher)).into();
        table.add_row([ReportCell::text(name), rate, time(p50_ms), time(p99_ms)]);
    }
    table
}
