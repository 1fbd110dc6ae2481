//! `farfork bench all`: runs all benchmarks, and makes a report of their results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::error::BenchError;
use crate::report::results::check_other_results;
use crate::suite::entry::SuiteScale;
use crate::suite::entry::suite_names;
use crate::suite::outcome::SuiteOutcome;
use crate::suite::run::SuiteEvent;
use crate::suite::run::SuiteParameters;
use crate::suite::run::run_suite;
use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValuesParser;
use farfork_api::failure::Failure;
use farfork_terminal::interrupt::InterruptFlag;
use farfork_terminal::output;
use serde_json::json;
use tonic::Code;

use super::report::{explain_report_error, files_text, make_report};
use crate::GlobalArgs;
use crate::machine::source::{HostOptions, MachineNeeds, MachineSource};

/// Run all benchmarks and stress tests, and make a report of their results.
///
/// Each benchmark is a process of its own. This command writes the result of each benchmark into the directory of --out as
/// NAME.json, and the samples as NAME.jsonl. Then it makes the report, as `farfork bench report` does. The report has the
/// command line of each benchmark, so that you can repeat a benchmark alone. If a benchmark fails, the others still run,
/// and the report names the failure.
///
/// With --quick, everything takes at most ten minutes and 16 GiB on two processors; otherwise several times as long. With
/// --only, the results of other benchmarks in the directory stay as they are.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench all --quick                              everything, in less than ten minutes
  farfork bench all --only fork,pool --out results       two benchmarks
  farfork bench all --quick --out after && farfork bench report after --against before

Exit status: 0 measured, 1 a benchmark failed or was interrupted, 2 wrong usage.")]
pub(crate) struct BenchAll {
    /// Take few samples of everything.
    #[arg(long)]
    quick: bool,
    /// Run only these benchmarks.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = PossibleValuesParser::new(suite_names()))]
    only: Vec<String>,
    /// Directory of the results. It is created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "farfork-bench")]
    out: PathBuf,
}

impl BenchAll {
    pub(crate) fn run(self, hosts: &HostOptions, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let needs = MachineNeeds {
            command: "bench all",
            root_reason: "its benchmarks trace processes, and make namespaces and control groups",
            hosts_refusal: Some("some of its benchmarks need this machine; name hosts for single ones"),
        };
        MachineSource::open(hosts, needs, global)?;
        let program = std::env::current_exe().context("readlink of /proc/self/exe")?;
        let scale = if self.quick { SuiteScale::Quick } else { SuiteScale::Full };
        let plan = SuiteParameters { scale, only: self.only, directory: self.out };
        let checked = check_other_results(&plan.directory, |name| plan.includes(name));
        checked.map_err(|error| explain_report_error(&error))?;
        let interruption = InterruptFlag::watch()?;
        let outcome = run_suite(&plan, &program, &|| interruption.is_set(), &mut show_event);
        let outcome = outcome.map_err(|error| explain(error, &plan.directory))?;
        let files = make_report(&plan.directory, None)?;
        let document = || json!({ "suite": outcome, "report": files });
        output::print_report(global.json, document, || format!("{}{}", outcome_text(&outcome), files_text(&files)));
        Ok(if outcome.has_failures() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Progress is printed to standard error, since standard output may be a document.
fn show_event(event: SuiteEvent<'_>) {
    match event {
        SuiteEvent::Started { number, count, name, command, elapsed } => {
            eprintln!("[{number} of {count}, {} so far] {name}: {command}", duration_text(elapsed));
        }
        SuiteEvent::Ended(run) => {
            let how = run.failure.as_ref().map_or("measured".to_owned(), |failure| format!("FAILED: {failure}"));
            eprintln!("    {how} in {}", duration_text(Duration::from_secs_f64(run.seconds)));
        }
    }
}

fn outcome_text(outcome: &SuiteOutcome) -> String {
    let failures = outcome.failures().map(|run| format!("failed: {}\n", run.name));
    let measured = outcome.runs.len() - outcome.failures().count();
    let time = duration_text(Duration::from_secs_f64(outcome.seconds()));
    format!("{measured} of {} benchmarks measured in {time}\n{}", outcome.runs.len(), failures.collect::<String>())
}

fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min {} s", seconds / 60, seconds % 60) }
}

/// Adds the next step to the error of an interrupted run.
fn explain(error: BenchError, directory: &Path) -> anyhow::Error {
    if !matches!(error, BenchError::Interrupted) {
        return error.into();
    }
    let next_step = format!("`farfork bench report {}` shows what was measured until then", directory.display());
    Failure::new(Code::Cancelled, "the benchmarks", "they were interrupted").with_next_step(next_step).into()
}
