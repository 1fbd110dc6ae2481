//! The section of `farfork bench warm-start`: functions run by paused children, by number of parallel children.

use crate::parameters::methods::PauseMethod;
use crate::parameters::warm_start::WarmStartFigure;
use crate::reference::PUBLISHED_FIGURES;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::summary::sections::time_cell;
use crate::summary::warm_start::WarmStartSummary;
use crate::workload::warm_function::WarmWorkload;

impl SectionSource for WarmStartSummary {
    fn section(&self) -> ReportSection {
        let question = "How many functions per second run in children that are paused before and after each call?";
        let has_functions =
            self.plan.workloads.iter().any(|workload| matches!(workload, WarmWorkload::Function { .. }));
        let title = if has_functions { "Warm starts of functions" } else { "Warm starts" };
        let section = ReportSection::new("warm_start", title, question, &self.machine_state)
            .with_table(self.best_section_table())
            .with_table(self.rate_section_table());
        let plots = self.measured.iter().map(|(workload, parallel)| self.rate_plot(workload, parallel));
        plots
            .fold(section, ReportSection::with_plot)
            .with_note("A client pauses and unpauses each child by its freezer, or by requests to the child's node.")
            .with_note("Floors: local forks that are paused as many at once, by the freezer of a control group alone.")
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.warm_start.source))
            .with_notes(self.failures.sentences_or("No answer was wrong."))
    }
}

impl WarmStartSummary {
    fn rate_section_table(&self) -> ReportTable {
        let title = "Functions per second, by how many children run at once";
        let columns = ["function", "at once", "rate", "answer", "answer, p99", "by requests", "rate of SIGSTOP"];
        let mut table = ReportTable::new("rate", title, &columns);
        for (workload, parallel) in &self.measured {
            for parallel in parallel.iter().copied() {
                let of = |by, figure| self.spread(workload, parallel, by, figure);
                let floor = of(PauseMethod::BareFreezer, WarmStartFigure::RunsPerS).map(|floor| floor.median);
                let rate = |by| of(by, WarmStartFigure::RunsPerS).map(|spread| ReportFigure::higher(spread, "1/s"));
                table.add_row([
                    ReportCell::text(workload),
                    ReportCell::text(parallel),
                    rate(PauseMethod::FarforkHandle).map(|figure| figure.with_floor(floor)).into(),
                    time_cell(of(PauseMethod::FarforkHandle, WarmStartFigure::AnswerMs), "ms"),
                    time_cell(of(PauseMethod::FarforkHandle, WarmStartFigure::AnswerP99Ms), "ms"),
                    rate(PauseMethod::Farfork).into(),
                    rate(PauseMethod::Signals).into(),
                ]);
            }
        }
        table
    }

    /// The number of parallel children with the highest rate, next to the published one of the same function.
    fn best_section_table(&self) -> ReportTable {
        let columns = ["function", "rate", "at once"];
        let mut table = ReportTable::new("best", "The highest rate, and with how many at once", &columns);
        for (workload, _) in &self.measured {
            let Some((parallel, _)) = self.best_parallelism(workload, PauseMethod::FarforkHandle) else { continue };
            let published = PUBLISHED_FIGURES.warm_start.functions.iter().find(|of| of.name == *workload);
            let of = |by| self.spread(workload, parallel, by, WarmStartFigure::RunsPerS);
            let floor = of(PauseMethod::BareFreezer).map(|floor| floor.median);
            let rate = of(PauseMethod::FarforkHandle).map(|spread| ReportFigure::higher(spread, "1/s"));
            let rate = rate.map(|rate| rate.with_floor(floor).with_reference(published.map(|of| of.runs_per_s)));
            let at_once = ReportFigure::single(parallel as f64, "", BetterDirection::Neither)
                .with_reference(published.map(|of| of.parallel as f64));
            table.add_row([ReportCell::text(workload), rate.into(), Some(at_once).into()]);
        }
        table
    }

    fn rate_plot(&self, workload: &str, parallel: &[usize]) -> ReportPlot {
        let (x, y) = (PlotAxis::new("children at once", ""), PlotAxis::new("calls", "1/s"));
        let plot = ReportPlot::new(PlotKind::Scaling, workload, format!("Warm starts of {workload}"), x, y);
        let series = [
            ("farfork", SeriesRole::Measured, PauseMethod::FarforkHandle),
            ("farfork by requests", SeriesRole::Measured, PauseMethod::Farfork),
            ("bare freezer", SeriesRole::Floor, PauseMethod::BareFreezer),
            ("SIGSTOP", SeriesRole::Floor, PauseMethod::Signals),
        ];
        series.into_iter().fold(plot, |plot, (name, role, by)| {
            let point = |parallel: &usize| {
                let spread = self.spread(workload, *parallel, by, WarmStartFigure::RunsPerS)?;
                Some(PlotPoint::of_spread(*parallel as f64, spread))
            };
            plot.with_series(name, role, parallel.iter().filter_map(point))
        })
    }
}
