//! `FigureTable`: tables of figures with aligned columns, and the text of a figure.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as Grid};

use crate::samples::Spread;

/// Maximum width of a table: terminals have at least this many columns.
#[cfg(test)]
pub(crate) const COLUMNS_MAX: usize = 100;

/// Spaces between two columns.
const GAP: u16 = 2;

/// A table with a title, built row by row.
#[derive(Debug)]
pub(crate) struct FigureTable {
    title: String,
    grid: Grid,
}

impl FigureTable {
    /// A table with these headings.
    pub(crate) fn new(title: &str, headings: &[&str]) -> Self {
        let mut grid = Grid::new();
        grid.load_preset(NOTHING);
        grid.set_header(headings);
        for (index, column) in grid.column_iter_mut().enumerate() {
            column.set_padding((if index == 0 { 0 } else { GAP }, 0));
            column.set_cell_alignment(CellAlignment::Right);
        }
        Self { title: title.to_owned(), grid }
    }

    /// Adds a row with one cell per heading.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.grid.add_row(cells.into_iter().collect::<Vec<_>>());
    }

    /// Title and table.
    pub(crate) fn render(&self) -> String {
        let lines: Vec<String> = self.grid.lines().map(|line| line.trim_end().to_owned()).collect();
        format!("{}\n{}", self.title, lines.join("\n"))
    }
}

/// Formats a figure with two decimals below 10, one below 100, and none from 100. Further digits would be noise.
pub(crate) fn format_figure(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A median, or a dash without samples.
pub(crate) fn format_median(spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |spread| format_figure(spread.median))
}

/// A median with its percentiles.
pub(crate) fn format_spread(spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |Spread { median, p10, p90, .. }| {
        format!("{} ({}–{})", format_figure(median), format_figure(p10), format_figure(p90))
    })
}

#[cfg(test)]
mod tests {
    use super::{FigureTable, format_figure, format_median, format_spread};
    use crate::samples::Spread;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.044, 9.994, 12.34, 669.374, 1246.94].map(format_figure), ["0.04", "9.99", "12.3", "669", "1247"]);
        assert_eq!(format_spread(Spread::from_samples(&[1.0, 2.0, 30.0])), "2.00 (1.00–30.0)");
        assert_eq!((format_median(None), format_spread(None)), ("–".to_owned(), "–".to_owned()));
    }

    #[test]
    fn columns_line_up() {
        let mut table = FigureTable::new("Times, ms", &["MiB", "pause"]);
        table.add_row(["1".to_owned(), "0.30".to_owned()]);
        table.add_row(["1024".to_owned(), "30.1".to_owned()]);
        assert_eq!(table.render(), "Times, ms\n MiB  pause\n   1   0.30\n1024   30.1");
    }
}
