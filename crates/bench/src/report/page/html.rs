//! The report as a single HTML page without scripts. `maud` escapes all text of results.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::grid::{GridCell, GridColumn, GridColumnKind, TableGrid};
use super::{ReportSource, RunOrigin, duration_text, section_anchor, section_title};
use crate::report::comparison::{COMPARISON_RULE, ComparisonVerdict};
use crate::report::coverage::{PUBLISHED_TABLES, WITHOUT_COUNTERPART};
use crate::report::drawing::draw_plot;
use crate::report::error::ReportError;
use crate::report::results::NamedSection;
use crate::report::section::ReportSection;
use crate::report::table::ReportTable;

const STYLE: &str = include_str!("style.css");

/// Renders the page.
pub(super) fn render(source: ReportSource<'_>) -> Result<String, ReportError> {
    let mut sections = Vec::new();
    for named in &source.results.sections {
        sections.push(section_markup(named, source)?);
    }
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "farfork: benchmark report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (header_markup(source))
                (contents_markup(source))
                main {
                    (coverage_markup(source))
                    @for section in &sections { (section) }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn header_markup(source: ReportSource<'_>) -> Markup {
    let origin = RunOrigin::of(source.results);
    let first = source.results.sections.first().map(|named| &named.section.context);
    html! {
        header {
            h1 { "farfork: benchmark report" }
            dl {
                dt { "Machine" } dd { (origin.machine) }
                dt { "Kernel" } dd { "Linux " (origin.kernel) }
                dt { "Commit" } dd { (origin.commit) }
                @if let Some(context) = first { dt { "First run finished" } dd { (context.finished) } }
                @if let Some(suite) = &source.results.suite {
                    dt { "Time" } dd { (duration_text(suite.seconds())) " for " (suite.runs.len()) " benchmarks" }
                }
                @if let Some(other) = source.against {
                    dt { "Compared with" } dd { (other.directory.display().to_string()) }
                }
            }
            @for run in source.results.suite.iter().flat_map(|suite| suite.failures()) {
                p class="failure" {
                    strong { "Failed: " (run.name) } ": " (run.failure.as_deref().unwrap_or_default())
                    br; code { (run.command) }
                }
            }
            p {
                "Figures are medians; below each is the interval from the 10th to the 90th percentile. The floor is the least \
                 that the same work costs without farfork, measured in the same run. The reference (ref.) is published, and \
                 was measured on other machines. The ratio below a floor or a reference is the figure divided by it."
            }
            @if let Some(other) = source.against {
                p { (other.describe_additional(source.results)) " " (COMPARISON_RULE) }
            }
        }
    }
}

fn contents_markup(source: ReportSource<'_>) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul {
                li { a href="#published-tables" { "Published tables" } }
                @for named in &source.results.sections {
                    li { a href={ "#" (section_anchor(source.results, &named.name)) } { (section_title(source.results, named)) } }
                }
            }
        }
    }
}

/// The published tables, and where the report has them.
fn coverage_markup(source: ReportSource<'_>) -> Markup {
    html! {
        section id="published-tables" {
            h2 { "Published tables" }
            p class="question" { "Which published tables does this report have, and how many of their rows?" }
            div class="scroll" tabindex="0" {
                table {
                    thead { tr { th scope="col" { "table" } th scope="col" class="number" { "rows" } th scope="col" { "section" } } }
                    tbody {
                        @for table in PUBLISHED_TABLES {
                            @let coverage = table.find_coverage(source.results);
                            tr {
                                th scope="row" { (table.title) }
                                td class="number" { (coverage.as_ref().map_or(0, |found| found.rows)) " of " (table.rows) }
                                td {
                                    @match (&coverage, table.exclusion()) {
                                        (Some(found), _) => a href={ "#" (section_anchor(source.results, &found.name)) } { (found.name) },
                                        (None, Some(exclusion)) => (exclusion),
                                        (None, None) => "not measured in this run",
                                    }
                                }
                            }
                        }
                    }
                }
            }
            ul class="notes" { @for (option, reason) in WITHOUT_COUNTERPART { li { (option) ": " (reason) } } }
        }
    }
}

fn section_markup(named: &NamedSection, source: ReportSource<'_>) -> Result<Markup, ReportError> {
    let NamedSection { name, section } = named;
    let other = source.against.and_then(|other| other.results.find(name));
    let context = &section.context;
    let plots = section.plots.iter().map(draw_plot).collect::<Result<Vec<_>, _>>()?;
    Ok(html! {
        section id=(section_anchor(source.results, name)) {
            h2 { (section_title(source.results, named)) }
            p class="question" { (section.question) }
            pre tabindex="0" { code { (context.command) } }
            p class="context" {
                "This run " (context.end_text()) "."
                @if let Some(other) = source.against { " " (other.describe(named)) }
            }
            @for table in &section.tables { (table_markup(table, other)) }
            @if !plots.is_empty() {
                div class="plots" {
                    @for (plot, svg) in section.plots.iter().zip(&plots) {
                        figure role="img" aria-label=(plot.title) { (PreEscaped(svg)) }
                    }
                }
            }
            @if !section.notes.is_empty() {
                ul class="notes" { @for note in &section.notes { li { (note) } } }
            }
        }
    })
}

fn table_markup(table: &ReportTable, other: Option<&ReportSection>) -> Markup {
    let grid = TableGrid::new(table, other);
    html! {
        h3 { (table.title) " " span class="samples" { (grid.samples) } }
        div class="scroll" tabindex="0" {
            table {
                thead { tr { @for column in &grid.columns { (heading_markup(column)) } } }
                tbody {
                    @for row in &grid.rows {
                        tr { @for (column, cell) in grid.columns.iter().zip(row) { (cell_markup(column, cell)) } }
                    }
                }
            }
        }
    }
}

fn heading_markup(column: &GridColumn) -> Markup {
    html! { th scope="col" class=(column_class(column.kind)) { (column.heading) } }
}

fn cell_markup(column: &GridColumn, cell: &GridCell) -> Markup {
    let content = html! {
        (cell.main)
        @if !cell.detail.is_empty() { " " small class=(verdict_class(cell.verdict)) { (cell.detail) } }
    };
    match column.kind {
        GridColumnKind::Text => html! { th scope="row" { (content) } },
        kind => html! { td class=(column_class(kind)) { (content) } },
    }
}

fn column_class(kind: GridColumnKind) -> &'static str {
    match kind {
        GridColumnKind::Text => "text",
        GridColumnKind::Figure => "number figure",
        GridColumnKind::Floor | GridColumnKind::Reference | GridColumnKind::OtherRun => "number compared",
    }
}

fn verdict_class(verdict: Option<ComparisonVerdict>) -> &'static str {
    match verdict {
        Some(ComparisonVerdict::Better) => "better",
        Some(ComparisonVerdict::Worse) => "worse",
        Some(ComparisonVerdict::WithinNoise | ComparisonVerdict::TooFewSamples | ComparisonVerdict::NotJudged)
        | None => "detail",
    }
}
