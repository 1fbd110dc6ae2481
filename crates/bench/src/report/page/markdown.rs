//! The report as Markdown: the tables, and images of the plots.

use super::grid::{GridCell, TableGrid};
use super::{PLOTS_DIRECTORY, ReportSource, RunOrigin, duration_text, plot_file, section_anchor};
use crate::report::comparison::COMPARISON_RULE;
use crate::report::coverage::{PUBLISHED_TABLES, WITHOUT_COUNTERPART};
use crate::report::results::NamedSection;

/// Renders the report.
pub(super) fn render(source: ReportSource<'_>) -> String {
    let mut text = "# farfork: benchmark report\n\n".to_owned();
    text += &origin_lines(&RunOrigin::of(source.results));
    if let Some(other) = source.against {
        let directory = escape(&other.directory.display().to_string());
        let additional = escape(&other.describe_additional(source.results));
        text += &format!("\nCompared with {directory}. {additional} {COMPARISON_RULE}\n");
    }
    text += &suite_text(source);
    text += &coverage_text(source);
    for named in &source.results.sections {
        text += &section_text(named, source);
    }
    text
}

fn origin_lines(origin: &RunOrigin) -> String {
    let [machine, kernel, commit] = [&origin.machine, &origin.kernel, &origin.commit].map(|text| escape(text));
    format!("- Machine: {machine}\n- Kernel: Linux {kernel}\n- Commit: {commit}\n")
}

/// The benchmarks that failed, and the time of all benchmarks.
fn suite_text(source: ReportSource<'_>) -> String {
    let Some(suite) = &source.results.suite else { return String::new() };
    let mut text = format!("- Time: {} for {} benchmarks\n", duration_text(suite.seconds()), suite.runs.len());
    for run in suite.failures() {
        let failure = run.failure.as_deref().unwrap_or_default();
        text += &format!("- **Failed: {}**: {}\n", escape(&run.name), escape(failure));
    }
    text
}

fn coverage_text(source: ReportSource<'_>) -> String {
    let mut text = "\n## Published tables\n\n| table | rows | section |\n|---|---:|---|\n".to_owned();
    for table in PUBLISHED_TABLES {
        let (rows, place) = match (table.find_coverage(source.results), table.exclusion()) {
            (Some(coverage), _) => (coverage.rows, coverage.name),
            (None, Some(exclusion)) => (0, exclusion.to_owned()),
            (None, None) => (0, "not measured in this run".to_owned()),
        };
        text += &format!("| {} | {rows} of {} | {} |\n", table.title, table.rows, escape(&place));
    }
    for (option, reason) in WITHOUT_COUNTERPART {
        text += &format!("\n- {}: {reason}", escape(option));
    }
    text.push('\n');
    text
}

fn section_text(named: &NamedSection, source: ReportSource<'_>) -> String {
    let section = &named.section;
    let other = source.against.and_then(|other| other.results.find(&named.name));
    let context = &section.context;
    let mut text =
        format!("\n## {} ({})\n\n{}\n", escape(&section.title), escape(&named.name), escape(&section.question));
    text += &format!("\n    {}\n\n", context.command.replace(char::is_control, " "));
    text += &format!("This run {}.\n", escape(&context.end_text()));
    if let Some(other) = source.against {
        text += &format!("{}\n", escape(&other.describe(named)));
    }
    for table in &section.tables {
        let grid = TableGrid::new(table, other);
        text += &format!("\n**{}** ({})\n\n{}", escape(&table.title), grid.samples, grid_text(&grid));
    }
    for plot in &section.plots {
        let (title, file) = (escape(&plot.title), plot_file(&section_anchor(source.results, &named.name), &plot.id));
        text += &format!("\n![{title}]({PLOTS_DIRECTORY}/{file})\n");
    }
    let notes: Vec<String> = section.notes.iter().map(|note| format!("- {}\n", escape(note))).collect();
    text + "\n" + &notes.concat()
}

fn grid_text(grid: &TableGrid) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let headings = grid.columns.iter().map(|column| escape(&column.heading)).collect();
    let rules = grid.columns.iter().map(|column| if column.kind.is_number() { "---:|" } else { "---|" });
    let rows = grid.rows.iter().map(|row| line(row.iter().map(cell_text).collect()));
    format!("{}|{}\n{}", line(headings), rules.collect::<String>(), rows.collect::<String>())
}

fn cell_text(cell: &GridCell) -> String {
    match (cell.main.as_str(), cell.detail.as_str()) {
        (main, "") => escape(main),
        (main, detail) => format!("{} ({})", escape(main), escape(detail)),
    }
}

/// Escapes text for a cell or a line of Markdown.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '|' | '`' | '*' | '_' | '[' | ']' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn special_characters_of_a_cell_are_escaped() {
        assert_eq!(escape("a|b\nc <x> `*_[d](e)\\"), "a\\|b c &lt;x> \\`\\*\\_\\[d\\](e)\\\\");
    }
}
