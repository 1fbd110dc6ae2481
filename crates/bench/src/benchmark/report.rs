//! `farfork bench report`: makes a page of the results of a directory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::report::error::ReportError;
use crate::report::page::ReportFiles;
use crate::report::page::write_report;
use clap::Args;
use farfork_api::failure::Failure;
use farfork_terminal::output;
use serde_json::json;
use tonic::Code;

use crate::GlobalArgs;

/// Make a report of benchmark results: an HTML page and Markdown tables.
///
/// DIR has the results: files that `farfork bench NAME --json` or `farfork stress NAME --json` printed, with names of your
/// choice that end in `.json`. `farfork bench all` makes such a directory. The command writes `report.html`, `report.md`
/// and the directory `plots` into DIR. The page is one file without scripts, and needs no network.
///
/// Each figure is next to its floor, measured in the same run, and to its published reference, measured on other machines.
/// With --against, it is also next to the same figure of another directory, from the file of the same name. The page says
/// whether the two differ by more than their spreads.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench report results
  farfork bench report results --against before
  mkdir results; farfork bench pool --json > results/pool.json; farfork bench report results

Exit status: 0 written, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchReport {
    /// Directory of the results. The report is written into it.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Compare with the results of this directory.
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
}

impl BenchReport {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let files = make_report(&self.directory, self.against.as_deref())?;
        output::print_report(global.json, || json!(files), || files_text(&files));
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the report of a directory.
pub(super) fn make_report(directory: &Path, against: Option<&Path>) -> Result<ReportFiles, Failure> {
    write_report(directory, against).map_err(|error| explain_report_error(&error))
}

/// Adds the next step to the error of a report.
pub(super) fn explain_report_error(error: &ReportError) -> Failure {
    Failure::new(Code::FailedPrecondition, "report", error).with_next_step(error.next_step())
}

/// The paths of the report, for people.
pub(super) fn files_text(files: &ReportFiles) -> String {
    format!("report: {} and {}", files.html.display(), files.markdown.display())
}
