//! Runs the suite: each benchmark as a process. The document of a benchmark is written into a file, and its outcome into
//! `suite.json`. If a benchmark fails, the others still run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::child_run::{ChildOutcome, ChildRun};
use super::entry::{SUITE_ENTRIES, SuiteEntry, SuiteScale};
use super::outcome::{SuiteOutcome, SuiteRunOutcome};
use crate::error::BenchError;
use crate::report::context::command_line;

/// The benchmarks to run, and where their results are written.
#[derive(Debug, Clone)]
pub(crate) struct SuiteParameters {
    /// The length of the runs.
    pub(crate) scale: SuiteScale,
    /// Names of benchmarks; all if empty.
    pub(crate) only: Vec<String>,
    /// The directory of the results. It is created.
    pub(crate) directory: PathBuf,
}

impl SuiteParameters {
    /// Whether the benchmark with this name is run.
    pub(crate) fn includes(&self, name: &str) -> bool {
        let is_wanted = self.only.is_empty() || self.only.iter().any(|wanted| wanted == name);
        is_wanted && SUITE_ENTRIES.iter().any(|entry| entry.name == name)
    }
}

/// An event to show to the user.
#[derive(Debug)]
pub(crate) enum SuiteEvent<'a> {
    /// A benchmark starts.
    Started {
        /// Its number, from 1.
        number: usize,
        /// The number of all.
        count: usize,
        /// Its name.
        name: &'a str,
        /// Its command line.
        command: &'a str,
        /// The time since the start of the suite.
        elapsed: Duration,
    },
    /// A benchmark has ended.
    Ended(&'a SuiteRunOutcome),
}

