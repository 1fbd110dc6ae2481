//! The section of `farfork bench rpc`: calls per second, by client machines and by load.

use crate::endpoint::specification::RpcSystem;
use crate::parameters::protection::ConnectionSecurity;
use crate::parameters::rpc::{RpcCase, RpcSeries};
use crate::reference::PUBLISHED_FIGURES;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{ReportCell, ReportFigure, ReportTable};
use crate::samples::Spread;
use crate::summary::rpc::{RpcSummary, is_credible, published_per_s};

/// Threads of each client machine in the published runs.
const MACHINE_THREADS: usize = 12;

/// Names of the percentiles of a run's latencies.
const PERCENTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "slowest"];

impl SectionSource for RpcSummary {
    fn section(&self) -> ReportSection {
        let question = "How many calls do nodes make per second, and how long does each take?";
        let (errors, damaged) = self.failures();
        ReportSection::new("rpc", self.section_title(), question, &self.machine_state)
            .with_table(self.machines_section_table())
            .with_table(self.cases_section_table())
            .with_table(self.peers_section_table())
            .with_plot(self.machines_plot())
            .with_plot(self.latency_plot())
            .with_note(format!("{errors} requests failed, and {damaged} answers were damaged."))
            .with_note("Floor: a bare echo of the same messages. Only empty, unencrypted calls of one thread on each side have one.")
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.rpc.source))
    }
}

impl RpcSummary {
    fn section_title(&self) -> &'static str {
        let is_checked = |case: &RpcCase| case.payload_bytes > 0;
        if self.plan.cases.iter().all(is_checked) { "Calls with a checksum" } else { "Calls" }
    }

    fn machine_cases(&self) -> impl Iterator<Item = &RpcCase> {
        self.plan.cases.iter().filter(|case| is_machine_case(case))
    }

    fn machines_section_table(&self) -> ReportTable {
        let title = format!("Empty calls per second, by client machines of {MACHINE_THREADS} synchronous threads");
        let mut table = ReportTable::new("machines", title, &["client machines", "calls", "time", "time, p99"]);
        for case in self.machine_cases() {
            let [p50, _, p99, ..] = self.latency_cells(case);
            table.add_row([ReportCell::text(case.clients), self.rate_cell(case), p50, p99]);
        }
        table
    }

    fn cases_section_table(&self) -> ReportTable {
        let title = "Calls per second, by load";
        let columns = ["load", "calls", "time", "time, p99"];
        let mut table = ReportTable::new("loads", title, &columns);
        for case in self.plan.cases.iter().filter(|case| !is_machine_case(case)) {
            let [p50, _, p99, ..] = self.latency_cells(case);
            table.add_row([ReportCell::text(load_text(case)), self.rate_cell(case), p50, p99]);
        }
        table
    }

    fn peers_section_table(&self) -> ReportTable {
        let systems = [
            ("farfork", RpcSystem::Farfork),
            ("tokio echo", RpcSystem::Tokio),
            ("tonic stream", RpcSystem::TonicStream),
            ("tarpc", RpcSystem::Tarpc),
            ("tonic unary", RpcSystem::TonicUnary),
        ];
        let columns = [&["in flight"][..], &systems.map(|(name, _)| name)].concat();
        let mut table = ReportTable::new("peers", "Other RPC systems, on one connection", &columns);
        for case in self.plan.cases.iter().filter(|case| case.has_peers()) {
            let rates = systems.map(|(_, system)| {
                let spread = self.per_s(case, RpcSeries::Calls(system))?;
                Some(ReportFigure::higher(spread, "1/s"))
            });
            table.add_row(std::iter::once(ReportCell::text(case.window)).chain(rates.map(ReportCell::from)));
        }
        table
    }

    fn rate_cell(&self, case: &RpcCase) -> ReportCell {
        let floor = self.per_s(case, RpcSeries::Floor).map(|floor| floor.median);
        let floor = floor.filter(|floor| is_credible(case, *floor));
        let figure = self.farfork_per_s(case).map(|spread| ReportFigure::higher(spread, "1/s"));
        figure.map(|figure| figure.with_floor(floor).with_reference(comparable_per_s(case))).into()
    }

    /// The percentiles of latencies in the runs of a case. Each has a spread over the runs.
    fn latency_spreads(&self, case: &RpcCase) -> [Option<Spread>; PERCENTILES.len()] {
        std::array::from_fn(|index| {
            let samples: Vec<f64> = self.runs(case).map(|run| run.latency_us[index]).collect();
            Spread::from_samples(&samples)
        })
    }

    fn latency_cells(&self, case: &RpcCase) -> [ReportCell; PERCENTILES.len()] {
        self.latency_spreads(case).map(|spread| super::time_cell(spread, "µs"))
    }

    fn machines_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("client machines", ""), PlotAxis::new("calls", "1/s"));
        let title = "Empty calls by client machines";
        let plot = ReportPlot::new(PlotKind::Scaling, "machines", title, x, y);
        let measured = |case: &RpcCase| Some(PlotPoint::of_spread(case.clients as f64, self.farfork_per_s(case)?));
        let published = |case: &RpcCase| Some(PlotPoint::new(case.clients as f64, published_per_s(case)?));
        plot.with_series("farfork", SeriesRole::Measured, self.machine_cases().filter_map(measured)).with_series(
            "reference",
            SeriesRole::Reference,
            self.machine_cases().filter_map(published),
        )
    }

    fn latency_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("percentile of a run", ""), PlotAxis::new("time", "µs"));
        let plot = ReportPlot::new(PlotKind::Percentiles, "latency", "The time of a call", x, y);
        let plot = plot.with_categories(PERCENTILES.map(str::to_owned));
        let shown = self.plan.cases.iter().filter(|case| !is_machine_case(case)).take(LATENCY_CASES_MAX);
        shown.fold(plot, |plot, case| {
            let spreads = self.latency_spreads(case).into_iter().enumerate();
            let points = spreads.filter_map(|(index, spread)| Some(PlotPoint::of_spread(index as f64, spread?)));
            plot.with_series(&load_text(case), SeriesRole::Measured, points)
        })
    }
}

