//! The pages of a report: `html` and `markdown` show the same results. `grid` has the text of each cell for both.

mod grid;
mod html;
mod markdown;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::drawing::draw_plot_file;
use super::error::ReportError;
use super::results::{NamedSection, ResultDirectory};

/// The directory of the plots, in the directory of the report.
const PLOTS_DIRECTORY: &str = "plots";

/// The results of a report, and optionally those of another run for comparison.
#[derive(Debug, Clone, Copy)]
struct ReportSource<'a> {
    results: &'a ResultDirectory,
    against: Option<&'a OtherRun<'a>>,
}

/// Another run, with which the run of a report is compared.
#[derive(Debug)]
struct OtherRun<'a> {
    results: ResultDirectory,
    directory: &'a Path,
}

impl OtherRun<'_> {
    /// Returns a sentence about the other run of a section: when and where it was made, or that it is missing.
    fn describe(&self, named: &NamedSection) -> String {
        match self.results.find(&named.name) {
            Some(other) => format!("Other run {}.", other.context.end_text_next_to(&named.section.context)),
            None => format!("The other run has no {}.json.", named.name),
        }
    }

    /// A sentence about the results that only the other run has; empty if there are none.
    fn describe_additional(&self, results: &ResultDirectory) -> String {
        let others = self.results.sections.iter().map(|named| named.name.as_str());
        let names: Vec<_> = others.filter(|name| results.find(name).is_none()).collect();
        if names.is_empty() { String::new() } else { format!("Only the other run has: {}.", names.join(", ")) }
    }
}

/// The files of a report.
#[derive(Debug, Serialize)]
pub(crate) struct ReportFiles {
    /// The page.
    pub(crate) html: PathBuf,
    /// The tables.
    pub(crate) markdown: PathBuf,
}

/// The distinct machines, kernels and commits of all runs. Runs that were added to the directory may differ in these.
#[derive(Debug)]
struct RunOrigin {
    machine: String,
    kernel: String,
    commit: String,
}

impl RunOrigin {
    fn of(results: &ResultDirectory) -> Self {
        let contexts = || results.sections.iter().map(|named| &named.section.context);
        Self {
            machine: join_distinct(contexts().map(|context| context.machine.as_str())),
            kernel: join_distinct(contexts().map(|context| context.kernel.as_str())),
            commit: join_distinct(contexts().map(|context| context.commit.as_deref().unwrap_or("unknown"))),
        }
    }
}

/// Joins the distinct texts, in the order of their first occurrence.
fn join_distinct<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for text in texts {
        if !distinct.contains(&text) {
            distinct.push(text);
        }
    }
    distinct.join("; ")
}

/// Writes the report of a directory, optionally compared with another directory.
///
/// # Errors
/// Results cannot be read, or pages cannot be written.
pub(crate) fn write_report(directory: &Path, against: Option<&Path>) -> Result<ReportFiles, ReportError> {
    let results = ResultDirectory::read(directory)?;
    let read_other = |directory| Ok(OtherRun { results: ResultDirectory::read(directory)?, directory });
    let other = against.map(read_other).transpose()?;
    let source = ReportSource { results: &results, against: other.as_ref() };
    let files = ReportFiles { html: directory.join("report.html"), markdown: directory.join("report.md") };
    write_plots(&results, &directory.join(PLOTS_DIRECTORY))?;
    write_file(&files.html, &html::render(source)?)?;
    write_file(&files.markdown, &markdown::render(source))?;
    Ok(files)
}

fn write_plots(results: &ResultDirectory, directory: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(directory).map_err(|cause| ReportError::Unwritable { path: directory.to_owned(), cause })?;
    for named in &results.sections {
        for plot in &named.section.plots {
            let file = plot_file(&section_anchor(results, &named.name), &plot.id);
            write_file(&directory.join(file), &draw_plot_file(plot)?)?;
        }
    }
    Ok(())
}

/// The name of a plot's file, which begins with the anchor of its section. The ids were read from files, so special
/// characters are replaced. The name has no path separators.
fn plot_file(section: &str, plot: &str) -> String {
    format!("{section}-{}.svg", anchor(plot))
}

