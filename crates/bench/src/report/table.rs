//! `ReportTable`: a table whose cells are text or figures. Text identifies a row, so it is never a result. A figure has
//! its spread, its floor and its reference; `page::grid` formats it.

use serde::{Deserialize, Serialize};

use super::number_text::format_value;
use crate::figure::Figure;
use crate::samples::Spread;

/// A table of figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReportTable {
    /// Unique in its section, and the same in each run.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    /// Each row has one cell per column.
    pub(crate) rows: Vec<Vec<ReportCell>>,
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReportCell {
    /// A parameter that identifies the row, such as a size or a name.
    Text(String),
    /// A measured figure.
    Figure(ReportFigure),
    /// Not measured.
    Missing,
}

/// Whether a lower figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BetterDirection {
    Lower,
    Higher,
    /// A property of the workload, such as its size.
    Neither,
}

/// A figure with its spread, and the values that it is compared with, all in one unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReportFigure {
    pub(crate) median: f64,
    pub(crate) p10: f64,
    pub(crate) p90: f64,
    pub(crate) samples: usize,
    pub(crate) unit: String,
    pub(crate) better: BetterDirection,
    /// The minimum that the same work costs without farfork, measured in the same run.
    pub(crate) floor: Option<f64>,
    /// A published figure, measured on other machines.
    pub(crate) reference: Option<f64>,
    /// The median of farfork divided by the median of this floor or peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) farfork_ratio: Option<f64>,
}

/// The name of the column with hosts, in a table by hosts.
pub(crate) const HOST_COLUMN: &str = "host";

/// The name of the row of all hosts together, in a table by hosts. For a time, it has the slowest one.
const SUM_ROW: &str = "all";

/// Adds the row of all hosts to the rows of each host. Without hosts, there are no rows.
pub(crate) fn with_sum_row<'a, T>(hosts: impl IntoIterator<Item = (&'a str, T)>, all: T) -> Vec<(&'a str, T)> {
    let mut rows: Vec<_> = hosts.into_iter().collect();
    if !rows.is_empty() {
        rows.push((SUM_ROW, all));
    }
    rows
}

impl ReportTable {
    pub(crate) fn new(id: &str, title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { id: id.to_owned(), title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row, unless it has no figures.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = ReportCell>) {
        let cells: Vec<_> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "a row of `{}` must have a cell for each column", self.id);
        if cells.iter().any(|cell| cell.figure().is_some()) {
            self.rows.push(cells);
        }
    }
}

impl ReportCell {
    pub(crate) fn text(text: impl ToString) -> Self {
        Self::Text(text.to_string())
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Figure(_) | Self::Missing => None,
        }
    }

    pub(crate) fn figure(&self) -> Option<&ReportFigure> {
        match self {
            Self::Figure(figure) => Some(figure),
            Self::Text(_) | Self::Missing => None,
        }
    }
}

impl From<Option<ReportFigure>> for ReportCell {
    fn from(figure: Option<ReportFigure>) -> Self {
        figure.map_or(Self::Missing, Self::Figure)
    }
}

impl ReportFigure {
    /// A figure for which lower is better.
    pub(crate) fn lower(spread: Spread, unit: &str) -> Self {
        Self::new(spread, unit, BetterDirection::Lower)
    }

    /// A figure for which higher is better.
    pub(crate) fn higher(spread: Spread, unit: &str) -> Self {
        Self::new(spread, unit, BetterDirection::Higher)
    }

    pub(crate) fn new(spread: Spread, unit: &str, better: BetterDirection) -> Self {
        let Spread { count, median, p10, p90 } = spread;
        let (floor, reference, farfork_ratio) = (None, None, None);
        Self { median, p10, p90, samples: count, unit: unit.to_owned(), better, floor, reference, farfork_ratio }
    }

    /// A figure with a single sample.
    pub(crate) fn single(value: f64, unit: &str, better: BetterDirection) -> Self {
        Self::new(Spread { count: 1, median: value, p10: value, p90: value }, unit, better)
    }

    /// The samples of a figure.
    pub(crate) fn of(figure: Figure, spread: Spread) -> Self {
        Self::new(spread, figure.unit, figure.better)
    }

    #[must_use]
    pub(crate) fn with_floor(self, floor: Option<f64>) -> Self {
        Self { floor, ..self }
    }

    #[must_use]
    pub(crate) fn with_reference(self, reference: Option<f64>) -> Self {
        Self { reference, ..self }
    }

    #[must_use]
    pub(crate) fn with_farfork_ratio(self, farfork_ratio: Option<f64>) -> Self {
        Self { farfork_ratio, ..self }
    }

    /// The text of a value with the unit of this figure. A count has no decimals.
    pub(crate) fn number_text(&self, value: f64) -> String {
        if self.unit.is_empty() && value.fract() == 0.0 { format!("{value}") } else { format_value(value) }
    }

    /// The spread, and the ratio of farfork's median to a floor; empty if there are neither.
    pub(crate) fn detail_text(&self) -> String {
        let has_spread = self.samples > 1 && self.p10 < self.p90;
        let spread = has_spread.then(|| format!("{}–{}", format_value(self.p10), format_value(self.p90)));
        let ratio = self.farfork_ratio.map(|ratio| format!("{} ×", format_value(ratio)));
        spread.into_iter().chain(ratio).collect::<Vec<_>>().join("; ")
    }

    /// The median divided by the floor.
    pub(crate) fn floor_ratio(&self) -> Option<f64> {
        self.ratio_to(self.floor)
    }

    /// The median divided by the reference.
    pub(crate) fn reference_ratio(&self) -> Option<f64> {
        self.ratio_to(self.reference)
    }

    /// Divides the median by `other`; `None` for a property of the workload.
    fn ratio_to(&self, other: Option<f64>) -> Option<f64> {
        let is_judged = self.better != BetterDirection::Neither;
        other.filter(|other| *other != 0.0 && is_judged).map(|other| self.median / other)
    }
}

#[cfg(test)]
mod tests {
    use super::{BetterDirection, ReportCell, ReportFigure, ReportTable};

    #[test]
    fn a_cell_keeps_its_figure_through_json() {
        let figure =
            ReportFigure::single(3.0, "ms", BetterDirection::Lower).with_floor(Some(1.5)).with_reference(Some(6.0));
        assert_eq!((figure.floor_ratio(), figure.reference_ratio()), (Some(2.0), Some(0.5)));
        let cells = [ReportCell::text(64), ReportCell::Figure(figure), ReportCell::Missing];
        let document = serde_json::to_value(&cells).unwrap();
        assert_eq!((&document[0]["text"], &document[2]), (&"64".into(), &"missing".into()), "{document}");
        assert_eq!(document[1]["figure"]["better"], "lower", "{document}");
        let cells_read: [ReportCell; 3] = serde_json::from_value(document).unwrap();
        assert_eq!(cells_read, cells);
    }

    #[test]
    fn a_row_without_figures_is_left_out() {
        let mut table = ReportTable::new("times", "Times", &["MiB", "pause"]);
        table.add_row([ReportCell::text(1), ReportCell::Missing]);
        table.add_row([ReportCell::text(4), Some(ReportFigure::single(1.0, "ms", BetterDirection::Lower)).into()]);
        assert_eq!((table.rows.len(), &table.rows[0][0]), (1, &ReportCell::text(4)));
    }
}
