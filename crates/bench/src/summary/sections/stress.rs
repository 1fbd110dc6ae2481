//! The sections of `farfork stress fork`, `stress functions` and `stress rpc`: the throughput, the times of children, and
//! the verdict.

use crate::experiment::fork_load::FORK_INTERVAL_S;
use crate::experiment::stress_fork::{StressForkOutcome, StressForkParameters};
use crate::experiment::stress_rpc::StressRpcOutcome;
use crate::machine::MachineState;
use crate::parameters::rpc::{RpcCase, RpcParameters};
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::stable_interval::StableInterval;
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::samples::Spread;

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
    let section = ReportSection::new("stress_fork", "Stress: forks", question, &MachineState::detect())
        .with_table(rates.table("children"))
        .with_table(times)
        .with_plot(rates.plot("Children per second"))
        .with_note(format!("{} clients in all, of the workload {}.", plan.all_clients(), plan.workload.name()))
        .with_note(REFERENCE_NOTE);
    with_verdict(section, &outcome.faults)
}

/// The section of a run of `farfork stress rpc`.
fn stress_rpc_section(plan: &RpcParameters, case: &RpcCase, outcome: &StressRpcOutcome) -> ReportSection {
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
        interval_s: plan.interval_seconds,
        whole: outcome.run.per_s,
        clients: case.clients,
        reference: reference.filter(|_| is_comparable),
    };
    let section = ReportSection::new(id, title, question, &MachineState::detect())
        .with_table(rates.table("calls"))
        .with_plot(rates.plot("Calls per second"))
        .with_note(format!("{} client machines with {} threads each.", case.clients, case.threads))
        .with_note(REFERENCE_NOTE);
    with_verdict(section, &outcome.faults)
}

/// The section of a run of `farfork stress functions`.
fn stress_functions_section(outcomes: &[(&StressForkParameters, StressForkOutcome)]) -> ReportSection {
    let question =
        "How many children per second do clients on several nodes fork, function by function, without a fault?";
    let columns = ["function", "all clients", "of each client", "median", "p99", "longest time without an answer"];
    let mut table = ReportTable::new("rates", "Throughput and latency", &columns);
    let mut section = ReportSection::new("stress_functions", "Stress: functions", question, &MachineState::detect());
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

impl StressForkOutcome {
    /// The section of a report for scripts: of one run, or of one run per function.
    pub fn section_json(outcomes: &[(&StressForkParameters, Self)]) -> serde_json::Value {
        let section = match outcomes {
            [(plan, outcome)] if !plan.workload.is_function() => stress_fork_section(plan, outcome),
            _ => stress_functions_section(outcomes),
        };
        serde_json::to_value(section).expect("a section serialises")
    }
}

impl StressRpcOutcome {
    /// The section of a report, for scripts.
    pub fn to_section_json(&self, plan: &RpcParameters, case: &RpcCase) -> serde_json::Value {
        serde_json::to_value(stress_rpc_section(plan, case, self)).expect("a section serialises")
    }
}

/// Threads of each client machine in the published runs.
const PUBLISHED_THREADS: usize = 12;

const FUNCTIONS_NOTE: &str = "The published log of this test has four lines, of a function that it does not name: 1.92 to 2.58 children per \
                              second of each client. The reference is the published peak throughput of the function.";

const REFERENCE_NOTE: &str =
    "The reference is published for one client process or client machine, measured on other machines.";

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

fn with_verdict(section: ReportSection, faults: &[String]) -> ReportSection {
    match faults {
        [] => section.with_note("Verdict: passed."),
        faults => section.with_note(format!("Verdict: failed. {}.", faults.join("; "))),
    }
}