/// The title of a section. Sections with the same title, such as those of a plan's rounds, have the names of their files, too.
fn section_title(results: &ResultDirectory, named: &NamedSection) -> String {
    let title = &named.section.title;
    match results.sections.iter().filter(|other| other.section.title == *title).count() {
        ..2 => title.clone(),
        _ => format!("{title} ({})", named.name),
    }
}

/// The anchor of a section. Sections whose names differ only in replaced characters get a number.
fn section_anchor(results: &ResultDirectory, name: &str) -> String {
    let own = anchor(name);
    let earlier = results.sections.iter().take_while(|named| named.name != name);
    match earlier.filter(|named| anchor(&named.name) == own).count() {
        0 => own,
        count => format!("{own}.{}", count + 1),
    }
}

/// Replaces characters that URLs and paths treat specially.
fn anchor(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    name.chars().map(keep).collect()
}

fn write_file(path: &Path, text: &str) -> Result<(), ReportError> {
    fs::write(path, text).map_err(|cause| ReportError::Unwritable { path: path.to_owned(), cause })
}

/// A duration for people.
fn duration_text(seconds: f64) -> String {
    match seconds {
        ..10.0 => format!("{seconds:.1} s"),
        10.0..120.0 => format!("{seconds:.0} s"),
        _ => format!("{} min {} s", (seconds / 60.0) as u64, (seconds % 60.0) as u64),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{duration_text, join_distinct, plot_file, write_report};
    use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
    use crate::report::section::ReportSection;
    use crate::report::table::{ReportCell, ReportFigure, ReportTable};
    use crate::samples::Spread;

    /// A section with text that a page must escape.
    fn section(median: f64) -> ReportSection {
        let spread = Spread { count: 5, median, p10: median * 0.9, p90: median * 1.1 };
        let mut table = ReportTable::new("times", "Times <b> | all", &["size", "prepare"]);
        let figure = ReportFigure::lower(spread, "ms").with_floor(Some(1.0)).with_reference(Some(20.0));
        table.add_row([ReportCell::text("<script>alert(1)</script>"), Some(figure).into()]);
        let (x, y) = (PlotAxis::new("size", "MiB"), PlotAxis::new("time", "ms"));
        let points = [PlotPoint::of_spread(1.0, spread)];
        let plot = ReportPlot::new(PlotKind::BySize, "../p", "Plot </svg>", x, y);
        ReportSection::new("fork", "Fork & <i>", "How \"long\"?")
            .with_table(table)
            .with_plot(plot.with_series("<own>", SeriesRole::Measured, points))
            .with_note("A note <img src=x>.")
    }

    fn results(median: f64) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let document = serde_json::json!({ "benchmark": "fork", "section": section(median) });
        fs::write(directory.path().join("fork.json"), document.to_string()).unwrap();
        directory
    }

    #[test]
    fn pages_escape_all_text_of_files() {
        let directory = results(10.0);
        let files = write_report(directory.path(), None).unwrap();
        let (html, markdown) = (fs::read_to_string(files.html).unwrap(), fs::read_to_string(files.markdown).unwrap());
        for raw in ["<script>alert", "<i>", "<img", "<own>", "Plot </svg>"] {
            assert!(!html.contains(raw), "{raw} in {html}");
            assert!(!markdown.contains(raw), "{raw} in {markdown}");
        }
        assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{html}");
        assert!(markdown.contains("Times &lt;b> \\| all"), "{markdown}");
        assert!(!html.contains("http://") || html.matches("http://").count() == html.matches("xmlns=").count());
        assert!(directory.path().join("plots/fork----p.svg").exists());
    }

    #[test]
    fn a_figure_has_its_floor_its_reference_and_both_ratios() {
        let directory = results(10.0);
        let files = write_report(directory.path(), None).unwrap();
        let markdown = fs::read_to_string(files.markdown).unwrap();
        let row = "| &lt;script>alert(1)&lt;/script> | 10.0 (9.00–11.0) | 1.00 (10.0 ×) | 20.0 (0.50 ×) |";
        assert!(markdown.contains(row), "{markdown}");
        assert!(markdown.contains("| size | prepare, ms | floor, ms | ref., ms |"), "{markdown}");
        assert!(markdown.contains("|---|---:|---:|---:|"), "{markdown}");
    }

    #[test]
    fn a_comparison_has_the_other_median_and_a_verdict() {
        let (directory, other) = (results(10.0), results(5.0));
        let files = write_report(directory.path(), Some(other.path())).unwrap();
        let (html, markdown) = (fs::read_to_string(files.html).unwrap(), fs::read_to_string(files.markdown).unwrap());
        assert!(markdown.contains("| 5.00 (slower) |") && markdown.contains("do not overlap"), "{markdown}");
        assert!(html.contains("slower") && html.contains("do not overlap"), "{html}");
        assert!(html.contains("Other run finished") && markdown.contains("Other run finished"), "{html}");
        let files = write_report(other.path(), Some(directory.path())).unwrap();
        assert!(fs::read_to_string(files.markdown).unwrap().contains("| 10.0 (faster) |"));
    }

    #[test]
    fn a_comparison_names_another_machine_and_missing_results() {
        let (directory, other) = (results(10.0), results(5.0));
        let mut elsewhere = section(5.0);
        elsewhere.context.machine = "7 × Other <CPU>, 1 GiB".to_owned();
        let document = serde_json::json!({ "section": elsewhere }).to_string();
        fs::write(other.path().join("fork.json"), &document).unwrap();
        fs::write(other.path().join("pool.json"), &document).unwrap();
        fs::write(directory.path().join("tree.json"), &document).unwrap();
        let files = write_report(directory.path(), Some(other.path())).unwrap();
        let (html, markdown) = (fs::read_to_string(files.html).unwrap(), fs::read_to_string(files.markdown).unwrap());
        for page in [&html, &markdown] {
            assert!(page.contains("on another machine: 7 × Other &lt;CPU"), "{page}");
            assert!(page.contains("The other run has no tree.json."), "{page}");
            assert!(page.contains("Only the other run has: pool."), "{page}");
        }
        assert_eq!(markdown.matches("another machine").count(), 1, "{markdown}");
    }

    /// A carriage return ends a line of Markdown, and so a block of code.
    #[test]
    fn a_command_is_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let mut section = section(1.0);
        section.context.command = "farfork bench function 'a\r<img src=x>\n<b>.py'".to_owned();
        fs::write(directory.path().join("fork.json"), serde_json::json!({ "section": section }).to_string()).unwrap();
        let markdown = fs::read_to_string(write_report(directory.path(), None).unwrap().markdown).unwrap();
        assert!(markdown.contains("\n    farfork bench function 'a <img src=x> <b>.py'\n"), "{markdown}");
    }

    #[test]
    fn similar_names_have_different_anchors_and_plots() {
        let directory = tempfile::tempdir().unwrap();
        let document = serde_json::json!({ "section": section(1.0) }).to_string();
        for name in ["ä b.json", "ü-b.json"] {
            fs::write(directory.path().join(name), &document).unwrap();
        }
        let files = write_report(directory.path(), None).unwrap();
        let (html, markdown) = (fs::read_to_string(files.html).unwrap(), fs::read_to_string(files.markdown).unwrap());
        for anchor in ["--b", "--b.2"] {
            assert!(
                html.contains(&format!("id=\"{anchor}\"")) && html.contains(&format!("href=\"#{anchor}\"")),
                "{html}"
            );
            let file = format!("plots/{anchor}----p.svg");
            assert!(markdown.contains(&file) && directory.path().join(&file).exists(), "{markdown}");
        }
    }

    /// As the rounds of a plan.
    #[test]
    fn sections_with_the_same_title_have_their_names_too() {
        let directory = results(10.0);
        let title = |directory: &tempfile::TempDir| {
            let files = write_report(directory.path(), None).unwrap();
            let html = fs::read_to_string(files.html).unwrap();
            html.matches("Fork &amp; &lt;i&gt; (").count()
        };
        assert_eq!(title(&directory), 0);
        fs::copy(directory.path().join("fork.json"), directory.path().join("fork-round-2.json")).unwrap();
        assert_eq!(title(&directory), 4, "in the contents, and above each section");
    }

    #[test]
    fn names_become_file_names_without_directories() {
        assert_eq!(join_distinct(["a", "b", "a"].into_iter()), "a; b");
        assert_eq!(plot_file("fork", "../../etc/passwd"), "fork-------etc-passwd.svg");
        assert_eq!([3.25, 61.0, 200.0].map(duration_text), ["3.2 s", "61 s", "3 min 20 s"]);
    }
}
