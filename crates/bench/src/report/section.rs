//! `ReportSection`: the results of one run in the form that all benchmarks share. A summary makes the section. The JSON
//! document of the run contains it under the key `section`, from which `results` reads it.

use serde::{Deserialize, Serialize};

use super::context::RunContext;
use super::plot::ReportPlot;
use super::table::ReportTable;
use crate::machine::MachineState;

/// The version of the format. A reader refuses other versions.
pub(crate) const SECTION_VERSION: u32 = 1;

/// The results of one run of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReportSection {
    pub(crate) version: u32,
    /// The benchmark, such as `fork` or `stress_rpc`.
    pub(crate) id: String,
    pub(crate) title: String,
    /// The question that the section answers, in one sentence.
    pub(crate) question: String,
    pub(crate) context: RunContext,
    pub(crate) tables: Vec<ReportTable>,
    pub(crate) plots: Vec<ReportPlot>,
    /// Sentences that explain the figures.
    pub(crate) notes: Vec<String>,
}

impl ReportSection {
    /// An empty section of this run.
    pub(crate) fn new(id: &str, title: impl Into<String>, question: &str, machine_state: &MachineState) -> Self {
        Self {
            version: SECTION_VERSION,
            id: id.to_owned(),
            title: title.into(),
            question: question.to_owned(),
            context: RunContext::new(machine_state),
            tables: Vec::new(),
            plots: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a table, unless it has no rows.
    #[must_use]
    pub(crate) fn with_table(mut self, table: ReportTable) -> Self {
        self.tables.extend((!table.rows.is_empty()).then_some(table));
        self
    }

    /// Adds a plot, unless it has no points.
    #[must_use]
    pub(crate) fn with_plot(mut self, mut plot: ReportPlot) -> Self {
        plot.series.retain(|series| !series.points.is_empty());
        self.plots.extend((!plot.series.is_empty()).then_some(plot));
        self
    }

    /// Adds a sentence that explains the figures.
    #[must_use]
    pub(crate) fn with_note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds sentences that explain the figures.
    #[must_use]
    pub(crate) fn with_notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }
}

/// A summary that makes a section of a report.
pub(crate) trait SectionSource {
    /// Makes the section of this summary.
    fn section(&self) -> ReportSection;
}
