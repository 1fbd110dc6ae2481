//! `TableGrid`: a `ReportTable` as text. A column of figures becomes up to four columns: the figure, its floor, its
//! reference, and the figure of another run. Pure.

use crate::report::comparison::{ComparisonVerdict, FigureComparison, find_counterpart};
use crate::report::number_text::format_value;
use crate::report::section::ReportSection;
use crate::report::table::{ReportCell, ReportFigure, ReportTable};

/// A table as text.
#[derive(Debug)]
pub(super) struct TableGrid {
    pub(super) columns: Vec<GridColumn>,
    pub(super) rows: Vec<Vec<GridCell>>,
    /// The number of samples of the figures, for people.
    pub(super) samples: String,
}

/// A column of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GridColumn {
    pub(super) heading: String,
    pub(super) kind: GridColumnKind,
}

/// The content of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GridColumnKind {
    Text,
    Figure,
    Floor,
    Reference,
    OtherRun,
}

/// A cell: a text or a number, and a detail of the number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GridCell {
    pub(super) main: String,
    /// A spread, a ratio, or a verdict; may be empty.
    pub(super) detail: String,
    pub(super) verdict: Option<ComparisonVerdict>,
}

/// A column of the table, and the kinds of values that its figures have.
struct ColumnShape {
    index: usize,
    name: String,
    /// The unit of all figures of the column; `None` if they differ.
    unit: Option<String>,
    kinds: Vec<GridColumnKind>,
}

impl TableGrid {
    /// Formats a table, with the figures of another run if it is compared.
    pub(super) fn new(table: &ReportTable, other: Option<&ReportSection>) -> Self {
        let is_compared = other.is_some_and(|other| other.tables.iter().any(|found| found.id == table.id));
        let shapes: Vec<_> = (0..table.columns.len()).map(|index| shape_column(table, index, is_compared)).collect();
        let cells = |row: &Vec<ReportCell>| {
            let of_shape = |shape: &ColumnShape| {
                let cell = &row[shape.index];
                let counterpart = other.and_then(|other| find_counterpart(other, &table.id, row, &shape.name));
                // Versions may differ in the unit of a figure.
                let has_unit = |other: &&ReportFigure| cell.figure().is_some_and(|figure| figure.unit == other.unit);
                let counterpart = counterpart.filter(has_unit);
                shape.kinds.iter().map(|kind| cell_text(*kind, cell, shape, counterpart)).collect::<Vec<_>>()
            };
            shapes.iter().flat_map(of_shape).collect()
        };
        Self {
            columns: shapes.iter().flat_map(ColumnShape::columns).collect(),
            rows: table.rows.iter().map(cells).collect(),
            samples: samples_text(table),
        }
    }
}

impl ColumnShape {
    fn columns(&self) -> Vec<GridColumn> {
        let column = |kind: &GridColumnKind| {
            let name = match kind {
                GridColumnKind::Text | GridColumnKind::Figure => self.name.as_str(),
                GridColumnKind::Floor => "floor",
                GridColumnKind::Reference => "ref.",
                GridColumnKind::OtherRun => "other run",
            };
            let unit = self.unit.as_deref().filter(|unit| !unit.is_empty() && *kind != GridColumnKind::Text);
            let heading = unit.map_or(name.to_owned(), |unit| format!("{name}, {unit}"));
            GridColumn { heading, kind: *kind }
        };
        self.kinds.iter().map(column).collect()
    }
}

impl GridColumnKind {
    /// Whether the column has numbers, which are aligned to the right.
    pub(super) fn is_number(self) -> bool {
        self != Self::Text
    }
}

fn shape_column(table: &ReportTable, index: usize, is_compared: bool) -> ColumnShape {
    let figures = || table.rows.iter().filter_map(move |row| row[index].figure());
    let has = |part: fn(&ReportFigure) -> Option<f64>| figures().any(|figure| part(figure).is_some());
    let mut kinds = Vec::new();
    if figures().next().is_none() {
        kinds.push(GridColumnKind::Text);
    } else {
        kinds.push(GridColumnKind::Figure);
        kinds.extend(has(|figure| figure.floor).then_some(GridColumnKind::Floor));
        kinds.extend(has(|figure| figure.reference).then_some(GridColumnKind::Reference));
        kinds.extend(is_compared.then_some(GridColumnKind::OtherRun));
    }
    let unit = figures().next().map(|figure| figure.unit.clone());
    let unit = unit.filter(|unit| figures().all(|figure| figure.unit == *unit));
    ColumnShape { index, name: table.columns[index].clone(), unit, kinds }
}

