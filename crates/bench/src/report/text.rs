//! A section as text for a terminal: each figure with its spread, and next to it its floor and its reference. Columns that
//! are compared with the same values share one column for these.

use super::context::RunContext;
use super::number_text::format_value;
use super::section::ReportSection;
use super::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};

/// Maximum width of a line. A wider table is divided into parts.
pub(crate) const COLUMNS_MAX: usize = 110;

/// Width up to which headings are not broken into lines.
const HEADING_COLUMNS: usize = 10;

/// The space between two columns.
const GAP: &str = "  ";

/// A column of text.
#[derive(Debug)]
struct TextColumn {
    heading: Vec<String>,
    cells: Vec<String>,
    kind: TextColumnKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextColumnKind {
    /// It identifies the rows, and is repeated in each part of a table.
    Key,
    Figure,
    /// The figures to its left are compared with this column, so it stays next to them.
    Compared,
}

/// The values that figures are compared with.
type ComparedValue = fn(&ReportFigure) -> Option<f64>;

/// Renders the machine, the tables and the notes of a section.
pub(crate) fn render(section: &ReportSection) -> String {
    let RunContext { kernel, machine, load_average, .. } = &section.context;
    let mut text = format!("{}\nLinux {kernel}, {machine}, load {load_average:.1}\n\n", section.title);
    for table in &section.tables {
        text += &format!("{}\n\n", render_table(table));
    }
    for note in &section.notes {
        text += &format!("{}\n", break_lines(note, COLUMNS_MAX).join("\n"));
    }
    text
}

/// Renders a table with its title, in parts if it is too wide.
pub(crate) fn render_table(table: &ReportTable) -> String {
    let figures = || table.rows.iter().flatten().filter_map(ReportCell::figure);
    let samples = (figures().map(|figure| figure.samples).min(), figures().map(|figure| figure.samples).max());
    let samples = match samples {
        (Some(1), Some(1)) | (None, _) | (_, None) => String::new(),
        (Some(least), Some(most)) if least == most => format!("; medians of {most} (p10–p90)"),
        (Some(least), Some(most)) => format!("; medians of {least} to {most} (p10–p90)"),
    };
    let columns = text_columns(table);
    let parts: Vec<String> = divide(&columns).into_iter().map(|part| render_part(&part, table.rows.len())).collect();
    let title = break_lines(&format!("{}{samples}", table.title), COLUMNS_MAX).join("\n");
    format!("{title}\n{}", parts.join("\n\n"))
}

fn text_columns(table: &ReportTable) -> Vec<TextColumn> {
    let mut columns = Vec::new();
    let compared: [(&str, ComparedValue); 2] = [("floor", |figure| figure.floor), ("ref.", |figure| figure.reference)];
    for (index, name) in table.columns.iter().enumerate() {
        columns.push(figure_column(table, index, name));
        for (heading, value) in compared {
            let values = |index: usize| -> Vec<Option<f64>> {
                table.rows.iter().map(|row| row.get(index)?.figure().and_then(value)).collect()
            };
            let own = values(index);
            // The last of several columns with the same values has the column that they share.
            if own.iter().all(Option::is_none) || values(index + 1) == own {
                continue;
            }
            let first = (0..index).rev().take_while(|index| values(*index) == own).last().unwrap_or(index);
            let cell = |row: &Vec<ReportCell>| compared_text(&row[first..=index], heading == "ref.", value);
            let cells = table.rows.iter().map(cell).collect();
            columns.push(TextColumn { heading: vec![heading.to_owned()], cells, kind: TextColumnKind::Compared });
        }
    }
    columns
}

/// The column itself, without what its figures are compared with.
fn figure_column(table: &ReportTable, index: usize, name: &str) -> TextColumn {
    let figures = || table.rows.iter().filter_map(move |row| row[index].figure());
    let unit = figures().next().map(|figure| figure.unit.as_str());
    let common = unit.filter(|unit| figures().all(|figure| figure.unit == *unit));
    let cells: Vec<String> = table.rows.iter().map(|row| cell_text(&row[index], common.is_some())).collect();
    let heading = common.filter(|unit| !unit.is_empty()).map_or(name.to_owned(), |unit| format!("{name}, {unit}"));
    let width = cells.iter().map(|cell| width_of(cell)).max().unwrap_or_default();
    let kind = if figures().next().is_none() { TextColumnKind::Key } else { TextColumnKind::Figure };
    TextColumn { heading: break_lines(&heading, width.max(HEADING_COLUMNS)), cells, kind }
}

fn cell_text(cell: &ReportCell, has_common_unit: bool) -> String {
    let figure = match cell {
        ReportCell::Text(text) => return text.clone(),
        ReportCell::Missing => return "–".to_owned(),
        ReportCell::Figure(figure) => figure,
    };
    let mut text = figure.number_text(figure.median);
    if !has_common_unit {
        text += &format!(" {}", figure.unit);
    }
    match figure.detail_text() {
        detail if detail.is_empty() => text,
        detail => format!("{text} ({detail})"),
    }
}

/// The value that figures of a row are compared with, and the worst of their ratios to it. For a reference, also says
/// whether all medians are below or above it.
fn compared_text(cells: &[ReportCell], has_verdict: bool, value: ComparedValue) -> String {
    let figures: Vec<&ReportFigure> = cells.iter().filter_map(ReportCell::figure).collect();
    let Some(compared) = figures.iter().copied().find_map(value) else { return String::new() };
    let ratios = || figures.iter().map(|figure| figure.median / compared);
    let worst = match figures[0].better {
        BetterDirection::Lower => ratios().max_by(f64::total_cmp),
        BetterDirection::Higher => ratios().min_by(f64::total_cmp),
        BetterDirection::Neither => None,
    };
    let text = figures[0].number_text(compared);
    let Some(worst) = worst.filter(|ratio| ratio.is_finite()) else { return text };
    let verdict = match (ratios().all(|ratio| ratio < 1.0), ratios().all(|ratio| ratio >= 1.0)) {
        _ if !has_verdict => "",
        (true, _) => " below",
        (_, true) => " above",
        _ => " mixed",
    };
    format!("{text} ({} ×{verdict})", format_value(worst))
}

/// Divides columns into parts that are not too wide.
fn divide(columns: &[TextColumn]) -> Vec<Vec<&TextColumn>> {
    let keys: Vec<&TextColumn> = columns.iter().take_while(|column| column.kind == TextColumnKind::Key).collect();
    let mut parts = vec![keys.clone()];
    for group in columns[keys.len()..].chunk_by(|_, next| next.kind == TextColumnKind::Compared) {
        let part = parts.last_mut().expect("there is a part");
        let width: usize = part.iter().copied().chain(group).map(|column| column.width() + GAP.len()).sum();
        if width - GAP.len() > COLUMNS_MAX && part.len() > keys.len() {
            parts.push(keys.clone());
        }
        parts.last_mut().expect("there is a part").extend(group);
    }
    parts
}

fn render_part(columns: &[&TextColumn], rows: usize) -> String {
    let heading_lines = columns.iter().map(|column| column.heading.len()).max().unwrap_or_default();
    let line = |cell: &dyn Fn(&TextColumn) -> String| {
        let cells = columns.iter().map(|column| format!("{:>width$}", cell(column), width = column.width()));
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    let heading = |index: usize| {
        line(&|column: &TextColumn| {
            let empty_lines = heading_lines - column.heading.len();
            index.checked_sub(empty_lines).map_or(String::new(), |index| column.heading[index].clone())
        })
    };
    let headings = (0..heading_lines).map(heading);
    headings.chain((0..rows).map(|row| line(&|column| column.cells[row].clone()))).collect::<Vec<_>>().join("\n")
}

impl TextColumn {
    fn width(&self) -> usize {
        self.heading.iter().chain(&self.cells).map(|text| width_of(text)).max().unwrap_or_default()
    }
}

fn width_of(text: &str) -> usize {
    text.chars().count()
}

/// Breaks text at spaces into lines of at most this many columns. A longer word has a line of its own.
fn break_lines(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width_of(line) + 1 + width_of(word) <= columns => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS_MAX, render_table};
    use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
    use crate::samples::Spread;

    fn figure(median: f64, floor: Option<f64>, reference: Option<f64>) -> ReportCell {
        let spread = Spread { count: 3, median, p10: median * 0.9, p90: median * 1.2 };
        let figure = ReportFigure::new(spread, "ms", BetterDirection::Lower);
        ReportCell::Figure(figure.with_floor(floor).with_reference(reference))
    }

    #[test]
    fn columns_with_the_same_reference_share_its_column() {
        let mut table = ReportTable::new("resume", "Resume", &["MiB", "own node", "other node"]);
        let reference = Some(2.0);
        table.add_row([ReportCell::text(1), figure(1.0, Some(0.5), reference), figure(3.0, None, reference)]);
        table.add_row([ReportCell::text(64), figure(1.0, None, reference), figure(1.5, None, reference)]);
        let lines: Vec<String> = render_table(&table).lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "Resume; medians of 3 (p10–p90)");
        assert!(lines[1].ends_with("ref."), "{lines:?}");
        assert!(lines[2].starts_with("  1  1.00 (0.90–1.20)  0.50 (2.00 ×)"), "{lines:?}");
        assert!(lines[2].ends_with("2.00 (1.50 × mixed)") && lines[3].ends_with("2.00 (0.75 × below)"), "{lines:?}");
    }

    #[test]
    fn a_wide_table_is_divided_and_its_rows_are_named_again() {
        let names: Vec<String> = (0..12).map(|index| format!("a figure {index}")).collect();
        let names: Vec<&str> = ["system"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let mut table = ReportTable::new("wide", "Wide", &names);
        table.add_row([ReportCell::text("volume")].into_iter().chain((0..12).map(|_| figure(1.0, None, None))));
        let text = render_table(&table);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX), "{text}");
        assert!(text.matches("volume").count() > 1, "{text}");
    }
}
