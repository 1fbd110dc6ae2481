//! `Table`: aligned columns without frames, so that `awk` can parse them.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as Grid};

use super::print_line;

/// A table that is built row by row, then printed.
pub(crate) struct Table {
    grid: Grid,
}

impl Table {
    /// Makes a table with these headings. `>` at the start of a heading aligns its column to the right.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let mut grid = Grid::new();
        grid.load_preset(NOTHING);
        grid.set_header(headings.iter().map(|heading| heading.trim_start_matches('>')));
        for (index, heading) in headings.iter().enumerate() {
            let column = grid.column_mut(index).expect("the column of a heading");
            column.set_padding((0, 2));
            if heading.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self { grid }
    }

    /// Adds a row. The number of cells must be the number of headings.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.grid.add_row(cells.into_iter().collect::<Vec<_>>());
    }

    /// Prints the table on standard output.
    pub(crate) fn print(&self) {
        print_line(&self.render());
    }

    /// Formats the whole table.
    pub(crate) fn render(&self) -> String {
        let lines: Vec<String> = self.grid.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_aligned_and_figures_are_right_aligned() {
        let mut table = Table::new(&["NAME", ">BYTES"]);
        table.add_row(["a".to_owned(), "7".to_owned()]);
        table.add_row(["longer".to_owned(), "1234567".to_owned()]);
        assert_eq!(table.render(), "NAME      BYTES\na             7\nlonger  1234567");
    }
}