fn cell_text(kind: GridColumnKind, cell: &ReportCell, shape: &ColumnShape, other: Option<&ReportFigure>) -> GridCell {
    let figure = match cell {
        ReportCell::Text(text) if matches!(kind, GridColumnKind::Text | GridColumnKind::Figure) => {
            return GridCell { main: text.clone(), ..GridCell::default() };
        }
        ReportCell::Figure(figure) => figure,
        ReportCell::Missing if kind == GridColumnKind::Figure => {
            return GridCell { main: "–".to_owned(), ..GridCell::default() };
        }
        ReportCell::Text(_) | ReportCell::Missing => return GridCell::default(),
    };
    let number = |value: f64| match &shape.unit {
        Some(_) => figure.number_text(value),
        None => format!("{} {}", format_value(value), figure.unit),
    };
    let compared = |value: Option<f64>, ratio: Option<f64>| GridCell {
        main: value.map(number).unwrap_or_default(),
        detail: ratio.map(|ratio| format!("{} ×", format_value(ratio))).unwrap_or_default(),
        verdict: None,
    };
    match kind {
        GridColumnKind::Text | GridColumnKind::Figure => {
            GridCell { main: number(figure.median), detail: figure.detail_text(), verdict: None }
        }
        GridColumnKind::Floor => compared(figure.floor, figure.floor_ratio()),
        GridColumnKind::Reference => compared(figure.reference, figure.reference_ratio()),
        GridColumnKind::OtherRun => other.map_or(GridCell::default(), |other| {
            let FigureComparison { other_median, verdict } = FigureComparison::new(figure, other);
            let detail = verdict.text(&figure.unit).to_owned();
            GridCell { main: number(other_median), detail, verdict: Some(verdict) }
        }),
    }
}

fn samples_text(table: &ReportTable) -> String {
    let samples = || table.rows.iter().flatten().filter_map(ReportCell::figure).map(|figure| figure.samples);
    match (samples().min(), samples().max()) {
        (Some(least), Some(most)) if least == most => format!("n = {most}"),
        (Some(least), Some(most)) => format!("n = {least} to {most}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{GridColumnKind, TableGrid};
    use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};

    #[test]
    fn a_column_has_only_the_parts_of_its_figures() {
        let mut table = ReportTable::new("t", "", &["MiB", "pause", "prepare"]);
        let figure = |value| ReportFigure::single(value, "ms", BetterDirection::Lower);
        table.add_row([ReportCell::text(1), Some(figure(1.0).with_floor(Some(0.5))).into(), Some(figure(2.0)).into()]);
        table.add_row([ReportCell::text(4), ReportCell::Missing, Some(figure(1234.5)).into()]);
        let grid = TableGrid::new(&table, None);
        let kinds: Vec<_> = grid.columns.iter().map(|column| column.kind).collect();
        use GridColumnKind::{Figure, Floor, Text};
        assert_eq!(kinds, [Text, Figure, Floor, Figure]);
        let text = |row: usize| grid.rows[row].iter().map(|cell| cell.main.as_str()).collect::<Vec<_>>();
        assert_eq!((text(0), text(1)), (vec!["1", "1.00", "0.50", "2.00"], vec!["4", "–", "", "1,234"]));
        assert_eq!((grid.rows[0][2].detail.as_str(), grid.samples.as_str()), ("2.00 ×", "n = 1"));
    }

    #[test]
    fn figures_of_different_units_show_their_unit() {
        let mut table = ReportTable::new("t", "", &["figure", "farfork"]);
        for unit in ["ms", "KiB"] {
            let figure = ReportFigure::single(3.0, unit, BetterDirection::Lower);
            table.add_row([ReportCell::text(unit), Some(figure).into()]);
        }
        let grid = TableGrid::new(&table, None);
        assert_eq!((grid.columns[1].heading.as_str(), grid.rows[1][1].main.as_str()), ("farfork", "3.00 KiB"));
    }
}
