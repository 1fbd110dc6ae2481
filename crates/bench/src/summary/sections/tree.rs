//! The section of `farfork bench tree`: how long a prepare stops a tree of processes.

use super::time_cell;
use crate::parameters::tree::{TreeFigure, TreeParameters};
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{ReportCell, ReportFigure, ReportTable};
use crate::summary::tree::TreeSummary;

impl SectionSource for TreeSummary {
    fn section(&self) -> ReportSection {
        let TreeParameters { mib, shared_mib, .. } = self.plan;
        let question = "How long does a prepare stop a tree of processes?";
        ReportSection::new("tree", "Process trees", question, &self.machine_state)
            .with_table(self.section_table())
            .with_plot(self.pause_plot())
            .with_note(format!("Each process has {mib} MiB; the processes of a tree share {shared_mib} MiB."))
            .with_note(
                "Floor of a pause: fork(2) of each process, summed up, and a copy of the memory that they share.",
            )
    }
}

impl TreeSummary {
    /// The minimum time of a pause, in ms.
    fn floor_ms(&self, processes: u64) -> Option<f64> {
        let median = |figure| self.spread(processes, figure).map(|spread| spread.median);
        Some(median(TreeFigure::Forks)? + median(TreeFigure::Copy)?)
    }

    fn section_table(&self) -> ReportTable {
        let columns = ["processes", "fork() of each", "copy of the shared memory", "pause", "prepare"];
        let mut table = ReportTable::new("tree", "Prepare of a tree", &columns);
        for &processes in &self.plan.processes {
            let of = |figure| self.spread(processes, figure);
            let pause = of(TreeFigure::Pause).map(|spread| ReportFigure::lower(spread, "ms"));
            table.add_row([
                ReportCell::text(processes),
                time_cell(of(TreeFigure::Forks), "ms"),
                time_cell(of(TreeFigure::Copy), "ms"),
                pause.map(|pause| pause.with_floor(self.floor_ms(processes))).into(),
                time_cell(of(TreeFigure::Prepare), "ms"),
            ]);
        }
        table
    }

    fn pause_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("processes", ""), PlotAxis::new("time", "ms"));
        let plot = ReportPlot::new(PlotKind::Scaling, "pause", "Pause of a tree by processes", x, y);
        let processes = || self.plan.processes.iter().copied();
        let pause = |count| Some(PlotPoint::of_spread(count as f64, self.spread(count, TreeFigure::Pause)?));
        let prepare = |count| Some(PlotPoint::of_spread(count as f64, self.spread(count, TreeFigure::Prepare)?));
        let floor = |count| Some(PlotPoint::new(count as f64, self.floor_ms(count)?));
        plot.with_series("pause", SeriesRole::Measured, processes().filter_map(pause))
            .with_series("prepare", SeriesRole::Measured, processes().filter_map(prepare))
            .with_series("fork() of each", SeriesRole::Floor, processes().filter_map(floor))
    }
}
