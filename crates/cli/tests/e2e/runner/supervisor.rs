//! The supervisor: runs the tests in lanes. Then it repeats the tests that timed out. It removes everything at the end.

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::lane::Lane;
use super::log_directory;
use super::outcome::{Failure, FailureKind};
use super::report::{self, RunReport};
use super::run_context::RunContext;
use super::signals;
use crate::harness::{print_error, print_line};
use crate::test::Test;

/// Time limit for all tests together. A run takes less than half of it on two idle CPUs.
const RUN_LIMIT: Duration = Duration::from_secs(45 * 60);

/// Longest time from the time limit of the run to its end: the last tests and their clusters are removed.
const END_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Number of lanes that continue on a busy machine. With fewer, a run exceeds [`RUN_LIMIT`].
const BUSY_LANES_MIN: usize = 2;

/// Maximum number of bytes that a test may write. A test that writes without end would fill the disk.
const OUTPUT_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of tests that are run again after a timeout. More timeouts mean that the machine or the product is
/// broken.
const RETRIES_MAX: usize = 8;

/// Longest wait until a message of a run that is being ended is printed.
const MESSAGE_TIME: Duration = Duration::from_millis(200);

/// The exit status when a test failed, as in libtest.
const FAILED_STATUS: u8 = 101;

/// A test to run.
#[derive(Clone)]
pub(crate) struct Selection {
    pub(crate) name: String,
    pub(crate) test: &'static Test,
    /// Whether no other test may run at the same time.
    pub(crate) is_exclusive: bool,
}

/// Settings that the runner's own tests change.
pub(crate) struct RunSettings {
    /// Maximum number of processes and threads of a run.
    pub(crate) pids_max: u64,
    /// Longest wait until processes that a test has killed have disappeared.
    pub(crate) leak_limit: Duration,
    /// Time limit for all tests together. Does not apply to long tests.
    pub(crate) run_limit: Duration,
    /// Time after `run_limit` in which the run must end.
    pub(crate) end_limit: Duration,
    /// Maximum number of bytes that a test may write to standard output and standard error.
    pub(crate) output_bytes_max: u64,
}

impl Default for RunSettings {
    /// The longest tests have thousands of running children. Some processes are children of daemons, which are slow to
    /// reap them.
    fn default() -> Self {
        Self {
            pids_max: 32 << 10,
            leak_limit: Duration::from_secs(60),
            run_limit: RUN_LIMIT,
            end_limit: END_LIMIT,
            output_bytes_max: OUTPUT_BYTES_MAX,
        }
    }
}

