//! The section of `farfork bench connect`: connections per second, by threads and by client machines.

use super::time_cell;
use crate::parameters::connect::{ConnectCase, ConnectSeries, P50_US, P99_US, PER_S};
use crate::parameters::protection::ConnectionSecurity;
use crate::reference::PUBLISHED_FIGURES;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{ReportCell, ReportFigure, ReportTable};
use crate::summary::connect::{ConnectSummary, reference_per_s};

/// The columns of a table: the rate with each protection.
const PROTECTION_COLUMNS: [(&str, ConnectionSecurity); 3] = [
    ("neither authenticated nor encrypted", ConnectionSecurity::None),
    ("authenticated", ConnectionSecurity::Authenticated),
    ("encrypted", ConnectionSecurity::Encrypted),
];

/// Threads of each client machine in the tables by machines.
const MACHINE_THREADS: usize = 2;

impl SectionSource for ConnectSummary {
    fn section(&self) -> ReportSection {
        let question = "How many connections do nodes make per second, and how long does each take?";
        let by_threads = self.cases(|case| case.clients == 1);
        let by_machines = self.cases(|case| case.threads == MACHINE_THREADS);
        let others = self.cases(|case| case.clients > 1 && case.threads != MACHINE_THREADS);
        let threads = |case: ConnectCase| (case.threads, reference_per_s(case));
        let machines = |case: ConnectCase| {
            let published = PUBLISHED_FIGURES.connect.per_s_by_clients.find(case.clients as u64);
            (case.clients, published)
        };
        let title = format!("Connections per second by client machines of {MACHINE_THREADS} threads");
        ReportSection::new("connect", "Connections", question, &self.machine_state)
            .with_table(self.latency_section_table())
            .with_table(self.rate_section_table(
                "threads",
                "Connections per second by threads of one client machine",
                &by_threads,
                threads,
            ))
            .with_table(self.rate_section_table("machines", &title, &by_machines, machines))
            .with_table(self.rate_section_table(
                "others",
                "Connections per second by connections at once",
                &others,
                |case| (case.connections(), None),
            ))
            .with_plot(self.rate_plot("threads", "Connections by threads of one client machine", &by_threads, threads))
            .with_plot(self.rate_plot(
                "machines",
                "Connections by client machines of two threads",
                &by_machines,
                machines,
            ))
            .with_note("Floor: TCP connect and accept by two programs that do nothing else.")
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.connect.source))
            .with_note(
                "Two nodes have one path between them, so the published table of two network cards has no counterpart.",
            )
    }
}

impl ConnectSummary {
    fn cases(&self, is_wanted: fn(&ConnectCase) -> bool) -> Vec<ConnectCase> {
        self.plan.cases.iter().copied().filter(is_wanted).collect()
    }

    /// The time of a connection with one thread.
    fn latency_section_table(&self) -> ReportTable {
        let title = "The time of one connection, with one thread";
        let mut table = ReportTable::new("latency", title, &["connection", "time", "time, p99"]);
        for case in self.cases(|case| case.connections() == 1) {
            for (name, protection) in PROTECTION_COLUMNS {
                let of = |figure| self.spread(case, ConnectSeries::Connections(protection), figure);
                let published_us = PUBLISHED_FIGURES.connect.latency_us;
                let time =
                    of(P50_US).map(|spread| ReportFigure::lower(spread, "µs").with_reference(Some(published_us)));
                table.add_row([ReportCell::text(name), time.into(), time_cell(of(P99_US), "µs")]);
            }
        }
        table
    }

    fn rate_section_table(
        &self,
        id: &str,
        title: &str,
        cases: &[ConnectCase],
        varied: impl Fn(ConnectCase) -> (usize, Option<f64>),
    ) -> ReportTable {
        let columns = [id, PROTECTION_COLUMNS[0].0, PROTECTION_COLUMNS[1].0, PROTECTION_COLUMNS[2].0];
        let mut table = ReportTable::new(id, title, &columns);
        for &case in cases {
            let (count, published) = varied(case);
            let floor = self.spread(case, ConnectSeries::Floor, PER_S).map(|floor| floor.median);
            let rates = PROTECTION_COLUMNS.map(|(_, protection)| {
                let spread = self.spread(case, ConnectSeries::Connections(protection), PER_S)?;
                Some(ReportFigure::higher(spread, "1/s").with_floor(floor).with_reference(published))
            });
            table.add_row(std::iter::once(ReportCell::text(count)).chain(rates.map(ReportCell::from)));
        }
        table
    }

    fn rate_plot(
        &self,
        id: &str,
        title: &str,
        cases: &[ConnectCase],
        varied: impl Fn(ConnectCase) -> (usize, Option<f64>),
    ) -> ReportPlot {
        let (x, y) = (PlotAxis::new(id, ""), PlotAxis::new("connections", "1/s"));
        let plot = ReportPlot::new(PlotKind::Scaling, id, title, x, y);
        let points = |made: ConnectSeries| {
            let point = |case: &ConnectCase| {
                let spread = self.spread(*case, made, PER_S)?;
                Some(PlotPoint::of_spread(varied(*case).0 as f64, spread))
            };
            cases.iter().filter_map(point).collect::<Vec<_>>()
        };
        let plot = PROTECTION_COLUMNS.into_iter().fold(plot, |plot, (name, protection)| {
            plot.with_series(name, SeriesRole::Measured, points(ConnectSeries::Connections(protection)))
        });
        let published = |case: &ConnectCase| {
            let (count, published) = varied(*case);
            Some(PlotPoint::new(count as f64, published?))
        };
        plot.with_series("bare TCP", SeriesRole::Floor, points(ConnectSeries::Floor)).with_series(
            "reference",
            SeriesRole::Reference,
            cases.iter().filter_map(published),
        )
    }
}
