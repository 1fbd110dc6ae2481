//! Collects the results of a run's steps. Every step runs, even after a failed one. The end of the output names each
//! failure.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::cargo::{self, CommandCompletion};
use super::end_to_end;
use super::output::TestFailure;
use crate::terminal::print_line;

/// The error of a run with this many failed tests or steps. `main` does not print it: each failure was already named, and
/// the line with the counts must be the last one.
#[derive(Debug)]
pub(crate) struct RunFailed(usize);

impl fmt::Display for RunFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.0)
    }
}

impl std::error::Error for RunFailed {}

/// A failure and the log with its output.
struct LoggedFailure {
    failure: TestFailure,
    log: Option<PathBuf>,
}

/// The counts of a runner that evaluates its tests itself.
pub(super) struct JudgedCounts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    flaky: usize,
}

impl JudgedCounts {
    /// Parses `passed=… failed=… flaky=…`; `None` if a count is missing.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let count = |name: &str| -> Option<usize> {
            let value = text.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value?.parse().ok()
        };
        // The line end shows that the last number is complete.
        let is_complete = text.ends_with('\n');
        let counts = Self { passed: count("passed")?, failed: count("failed")?, flaky: count("flaky")? };
        is_complete.then_some(counts)
    }
}

/// The results of the steps so far.
pub(super) struct RunSummary {
    /// The directory of the steps' logs.
    logs: PathBuf,
    durations: Vec<(&'static str, Duration)>,
    failures: Vec<LoggedFailure>,
    /// Failures that a step's own runner reported, one per line.
    judged_failures: Vec<String>,
    /// Lines to repeat at the end, such as the names of flaky tests.
    notes: Vec<String>,
    passed: usize,
}

impl RunSummary {
    pub(super) fn new(logs: &Path) -> Self {
        let (durations, failures, judged_failures, notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { logs: logs.to_owned(), durations, failures, judged_failures, notes, passed: 0 }
    }

    /// Runs a step that is a function. An error is a failure.
    pub(super) fn check(&mut self, name: &'static str, action: impl FnOnce() -> Result<()>) {
        let outcome = self.time(name, action);
        if let Err(error) = outcome {
            self.fail(name, format!("{error:#}"), None);
        }
    }

    /// Runs a step that is a command; returns whether it succeeded. Its tests are counted, and failed ones are named.
    pub(super) fn command(&mut self, name: &'static str, command: &mut Command, limit: Duration) -> bool {
        self.run(name, command, limit).is_some_and(|completion| self.record(name, completion))
    }

    /// Runs commands in parallel as one step; returns whether all succeeded. Each has a log with its own name.
    pub(super) fn commands(
        &mut self,
        name: &'static str,
        commands: Vec<(&'static str, Command)>,
        limit: Duration,
    ) -> bool {
        let start = |(name, mut command): (&'static str, Command)| {
            let log = self.log_of(name);
            (name, thread::spawn(move || cargo::run(&mut command, &log, limit)))
        };
        let threads: Vec<_> = commands.into_iter().map(start).collect();
        let outcomes: Vec<_> = self.time(name, || {
            threads.into_iter().map(|(name, thread)| (name, thread.join().expect("a step does not panic"))).collect()
        });
        let mut is_success = true;
        for (name, outcome) in outcomes {
            is_success &= match outcome {
                Ok(completion) => self.record(name, completion),
                Err(error) => {
                    self.fail(name, format!("{error:#}"), None);
                    false
                }
            };
        }
        is_success
    }

    /// Runs a command without evaluating it; `None` if it cannot be run, which is a failure.
    pub(super) fn run(
        &mut self,
        name: &'static str,
        command: &mut Command,
        limit: Duration,
    ) -> Option<CommandCompletion> {
        let log = self.log_of(name);
        let outcome = self.time(name, || cargo::run(command, &log, limit));
        outcome.map_err(|error| self.fail(name, format!("{error:#}"), None)).ok()
    }

    /// Records the output and status of a command; returns whether it succeeded.
    pub(super) fn record(&mut self, name: &'static str, completion: CommandCompletion) -> bool {
        let is_success = completion.is_success();
        let CommandCompletion { status, log, output } = completion;
        self.passed += output.passed;
        let is_named = !output.failures.is_empty();
        for failure in output.failures {
            self.failures.push(LoggedFailure { failure, log: Some(log.clone()) });
        }
        match status {
            None => self.fail(name, "it ran out of time, and was killed".to_owned(), Some(log)),
            Some(status) if !is_success && !is_named => {
                let reason = output.last_error.unwrap_or_else(|| format!("it failed ({status})"));
                self.fail(name, reason, Some(log));
            }
            Some(_) => {}
        }
        is_success
    }

    /// Records the result of a runner that evaluates its tests itself, with a line for each failure.
    pub(super) fn record_judged(&mut self, completion: CommandCompletion, counts: &JudgedCounts, failures: &str) {
        self.passed += counts.passed;
        self.judged_failures.extend(failures.lines().map(str::to_owned));
        if counts.flaky > 0 {
            self.notes.push(format!("{} flaky tests, named in {}", counts.flaky, completion.log.display()));
        }
        if !completion.is_success() && failures.is_empty() {
            let reason = completion.output.last_error.unwrap_or_else(|| "it failed without a failed test".to_owned());
            self.fail(end_to_end::NAME, reason, Some(completion.log));
        }
    }

    /// Records the result of such a runner that has not written its counts; `problem` describes it.
    pub(super) fn record_without_counts(&mut self, completion: CommandCompletion, problem: String, failures: &str) {
        self.judged_failures.extend(failures.lines().map(str::to_owned));
        if completion.status.is_none() || !completion.output.failures.is_empty() {
            self.record(end_to_end::NAME, completion);
            return;
        }
        let error = completion.output.last_error.map_or_else(String::new, |error| format!("; {error}"));
        self.fail(end_to_end::NAME, format!("{problem}{error}"), Some(completion.log));
    }

    /// Returns whether no test has passed and nothing has failed.
    pub(super) fn has_no_results(&self) -> bool {
        self.passed == 0 && self.failures.is_empty() && self.judged_failures.is_empty()
    }

    /// The directory of the steps' logs.
    pub(super) fn logs(&self) -> &Path {
        &self.logs
    }

    pub(super) fn fail(&mut self, name: &str, reason: String, log: Option<PathBuf>) {
        let reason = reason.lines().next().unwrap_or_default().to_owned();
        self.failures.push(LoggedFailure { failure: TestFailure { name: name.to_owned(), reason }, log });
    }

    pub(super) fn log_of(&self, name: &str) -> PathBuf {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        self.logs.join(format!("{name}.log"))
    }

    /// Prints durations, failures, and in the last line the numbers of passed and failed tests.
    ///
    /// # Errors
    /// If anything failed.
    pub(super) fn finish(self) -> Result<()> {
        print_line("\n== durations");
        for (name, duration) in &self.durations {
            print_line(format_args!("{:>10}  {name}", seconds(*duration)));
        }
        self.notes.iter().for_each(print_line);
        let failed = self.failures.len() + self.judged_failures.len();
        if failed > 0 {
            print_line("\n== failures");
        }
        for LoggedFailure { failure: TestFailure { name, reason }, log } in &self.failures {
            let log = log.as_ref().map_or_else(String::new, |log| format!(" (log: {})", log.display()));
            print_line(format_args!("{name}: {reason}{log}"));
        }
        self.judged_failures.iter().for_each(print_line);
        print_line(format_args!("\n{} passed, {failed} failed", self.passed));
        if failed == 0 { Ok(()) } else { Err(RunFailed(failed).into()) }
    }

    fn time<T>(&mut self, name: &'static str, action: impl FnOnce() -> T) -> T {
        print_line(format_args!("\n== {name}"));
        let begin = Instant::now();
        let outcome = action();
        print_line(format_args!("== {name}: {}", seconds(begin.elapsed())));
        self.durations.push((name, begin.elapsed()));
        outcome
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::shell;

    const LIMIT: Duration = Duration::from_secs(30);

    fn summary(name: &str) -> RunSummary {
        RunSummary::new(&std::env::temp_dir().join(format!("farfork-xtask-{}-{name}", std::process::id())))
    }

    /// Returns whether a process runs. A zombie does not count.
    fn is_running(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn wait_killed(pid: &str) {
        let give_up = Instant::now() + LIMIT;
        while is_running(pid) {
            assert!(Instant::now() < give_up, "process {pid} was not killed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn finish(summary: RunSummary) -> Option<usize> {
        let logs = summary.logs.clone();
        let outcome = summary.finish();
        std::fs::remove_dir_all(logs).unwrap();
        outcome.err().map(|error| error.downcast::<RunFailed>().unwrap().0)
    }

    #[test]
    fn every_step_runs_and_every_failure_counts() {
        let mut summary = summary("steps");
        let tests = "echo '---- first ----'; echo wrong; echo 'test result: FAILED. 2 passed; 1 failed'; exit 101";
        assert!(!summary.command("tests", &mut shell(tests), LIMIT));
        assert!(!summary.command("lints", &mut shell("echo 'error: unused'; exit 1"), LIMIT));
        assert!(summary.command("more tests", &mut shell("echo 'test result: ok. 5 passed; 0 failed'"), LIMIT));
        assert_eq!(summary.passed, 7);
        let reasons: Vec<_> = summary.failures.iter().map(|one| one.failure.reason.as_str()).collect();
        assert_eq!(reasons, ["wrong", "error: unused"]);
        assert_eq!(finish(summary), Some(2));
    }

    #[test]
    fn results_of_concurrent_commands_are_all_counted() {
        let mut summary = summary("lanes");
        let passed = "echo 'test result: ok. 5 passed; 0 failed'";
        // Each ends only after the other has started.
        let [first, second] = [("a", "b"), ("b", "a")].map(|(own, other)| {
            let at = summary.logs.display().to_string();
            let script = format!("touch '{at}/{own}'; until [ -e '{at}/{other}' ]; do sleep 0.01; done; {passed}");
            shell(&script)
        });
        std::fs::create_dir_all(&summary.logs).unwrap();
        assert!(summary.commands("both", vec![("first", first), ("second", second)], LIMIT));
        let failed = "echo '---- one ----'; echo wrong; echo 'test result: FAILED. 1 passed; 1 failed'; exit 101";
        assert!(!summary.commands("one fails", vec![("third", shell(passed)), ("fourth", shell(failed))], LIMIT));
        assert_eq!((summary.passed, summary.failures.len()), (16, 1));
        assert_eq!(finish(summary), Some(1));
    }

    #[test]
    fn a_run_without_failure_succeeds() {
        let mut summary = summary("success");
        summary.command("tests", &mut shell("echo 'test result: ok. 5 passed; 0 failed'"), LIMIT);
        assert_eq!(finish(summary), None);
    }

    /// One process has left the tree of the step, but not its process group.
    #[test]
    fn a_step_that_times_out_is_killed_with_its_processes() {
        let mut summary = summary("hang");
        let pid_file = summary.logs.join("pid");
        let script = format!("(sleep 100 & echo $! > '{0}'); sleep 100 & echo $! >> '{0}'; wait", pid_file.display());
        // On a busy machine the shell may need more time to start the other processes.
        let mut limit = Duration::from_millis(500);
        let count = || std::fs::read_to_string(&pid_file).unwrap_or_default().lines().count();
        while count() < 2 {
            assert!(limit < 2 * LIMIT, "the shell does not start");
            assert!(!summary.command("hang", &mut shell(&script), limit));
            limit *= 2;
        }
        std::fs::read_to_string(&pid_file).unwrap().lines().for_each(wait_killed);
        assert!(summary.failures.iter().all(|one| one.failure.reason.contains("out of time")));
        assert!(finish(summary) >= Some(1));
    }

    /// The janitor of the end-to-end tests removes everything after their runner was killed.
    #[test]
    fn a_step_that_times_out_keeps_its_janitor() {
        let mut summary = summary("janitor");
        let place = summary.logs.display().to_string();
        let start = |name: &str| format!("'{place}/{name}' 100 > /dev/null 2>&1 & echo $! > '{place}/{name}.pid'; ");
        let copy = |name: &str| format!("cp \"$(command -v sleep)\" '{place}/{name}'; ");
        let names = ["test-janitor", "test-runner"];
        let script = format!("{}{}sleep 100", names.map(copy).concat(), names.map(start).concat());
        let logs = summary.logs.clone();
        let pid_of = |name: &str| std::fs::read_to_string(logs.join(format!("{name}.pid"))).unwrap_or_default();
        let kill_all = || names.map(|name| Command::new("kill").args(["-KILL", pid_of(name).trim()]).status().unwrap());
        // On a busy machine the shell may need more time to start the other processes.
        let mut limit = Duration::from_secs(1);
        while !pid_of(names[1]).ends_with('\n') {
            assert!(limit < 2 * LIMIT, "the shell does not start");
            kill_all();
            assert!(!summary.command("hang", &mut shell(&script), limit));
            limit *= 2;
        }
        let pids = names.map(pid_of);
        wait_killed(&pids[1]);
        let is_kept = is_running(&pids[0]);
        kill_all();
        assert!(is_kept, "the janitor was killed");
        assert!(finish(summary) >= Some(1));
    }

    #[test]
    fn counts_of_a_judging_runner_are_taken_over() {
        let mut summary = summary("judged");
        let completion = summary.run("tests", &mut shell("exit 1"), LIMIT).unwrap();
        let counts = JudgedCounts::parse("passed=470 failed=1 flaky=2\n").unwrap();
        summary.record_judged(completion, &counts, "a::b: not equal (log: /tmp/x)\n");
        assert_eq!((summary.passed, summary.notes.len()), (470, 1));
        assert_eq!(finish(summary), Some(1));
    }
}
