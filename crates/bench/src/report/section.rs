//! `ReportSection`: the results of one run in the form that all benchmarks share. A benchmark makes the section. The JSON
//! document of the run contains it under the key `section`, from which `results` reads it.

use serde::{Deserialize, Serialize};

use super::context::RunContext;
use super::plot::ReportPlot;
use super::table::ReportTable;
use crate::machine::description::MachineState;

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
    pub(crate) fn new(id: &str, title: impl Into<String>, question: &str) -> Self {
        Self {
            version: SECTION_VERSION,
            id: id.to_owned(),
            title: title.into(),
            question: question.to_owned(),
            context: RunContext::new(&MachineState::detect()),
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

#[cfg(test)]
impl ReportSection {
    /// The figure in this row and column of a table.
    pub(crate) fn figure(&self, table: &str, row: &str, column: &str) -> &super::table::ReportFigure {
        let table = self.tables.iter().find(|found| found.id == table).expect("a table");
        let index = table.columns.iter().position(|name| name == column).expect("a column");
        let row = table.rows.iter().find(|cells| cells[0].as_text() == Some(row)).expect("a row");
        row[index].figure().expect("a figure")
    }

    /// Asserts that this section has each row of the published tables that its benchmark measures.
    pub(crate) fn require_published_rows(&self) {
        use super::coverage::PUBLISHED_TABLES;
        use super::results::{NamedSection, ResultDirectory};
        let sections = vec![NamedSection { name: self.id.clone(), section: self.clone() }];
        let results = ResultDirectory { sections, suite: None };
        let tables: Vec<_> = PUBLISHED_TABLES.iter().filter(|table| table.is_of(&self.id)).collect();
        assert!(!tables.is_empty(), "{}", self.id);
        for table in tables {
            let rows = table.find_coverage(&results).map(|coverage| coverage.rows);
            assert_eq!(rows, Some(table.rows), "{}", table.title);
        }
    }
}
