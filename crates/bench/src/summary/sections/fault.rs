//! The section of `farfork bench fault`: the time of single page faults.

use super::{time_cell, time_cell_with_floor};
use crate::baseline::fault::WaitMode;
use crate::figure::Pace;
use crate::parameters::fault::{FaultSampleKey, FaultSeries};
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::summary::fault::{FaultSummary, ROWS, floor_of};

/// The percentiles of a plot.
const PERCENTILES: [(&str, f64); 5] = [("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("slowest", 1.0)];

/// The lines of a plot.
const PLOTTED: [(&str, SeriesRole, FaultSeries); 4] = [
    ("farfork, alone", SeriesRole::Measured, FaultSeries::Farfork),
    ("farfork, next to a stream", SeriesRole::Measured, FaultSeries::BesideStream),
    ("floor, alone", SeriesRole::Floor, FaultSeries::Floor { waiting: WaitMode::Sleep }),
    ("floor, next to a stream", SeriesRole::Floor, FaultSeries::FloorBesideStream),
];

impl SectionSource for FaultSummary {
    fn section(&self) -> ReportSection {
        let question = "How long does one page fault of a child take, alone and next to a stream of other faults?";
        let link = if self.plan.encrypted { "encrypted" } else { "in clear" };
        ReportSection::new("fault", "Page faults", question, &self.machine_state)
            .with_table(self.section_table())
            .with_table(self.streams_section_table())
            .with_plot(self.percentiles_plot())
            .with_note(format!("farfork's link is {link}. No page was wrong."))
            .with_note(
                "Floor: a request and a page over the link in clear, and UFFDIO_COPY, by two bare programs that sleep while \
                 they wait.",
            )
    }
}

impl FaultSummary {
    fn section_table(&self) -> ReportTable {
        let title = "One page of another node's process, from the touch to its arrival";
        let mut table = ReportTable::new("fault", title, &["page fault", "time", "time, p99"]);
        for (series, pace, name) in ROWS {
            let floor = Some(floor_of(series)).filter(|floor| *floor != series);
            let floors = floor.map(|floor| (self.spread(floor, pace), self.p99(floor, pace)));
            let p99 = self.p99(series, pace).map(|p99| {
                let figure = ReportFigure::single(p99, "µs", BetterDirection::Lower);
                figure.with_floor(floors.and_then(|(_, floor)| floor))
            });
            let time = time_cell_with_floor(self.spread(series, pace), "µs", floors.and_then(|(floor, _)| floor));
            table.add_row([ReportCell::text(name), time, p99.into()]);
        }
        table
    }

    fn streams_section_table(&self) -> ReportTable {
        let title = "Children of as many seeds that fetch all of their memory at once";
        let mut table = ReportTable::new("streams", title, &["children", "each", "the slowest ÷ the mean"]);
        let of = |series| self.spread(series, Pace::BackToBack);
        let ratio = of(FaultSeries::SlowestStream).map(|spread| ReportFigure::lower(spread, "×"));
        table.add_row([
            ReportCell::text(self.plan.streams),
            time_cell(of(FaultSeries::Stream).map(|spread| spread.scaled(1e-3)), "ms"),
            ratio.into(),
        ]);
        table
    }

    fn percentiles_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("percentile of the faults", ""), PlotAxis::new("time", "µs"));
        let plot = ReportPlot::new(PlotKind::Percentiles, "percentiles", "The time of a page fault", x, y);
        let plot = plot.with_categories(PERCENTILES.map(|(name, _)| name.to_owned()));
        PLOTTED.into_iter().fold(plot, |plot, (name, role, series)| {
            let key = FaultSampleKey { series, pace: Pace::BackToBack };
            let points = PERCENTILES.iter().enumerate().filter_map(|(index, (_, part))| {
                Some(PlotPoint::new(index as f64, self.samples.percentile(&key, *part)?))
            });
            plot.with_series(name, role, points.collect::<Vec<_>>())
        })
    }
}
