//! The section of `farfork bench churn`: programs that change their memory while it arrives.

use super::{time_cell, time_cell_with_floor};
use crate::figure::ChildPlace;
use crate::report::plot::{BarTitles, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{ReportCell, ReportTable};
use crate::samples::Spread;
use crate::summary::churn::ChurnSummary;
use crate::workload::churn::ChurnOperation;

impl SectionSource for ChurnSummary {
    fn section(&self) -> ReportSection {
        let question = "How much longer does a program take in a child if it changes its memory while that arrives?";
        let table = self.section_table();
        let columns =
            [("unforked", SeriesRole::Floor), ("own node", SeriesRole::Measured), ("other node", SeriesRole::Measured)];
        let titles = BarTitles { plot: "Programs that change their memory", axis: "time" };
        let plot = ReportPlot::bars_of_table(&table, "churn", titles, &columns);
        ReportSection::new("churn", "Changing memory", question, &self.machine_state)
            .with_table(table)
            .with_plot(plot)
            .with_note(format!("Each program has {} MiB. No page was wrong.", self.plan.mib))
            .with_note("Floor: the same program, unforked.")
    }
}

impl ChurnSummary {
    fn section_table(&self) -> ReportTable {
        let title = "Programs that change their memory while it arrives";
        let mut table = ReportTable::new("churn", title, &["program", "unforked", "own node", "other node"]);
        for operation in ChurnOperation::ALL {
            let ms = |node| self.spread(operation, node).map(|spread: Spread| spread.scaled(1e-3));
            let unforked = ms(None);
            table.add_row([
                ReportCell::text(operation.text()),
                time_cell(unforked, "ms"),
                time_cell_with_floor(ms(Some(ChildPlace::Own)), "ms", unforked),
                time_cell_with_floor(ms(Some(ChildPlace::Other)), "ms", unforked),
            ]);
        }
        table
    }
}
