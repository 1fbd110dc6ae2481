//! Runs the end-to-end tests as a step. Their runner decides which tests failed, because it repeats a test that timed out. It
//! writes counts and failures to two files, which this step reads.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::summary::{JudgedCounts, RunSummary};

/// Name of the step.
pub(super) const NAME: &str = "end-to-end tests";

/// Limit for the end-to-end tests. Their runner ends a run after 45 minutes, and itself at most 15 minutes later, so that it
/// reports what hangs. This limit begins earlier, before cargo starts the runner, and is ten minutes longer.
pub(super) const LIMIT: Duration = Duration::from_secs(70 * 60);

/// The environment variable that selects a subset of the end-to-end tests.
pub(super) const TEST_SET: &str = "FARFORK_TEST_SET";

/// Runs the tests. Returns how many have run; `None` if that is not known, which is a failure.
pub(super) fn run(summary: &mut RunSummary, command: &mut Command, limit: Duration) -> Option<usize> {
    let [failures, counts] = ["failures", "counts"].map(|name| summary.log_of(NAME).with_extension(name));
    for path in [&failures, &counts] {
        // The file may not exist.
        let _ = fs::remove_file(path);
    }
    command.env("FARFORK_FAILURES", &failures).env("FARFORK_COUNTS", &counts);
    let completion = summary.run(NAME, command, limit)?;
    // The runner makes the file only if a test failed.
    let failures = fs::read_to_string(&failures).unwrap_or_default();
    match read_counts(&counts) {
        Ok(counts) => {
            let run_count = counts.passed + counts.failed;
            summary.record_judged(completion, &counts, &failures);
            Some(run_count)
        }
        Err(problem) => {
            summary.record_without_counts(completion, problem, &failures);
            None
        }
    }
}

/// Reads the counts; otherwise returns the problem.
fn read_counts(path: &Path) -> Result<JudgedCounts, String> {
    // The runner does not make the file if it ends early, for example without root.
    let text = fs::read_to_string(path).map_err(|_| "it ended without counts".to_owned())?;
    let state = if text.is_empty() { "empty" } else { "incomplete" };
    JudgedCounts::parse(&text).ok_or_else(|| {
        let path = path.display();
        format!("tests that passed are not counted: {path} is {state}, which a full disk may cause")
    })
}

/// Records a failure: no test was selected. A filter with a typing error must not pass.
pub(super) fn fail_without_tests(summary: &mut RunSummary, filters: &[String]) {
    let filters = if filters.is_empty() { String::new() } else { format!(" by `{}`", filters.join("`, `")) };
    let set = std::env::var(TEST_SET).map_or_else(|_| String::new(), |set| format!(" from the set {TEST_SET}={set}"));
    let reason = format!("no test was selected{filters}{set}: `cargo xtask e2e --list` prints the names");
    summary.fail(NAME, reason, None);
}