/// Runs the tests in `lanes_count` lanes, then the exclusive ones one by one. Prints the results.
pub(crate) fn run(tests: Vec<Selection>, lanes_count: usize, settings: &RunSettings) -> ExitCode {
    // Users can extend some tests, which then have a longer time limit of their own.
    let is_long = |test: &Test| test.is_long() || test.limit() > RUN_LIMIT;
    let has_long_tests = tests.iter().any(|selection| is_long(selection.test));
    let run = match RunContext::create(has_long_tests, settings) {
        Ok(run) => Arc::new(run),
        Err(error) => {
            print_error(format_args!("the tests cannot be started: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let ended = Arc::clone(&run);
    let clean_up = move || {
        ended.set_ending();
        let held = ended.lock_workers();
        print_briefly("\nthe run is ended by a signal: everything that it started is killed".to_owned());
        let problems = ended.remove();
        ended.logs.remove_if_empty();
        if !problems.is_empty() {
            print_briefly(format!("not removed: {}", problems.join("\nnot removed: ")));
        }
        // A lane that waits for the lock must not continue, so the lock is never released.
        std::mem::forget(held);
    };
    signals::end_run_by_signal(clean_up).expect("signals can be waited for");
    end_hanging_run(&run, settings.end_limit);

    print_line(format_args!("running {} tests", tests.len()));
    let report = Mutex::new(RunReport::default());
    let (exclusive, others): (Vec<_>, Vec<_>) = tests.into_iter().partition(|selection| selection.is_exclusive);
    let timed_out = Mutex::new(Vec::new());
    run_lanes(&run, others, lanes_count, &report, &timed_out);
    run_lanes(&run, exclusive, 1, &report, &timed_out);
    let timed_out = timed_out.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    retry(&run, timed_out, &mut report);
    let held = run.lock_workers();
    let remains = run.remove();
    // From here on, a signal must end the run even if nothing reads the report.
    drop(held);
    add_remains(&run, remains, &mut report);
    run.logs.remove_if_empty();
    match report.conclude(run.logs.path()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED_STATUS),
        Err(error) => {
            print_error(format_args!("the report cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Ends this process if the run still exists `limit` after its deadline: the runner hangs, or nothing reads its output. The
/// janitor removes everything.
fn end_hanging_run(run: &RunContext, limit: Duration) {
    let Some(left) = run.time_left() else { return };
    thread::spawn(move || {
        thread::sleep(left + limit);
        print_briefly("\nthe run is ended: it hangs, or its output is not read".to_owned());
        std::process::exit(FAILED_STATUS.into());
    });
}

/// Prints a message of a run that is being ended. Does not wait for long: the write blocks while the reader of a full pipe, such
/// as a pager, does not read.
fn print_briefly(message: String) {
    let (sender, is_printed) = mpsc::channel();
    let print = move || {
        print_error(message);
        let _ = sender.send(());
    };
    drop(thread::Builder::new().spawn(print));
    let _ = is_printed.recv_timeout(MESSAGE_TIME);
}

/// A test that timed out, with the failure of its first run.
struct TimedOutTest {
    selection: Selection,
    failure: Failure,
    log: PathBuf,
}

/// Runs tests in `count` lanes. Adds tests that must run again to `timed_out`. A timeout may show that the machine is
/// busy, so that lane ends if [`BUSY_LANES_MIN`] others continue.
fn run_lanes(
    run: &RunContext,
    tests: Vec<Selection>,
    count: usize,
    report: &Mutex<RunReport>,
    timed_out: &Mutex<Vec<TimedOutTest>>,
) {
    let queue = Mutex::new(VecDeque::from(tests));
    let work = || {
        let mut lane = Lane::new(run);
        loop {
            let next = lock(&queue).pop_front();
            let Some(selection) = next else { break };
            let log = run.logs.path_of(&selection.name, "");
            let begin = Instant::now();
            let outcome = lane.run_test(&selection, &log);
            let time = begin.elapsed();
            match outcome {
                Ok(()) => lock(report).add_passed(&selection.name, time),
                Err(failure) if failure.kind == FailureKind::TimedOut && lock(timed_out).len() < RETRIES_MAX => {
                    report::print_retry(&selection.name, &failure, time);
                    let mut timed_out = lock(timed_out);
                    timed_out.push(TimedOutTest { selection, failure, log });
                    if timed_out.len() + BUSY_LANES_MIN <= count {
                        break;
                    }
                }
                Err(failure) => lock(report).add_failed(&selection.name, &failure, &log, time),
            }
        }
        add_remains(run, lane.stop(), &mut lock(report));
    };
    thread::scope(|scope| {
        for _ in 0..count.max(1) {
            scope.spawn(work);
        }
    });
}

/// Repeats each test that timed out, alone on a new worker and cluster.
fn retry(run: &RunContext, tests: Vec<TimedOutTest>, report: &mut RunReport) {
    if !tests.is_empty() {
        print_line(format_args!("\nrunning {} tests again that timed out", tests.len()));
    }
    for TimedOutTest { selection, failure: first, log: first_log } in tests {
        if run.time_left() == Some(Duration::ZERO) {
            report.add_failed(&selection.name, &first, &first_log, Duration::ZERO);
            continue;
        }
        let log = run.logs.path_of(&selection.name, ".again");
        let (begin, mut lane) = (Instant::now(), Lane::new(run));
        let outcome = lane.run_test(&selection, &log);
        match outcome {
            Ok(()) => report.add_flaky(&selection.name, &first, &first_log, begin.elapsed()),
            Err(mut failure) => {
                failure.reason.push_str(&format!("\nthe first time: {} ({})", first.first_line(), first_log.display()));
                report.add_failed(&selection.name, &failure, &log, begin.elapsed());
            }
        }
        add_remains(run, lane.stop(), report);
    }
}

fn add_remains(run: &RunContext, remains: Vec<String>, report: &mut RunReport) {
    if remains.is_empty() {
        return;
    }
    let log = run.logs.path().join("runner.remains.log");
    let text: String = remains.iter().map(|remnant| format!("{remnant}\n")).collect();
    let written = log_directory::open_log(&log).and_then(|mut log| log.write_all(text.as_bytes()));
    written.unwrap_or_else(|error| print_error(format_args!("{}: {error}", log.display())));
    report.add_run_failure("runner::remains", &format!("left on the machine: {}", remains.join("; ")), &log);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