/// Runs the benchmarks. `program` is the path of `farfork-bench`. `is_interrupted` is polled.
///
/// # Errors
/// [`BenchError::Interrupted`], or the directory cannot be written.
pub(crate) fn run_suite(
    plan: &SuiteParameters,
    program: &Path,
    is_interrupted: &dyn Fn() -> bool,
    show: &mut dyn FnMut(SuiteEvent<'_>),
) -> Result<SuiteOutcome, BenchError> {
    let directory = &plan.directory;
    fs::create_dir_all(directory).map_err(|cause| BenchError::File { path: directory.clone(), cause })?;
    let entries: Vec<_> = SUITE_ENTRIES.iter().filter(|entry| plan.includes(entry.name)).collect();
    let mut outcome = SuiteOutcome::read(directory);
    let started = Instant::now();
    for (index, entry) in entries.iter().enumerate() {
        let arguments = entry.arguments(plan.scale);
        let command = command_line(&arguments);
        let (number, count, elapsed) = (index + 1, entries.len(), started.elapsed());
        show(SuiteEvent::Started { number, count, name: entry.name, command: &command, elapsed });
        let run_started = Instant::now();
        let failure = run_entry(entry, &arguments, program, directory, is_interrupted)?;
        let run = SuiteRunOutcome {
            name: entry.name.to_owned(),
            command,
            seconds: run_started.elapsed().as_secs_f64(),
            failure,
        };
        show(SuiteEvent::Ended(&run));
        outcome.record(run);
        outcome.write(directory)?;
    }
    Ok(outcome)
}

/// Runs one benchmark, and writes its document. Returns why it failed. First removes the results of an earlier run, so
/// that a report does not show them as this run's.
fn run_entry(
    entry: &SuiteEntry,
    arguments: &[String],
    program: &Path,
    directory: &Path,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<Option<String>, BenchError> {
    let (result, samples) = (directory.join(entry.result_file()), directory.join(entry.samples_file()));
    remove_file(&result)?;
    remove_file(&samples)?;
    let outcome = ChildRun::start(program, arguments, directory)?.wait(is_interrupted)?;
    if outcome.is_interrupted {
        remove_file(&samples)?;
        return Err(BenchError::Interrupted);
    }
    let failure = failure_text(&outcome);
    if let Some(document) = outcome.document.filter(|document| document.get("section").is_some()) {
        let text = serde_json::to_string_pretty(&document).expect("a document serialises");
        fs::write(&result, text + "\n").map_err(|cause| BenchError::File { path: result, cause })?;
    }
    Ok(failure)
}

/// Why a benchmark failed; `None` if it did not. A failed stress test has its reasons in `outcome.faults` of its
/// document.
fn failure_text(outcome: &ChildOutcome) -> Option<String> {
    let document = outcome.document.as_ref();
    let error = document.and_then(|document| document["error"].as_str());
    let has_section = document.is_some_and(|document| document.get("section").is_some());
    match (outcome.status.success(), error) {
        (true, _) if has_section => None,
        (true, _) => Some("it printed no section of results".to_owned()),
        (false, Some(error)) => Some(error.to_owned()),
        (false, None) => Some(format!("{}{}", outcome.status, faults_text(document))),
    }
}

/// The faults of a stress test.
fn faults_text(document: Option<&Value>) -> String {
    let faults = document.and_then(|document| document["outcome"]["faults"].as_array());
    let faults = faults.into_iter().flatten().filter_map(Value::as_str);
    faults.map(|fault| format!("; {fault}")).collect()
}

fn remove_file(path: &Path) -> Result<(), BenchError> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(BenchError::File { path: path.to_owned(), cause })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{SuiteEvent, SuiteParameters, SuiteScale, run_suite};
    use crate::machine::Machine;
    use crate::machine::namespace::NamespaceMachine;

    /// A script in the place of `farfork-bench`.
    fn program(directory: &std::path::Path, script: &'static str) -> std::path::PathBuf {
        let machine: &dyn Machine = &NamespaceMachine::own(directory);
        machine.write_file("bench.sh", "755", script.as_bytes()).unwrap()
    }

    fn plan(directory: &std::path::Path, only: &[&str]) -> SuiteParameters {
        let only = only.iter().map(|&name| name.to_owned()).collect();
        SuiteParameters { scale: SuiteScale::Quick, only, directory: directory.join("results") }
    }

    #[test]
    fn one_failure_does_not_end_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let script = "#!/bin/sh\n\
            case $2 in\n\
            pool) echo '{\"error\": \"no root\"}'; exit 1 ;;\n\
            tree) echo '{\"section\": {}}' ;;\n\
            fork) echo '{\"section\": {}, \"outcome\": {\"faults\": [\"slow\"]}}'; exit 1 ;;\n\
            esac";
        let (program, plan) =
            (program(directory.path(), script), plan(directory.path(), &["tree", "pool", "stress-fork"]));
        let mut started = Vec::new();
        let outcome = run_suite(&plan, &program, &|| false, &mut |event| {
            if let SuiteEvent::Started { name, number, count, .. } = event {
                started.push(format!("{number}/{count} {name}"));
            }
        });
        let outcome = outcome.unwrap();
        assert_eq!(started, ["1/3 stress-fork", "2/3 pool", "3/3 tree"]);
        let failures: Vec<_> = outcome.runs.iter().map(|run| run.failure.as_deref()).collect();
        assert_eq!(failures, [Some("exit status: 1; slow"), Some("no root"), None]);
        let has = |name: &str| plan.directory.join(name).exists();
        assert_eq!(["stress-fork.json", "pool.json", "tree.json", "suite.json"].map(has), [true, false, true, true]);
    }

    #[test]
    fn an_interrupted_run_leaves_no_samples() {
        let directory = tempfile::tempdir().unwrap();
        let program = program(directory.path(), "#!/bin/sh\necho '{}' > pool.jsonl; echo '{\"section\": {}}'");
        let plan = plan(directory.path(), &["pool"]);
        let outcome = run_suite(&plan, &program, &|| true, &mut |_| {});
        assert!(matches!(outcome, Err(crate::error::BenchError::Interrupted)), "{outcome:?}");
        assert!(!plan.directory.join("pool.jsonl").exists() && !plan.directory.join("pool.json").exists());
    }
}
