//! The section of `farfork bench fanout`: many children of one seed at the same time.

use crate::parameters::fanout::{FanoutFigure, FanoutParameters, FanoutSampleKey};
use crate::parameters::methods::CreateMethod;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::summary::fanout::{FIGURES, FanoutSummary};

/// farfork and its floors.
const METHODS: [CreateMethod; 4] = [
    CreateMethod::Farfork,
    CreateMethod::BareContainer,
    CreateMethod::LocalForkIntoNamespaces,
    CreateMethod::LocalFork,
];

/// The percentiles of a plot.
const PERCENTILES: [(&str, f64); 5] = [("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("slowest", 1.0)];

impl SectionSource for FanoutSummary {
    fn section(&self) -> ReportSection {
        let FanoutParameters { children, nodes, mib, network, encrypted, .. } = &self.plan;
        let question = "How long do many children of one seed take from the request to their results?";
        let link = if *encrypted { "encrypted" } else { "in clear" };
        let section = ReportSection::new("fanout", "Fan-outs", question, &self.machine_state)
            .with_table(self.section_table())
            .with_plot(self.result_plot())
            .with_note(format!(
                "{children} children of {mib} MiB over {nodes} nodes, {}; the link is {link}. No result was wrong.",
                network.text()
            ))
            .with_note(
                "Floor: what the kernel must do for a child in its own container; where that was not measured, fork(2) into \
                 the namespaces of an existing container.",
            );
        match &self.refusal {
            Some(refusal) => section.with_note(format!("There are no bare containers: {refusal}.")),
            None => section,
        }
    }
}

impl FanoutSummary {
    fn section_table(&self) -> ReportTable {
        let columns = ["figure", "farfork", "bare containers", "fork() into namespaces", "fork()"];
        let mut table = ReportTable::new("fanout", "A fan-out", &columns);
        for figure in FIGURES {
            let (unit, better) = unit_of(figure);
            let floor = [CreateMethod::BareContainer, CreateMethod::LocalForkIntoNamespaces]
                .into_iter()
                .find_map(|by| self.spread(by, figure));
            let cell = |by: CreateMethod| {
                let measured = self.spread(by, figure).map(|spread| ReportFigure::new(spread, unit, better));
                let floor = floor.filter(|_| by == CreateMethod::Farfork).map(|floor| floor.median);
                ReportCell::from(measured.map(|figure| figure.with_floor(floor)))
            };
            table.add_row(std::iter::once(ReportCell::text(figure_text(figure))).chain(METHODS.map(cell)));
        }
        table
    }

    fn result_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("percentile of the children", ""), PlotAxis::new("time", "ms"));
        let title = "From the request to a child's result";
        let plot = ReportPlot::new(PlotKind::Percentiles, "result", title, x, y);
        let plot = plot.with_categories(PERCENTILES.map(|(name, _)| name.to_owned()));
        METHODS.into_iter().fold(plot, |plot, by| {
            let key = FanoutSampleKey { by, figure: FanoutFigure::ResultMs };
            let points = PERCENTILES.iter().enumerate().filter_map(|(index, (_, part))| {
                Some(PlotPoint::new(index as f64, self.samples.percentile(&key, *part)?))
            });
            let role = if by == CreateMethod::Farfork { SeriesRole::Measured } else { SeriesRole::Floor };
            plot.with_series(by.text(), role, points.collect::<Vec<_>>())
        })
    }
}

fn unit_of(figure: FanoutFigure) -> (&'static str, BetterDirection) {
    match figure {
        FanoutFigure::ChildrenPerS => ("1/s", BetterDirection::Higher),
        FanoutFigure::FirstResultMs | FanoutFigure::ResultMs | FanoutFigure::AnsweredMs => {
            ("ms", BetterDirection::Lower)
        }
        FanoutFigure::OwnKib | FanoutFigure::PageTablesKib | FanoutFigure::MemoryKib => ("KiB", BetterDirection::Lower),
    }
}

/// The text without the unit, which the figure has.
fn figure_text(figure: FanoutFigure) -> &'static str {
    match figure {
        FanoutFigure::ChildrenPerS => "children",
        FanoutFigure::FirstResultMs => "first result",
        FanoutFigure::ResultMs => "a child's result",
        FanoutFigure::AnsweredMs => "a child's result, received",
        FanoutFigure::OwnKib => "a child's own memory",
        FanoutFigure::PageTablesKib => "a child's page tables",
        FanoutFigure::MemoryKib => "both",
    }
}
