//! The section of `farfork bench function`: prepare, start and execution of functions.

use super::{time_cell, time_cell_with_floor};
use crate::figure::ChildPlace;
use crate::parameters::function::FunctionFigure;
use crate::reference::{FunctionReference, PUBLISHED_FIGURES};
use crate::report::plot::{BarTitles, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::summary::function::{FunctionSummary, find_reference};

impl SectionSource for FunctionSummary {
    fn section(&self) -> ReportSection {
        let question =
            "How long does it take to prepare a Python function, to start a child of it, and to call it there?";
        let (start, execution) = (self.start_section_table(), self.execution_section_table());
        let ratios = self.ratio_section_table();
        let start_columns = [
            ("prepare", SeriesRole::Measured),
            ("resume, own node", SeriesRole::Measured),
            ("resume, other node", SeriesRole::Measured),
        ];
        let ratio_columns = [("own node", SeriesRole::Measured), ("other node", SeriesRole::Measured)];
        let start_titles = BarTitles { plot: "Prepare and resume of functions", axis: "time" };
        let start_plot = ReportPlot::bars_of_table(&start, "start", start_titles, &start_columns);
        let axis = "child of farfork ÷ child of os.fork()";
        let ratio_titles = BarTitles { plot: "First call in a child, compared with os.fork()", axis };
        let ratio_plot = ReportPlot::bars_of_table(&ratios, "ratio", ratio_titles, &ratio_columns);
        ReportSection::new("function", "Functions", question, &self.machine_state)
            .with_table(start)
            .with_table(execution)
            .with_table(ratios)
            .with_plot(start_plot)
            .with_plot(ratio_plot)
            .with_note("Each child is its seed's first on the node.")
            .with_notes(self.failures.sentences_or("No result was wrong."))
            .with_note("Floors: a child of os.fork() of the same process, in the same run.")
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.function.source))
    }
}

impl FunctionSummary {
    fn start_section_table(&self) -> ReportTable {
        let title = "Prepare, and a child from the request to its first instruction";
        let columns = ["function", "resident", "prepare", "pause", "resume, own node", "resume, other node"];
        let mut table = ReportTable::new("start", title, &columns);
        for name in self.names() {
            let resident = self.spread(name, FunctionFigure::ResidentMib);
            let resident = resident.map(|spread| ReportFigure::new(spread, "MiB", BetterDirection::Neither));
            let resume = |place| {
                let floor = (place == ChildPlace::Own).then_some(FunctionFigure::LocalFork);
                self.compared_cell(name, FunctionFigure::Resume(place), floor, |reference| reference.resume_ms)
            };
            table.add_row([
                ReportCell::text(name),
                resident.into(),
                self.compared_cell(name, FunctionFigure::Prepare, None, |reference| reference.prepare_ms),
                time_cell(self.spread(name, FunctionFigure::Pause), "ms"),
                resume(ChildPlace::Own),
                resume(ChildPlace::Other),
            ]);
        }
        table
    }

    fn execution_section_table(&self) -> ReportTable {
        let title = "The function's first call in a child, and its first two calls in the parent";
        let columns = ["function", "parent, first call", "parent, second call", "own node", "other node"];
        let mut table = ReportTable::new("execution", title, &columns);
        for name in self.names() {
            let of = |place| {
                let (figure, floor) = (FunctionFigure::Execution(place), Some(FunctionFigure::LocalExecution));
                self.compared_cell(name, figure, floor, |reference| reference.execution_ms)
            };
            table.add_row([
                ReportCell::text(name),
                time_cell(self.spread(name, FunctionFigure::FirstCall), "ms"),
                time_cell_with_floor(self.spread(name, FunctionFigure::WarmCall), "ms", None),
                of(ChildPlace::Own),
                of(ChildPlace::Other),
            ]);
        }
        table
    }

    /// The medians of first calls divided by those in children of `os.fork()`.
    fn ratio_section_table(&self) -> ReportTable {
        let title = "The median of the first call in a child, divided by the median in a child of os.fork()";
        let mut table = ReportTable::new("ratio", title, &["function", "own node", "other node"]);
        for name in self.names() {
            let of = |place| {
                let child = self.spread(name, FunctionFigure::Execution(place))?.median;
                let local = self.spread(name, FunctionFigure::LocalExecution)?.median;
                Some(ReportFigure::single(child / local, "×", BetterDirection::Lower))
            };
            table.add_row([ReportCell::text(name), of(ChildPlace::Own).into(), of(ChildPlace::Other).into()]);
        }
        table
    }

    fn compared_cell(
        &self,
        name: &str,
        figure: FunctionFigure,
        floor: Option<FunctionFigure>,
        reference: fn(&FunctionReference) -> f64,
    ) -> ReportCell {
        let floor = floor.and_then(|floor| Some(self.spread(name, floor)?.median));
        let measured = self.spread(name, figure).map(|spread| ReportFigure::lower(spread, "ms"));
        measured.map(|figure| figure.with_floor(floor).with_reference(find_reference(name).map(reference))).into()
    }
}