/// Maximum number of lines of a latency plot. More lines are hard to distinguish.
const LATENCY_CASES_MAX: usize = 5;

/// Whether a case is one of the published series by client machines.
fn is_machine_case(case: &RpcCase) -> bool {
    *case == RpcCase { clients: case.clients, threads: MACHINE_THREADS, ..RpcCase::SINGLE_CONNECTION }
}

/// The published figure for the same load. For answers with a checksum, figures were published for synchronous threads
/// only.
fn comparable_per_s(case: &RpcCase) -> Option<f64> {
    let is_synchronous = case.threads == MACHINE_THREADS && case.window == 1;
    published_per_s(case).filter(|_| case.payload_bytes == 0 || is_synchronous)
}

/// Describes how a case differs from a single synchronous connection.
fn load_text(case: &RpcCase) -> String {
    let connections = case.connections();
    let mut parts = vec![match connections {
        1 => "1 connection".to_owned(),
        _ if case.clients * case.threads == 1 => format!("{connections} connections"),
        _ if case.clients == 1 => format!("{} threads, {connections} connections", case.threads),
        _ => format!("{} × {} threads, {connections} connections", case.clients, case.threads),
    }];
    parts.push(match case.window * case.sessions {
        1 => "synchronous".to_owned(),
        in_flight => format!("{in_flight} in flight"),
    });
    let mut add = |is_so: bool, text: String| parts.extend(is_so.then_some(text));
    add(case.payload_bytes > 0, format!("{} bytes and a checksum", case.payload_bytes));
    add(case.server_threads > 1, format!("{} server threads", case.server_threads));
    add(!case.spins, "no polling".to_owned());
    add(case.protection == ConnectionSecurity::Authenticated, "authenticated".to_owned());
    add(case.protection == ConnectionSecurity::Encrypted, "encrypted".to_owned());
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{ConnectionSecurity, RpcCase, is_machine_case, load_text};
    use std::collections::BTreeSet;

    #[test]
    fn each_default_case_has_a_text_of_its_own() {
        let cases = crate::parameters::rpc::RpcParameters::default_cases();
        let (machines, loads): (Vec<_>, Vec<_>) = cases.iter().partition(|case| is_machine_case(case));
        assert_eq!(machines.len(), 5);
        let count = loads.len();
        let texts: BTreeSet<_> = loads.into_iter().map(load_text).collect();
        assert_eq!(texts.len(), count, "{texts:?}");
        let encrypted = RpcCase { protection: ConnectionSecurity::Encrypted, ..RpcCase::SINGLE_CONNECTION };
        assert_eq!(load_text(&encrypted), "1 connection, synchronous, encrypted");
    }
}
