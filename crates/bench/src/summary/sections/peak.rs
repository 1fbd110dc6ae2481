//! The section of `farfork bench peak`: children per second by workload, and over time.

use super::time_cell;
use crate::experiment::fork_load::FORK_INTERVAL_S;
use crate::parameters::peak::{PeakCase, PeakFigure};
use crate::reference::{PUBLISHED_FIGURES, PeakReference};
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::summary::peak::PeakSummary;

impl SectionSource for PeakSummary {
    fn section(&self) -> ReportSection {
        let question = "How many children per second do clients on several nodes fork, with each function?";
        let section = ReportSection::new("peak", "Peak throughput", question, &self.machine_state)
            .with_table(self.rate_section_table())
            .with_table(self.latency_section_table());
        let plots = self.cases().into_iter().map(|case| self.throughput_plot(&case));
        plots
            .fold(section, ReportSection::with_plot)
            .with_note(format!("{} nodes with clients, and one with the parent.", self.plan.child_nodes))
            .with_note("A workload whose children would need more than half of the memory has fewer clients.")
            .with_note(
                "The rate of os.fork() is that of one process, whose children run one after another on one processor.",
            )
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.peak.source))
            .with_notes(self.failures.sentences_or("No result was wrong."))
    }
}

impl PeakSummary {
    fn rate_section_table(&self) -> ReportTable {
        let columns = [
            "workload",
            "zygotes",
            "strategy",
            "clients",
            "stable interval",
            "of each client",
            "os.fork(), one processor",
        ];
        let mut table = ReportTable::new("rate", "Children per second", &columns);
        for case in self.cases() {
            let rate = |spread| ReportFigure::higher(spread, "1/s");
            let single = |value| ReportFigure::single(value, "1/s", BetterDirection::Higher);
            let of_client = self.spread(&case, PeakFigure::ClientPerS).map(rate);
            let clients = self.spread(&case, PeakFigure::Clients);
            let stable = self.stable_interval(&case).map(|stable| single(stable.mean));
            table.add_row(case_cells(&case).into_iter().chain([
                clients.map(|clients| ReportFigure::new(clients, "", BetterDirection::Neither)).into(),
                stable.into(),
                of_client.map(|rate| rate.with_reference(find(&case, |reference| reference.per_client_s))).into(),
                self.spread(&case, PeakFigure::LocalForkPerS).map(rate).into(),
            ]));
        }
        table
    }

    fn latency_section_table(&self) -> ReportTable {
        let columns = ["workload", "zygotes", "strategy", "median", "p99"];
        let title = "From the request for a child until its result was checked, of each client";
        let mut table = ReportTable::new("latency", title, &columns);
        for case in self.cases() {
            let median = self.spread(&case, PeakFigure::ClientP50Ms).map(|spread| ReportFigure::lower(spread, "ms"));
            let median = median.map(|figure| figure.with_reference(find(&case, |reference| reference.latency_ms)));
            let p99 = time_cell(self.spread(&case, PeakFigure::ClientP99Ms), "ms");
            table.add_row(case_cells(&case).into_iter().chain([median.into(), p99]));
        }
        table
    }

    fn throughput_plot(&self, case: &PeakCase) -> ReportPlot {
        let points = self.intervals(case).iter().enumerate();
        let points = points.map(|(index, rate)| PlotPoint::new((index as f64 + 0.5) * FORK_INTERVAL_S, *rate));
        let name = case_text(case);
        let (x, y) = (PlotAxis::new("time", "s"), PlotAxis::new("children", "1/s"));
        let plot = ReportPlot::new(PlotKind::OverTime, &name.replace(", ", "-").replace(' ', "-"), &name, x, y);
        ReportPlot {
            stable: self.stable_interval(case),
            ..plot.with_series("all clients", SeriesRole::Measured, points)
        }
    }
}

fn case_cells(case: &PeakCase) -> [ReportCell; 3] {
    [case.workload.as_str(), zygotes_text(case), strategy_text(case)].map(ReportCell::text)
}

fn case_text(case: &PeakCase) -> String {
    format!("{}, zygotes {}, {} strategy", case.workload, zygotes_text(case), strategy_text(case))
}

fn zygotes_text(case: &PeakCase) -> &'static str {
    if case.zygotes { "on" } else { "off" }
}

fn strategy_text(case: &PeakCase) -> &str {
    if case.strategy.is_empty() { "default" } else { &case.strategy }
}

fn find(case: &PeakCase, value: fn(&PeakReference) -> f64) -> Option<f64> {
    PUBLISHED_FIGURES.peak.find(&case.workload).map(value)
}
