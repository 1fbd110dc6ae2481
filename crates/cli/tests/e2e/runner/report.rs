//! `RunReport`: prints each test as it ends, then the failures, the flaky tests and the counts. Also writes failures
//! and counts to files for `cargo xtask test`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::outcome::Failure;
use crate::harness::print_line;

/// Environment variable with the path of a file to which each failure adds a line.
const FAILURES_VARIABLE: &str = "FARFORK_FAILURES";

/// Environment variable with the path of a file to which the counts are written.
const COUNTS_VARIABLE: &str = "FARFORK_COUNTS";

/// Maximum number of flaky tests. More are no coincidence, and fail the run.
const FLAKY_MAX: usize = 3;

/// The results of all tests so far.
#[derive(Debug, Default)]
pub(super) struct RunReport {
    passed_count: usize,
    failures: Vec<FailedTest>,
    flaky: Vec<FailedTest>,
    /// Why a failure could not be written to the file of `FAILURES_VARIABLE`.
    write_error: Option<io::Error>,
}

/// A test that failed at least once.
#[derive(Debug)]
struct FailedTest {
    name: String,
    reason: String,
    log: PathBuf,
}

impl RunReport {
    pub(super) fn add_passed(&mut self, name: &str, time: Duration) {
        print_test(name, "ok", time);
        self.passed_count += 1;
    }

    pub(super) fn add_failed(&mut self, name: &str, failure: &Failure, log: &Path, time: Duration) {
        self.push_failure(FailedTest::new(name, failure, log));
        print_test(name, "FAILED", time);
        print_line(format_args!("    {}\n", failure.reason.trim_end().replace('\n', "\n    ")));
    }

    /// Adds a test that timed out, and passed when it ran again.
    pub(super) fn add_flaky(&mut self, name: &str, first: &Failure, log: &Path, time: Duration) {
        print_test(name, "ok, flaky", time);
        self.passed_count += 1;
        self.flaky.push(FailedTest::new(name, first, log));
    }

    /// Adds a failure of the run that is not due to a single test.
    pub(super) fn add_run_failure(&mut self, name: &str, reason: &str, log: &Path) {
        self.push_failure(FailedTest::new(name, &Failure::wrong(reason), log));
        print_line(format_args!("{name}: {reason}"));
    }

    /// Adds a failure, and writes it to the file at once: a run whose output is not read is killed later.
    fn push_failure(&mut self, test: FailedTest) {
        let written = append_to_failures(&format!("{}\n", test.line()));
        self.write_error = self.write_error.take().or(written.err());
        self.failures.push(test);
    }

    /// Prints the end of the report. Returns whether the run has succeeded. The last line has the counts, even if the files
    /// cannot be written.
    pub(super) fn conclude(mut self, logs: &Path) -> io::Result<bool> {
        if self.flaky.len() > FLAKY_MAX {
            let reason =
                format!("{} tests passed only when they were run again, at most {FLAKY_MAX} may", self.flaky.len());
            self.add_run_failure("runner::flaky_tests", &reason, logs);
        }
        if !self.failures.is_empty() {
            print_line("\nfailed:");
            print_indented(&self.failures);
        }
        if !self.flaky.is_empty() {
            print_line("\nflaky (timed out, and passed when they were run again):");
            print_indented(&self.flaky);
        }
        let counts = write_named(COUNTS_VARIABLE, |path| {
            let (passed, failed, flaky) = (self.passed_count, self.failures.len(), self.flaky.len());
            fs::write(path, format!("passed={passed} failed={failed} flaky={flaky}\n"))
        });
        print_line(format_args!("\n{} passed, {} failed", self.passed_count, self.failures.len()));
        // The file exists and is empty if no test failed.
        let failures = self.write_error.map_or_else(|| append_to_failures(""), Err);
        failures.and(counts).map(|()| self.failures.is_empty())
    }
}

impl FailedTest {
    fn new(name: &str, failure: &Failure, log: &Path) -> Self {
        Self { name: name.to_owned(), reason: failure.first_line(), log: log.to_owned() }
    }

    fn line(&self) -> String {
        format!("{}: {} (log: {})", self.name, self.reason, self.log.display())
    }
}

/// Writes the file that an environment variable names, if it is set.
fn write_named(variable: &str, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let Some(path) = std::env::var_os(variable).map(PathBuf::from) else { return Ok(()) };
    let advice = format!("set {variable} to a file that can be written");
    write(&path).map_err(|error| io::Error::other(format!("{}: {error}; {advice}", path.display())))
}

/// Appends to the file of `FAILURES_VARIABLE`, which is made if it is missing.
fn append_to_failures(text: &str) -> io::Result<()> {
    write_named(FAILURES_VARIABLE, |path| {
        let mut file = File::options().create(true).append(true).open(path)?;
        file.write_all(text.as_bytes())
    })
}

/// Reports a test that will run again.
pub(super) fn print_retry(name: &str, failure: &Failure, time: Duration) {
    print_test(name, "timed out, will be run again", time);
    print_line(format_args!("    {}", failure.first_line()));
}

fn print_indented(tests: &[FailedTest]) {
    tests.iter().for_each(|test| print_line(format_args!("    {}", test.line())));
}

fn print_test(name: &str, outcome: &str, time: Duration) {
    print_line(format_args!("test {name} ... {outcome} ({:.1} s)", time.as_secs_f64()));
}
