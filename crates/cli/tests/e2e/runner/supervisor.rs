//! The supervisor: creates the control groups and the directory of the run, and runs the tests in lanes. Then it
//! repeats the tests that timed out. It removes everything at the end.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use super::group_set::{GroupSet, RunLimits};
use super::janitor::Janitor;
use super::lane::Lane;
use super::outcome::{Failure, FailureKind};
use super::report::{self, RunReport};
use super::{cleanup, identity, signals};
use crate::test::Test;

/// Time limit for all tests together. A run takes less than half of it on two idle CPUs.
const RUN_LIMIT: Duration = Duration::from_secs(45 * 60);

/// Maximum number of tests that are run again after a timeout. More timeouts mean that the machine or the product is
/// broken.
const RETRIES_MAX: usize = 8;

/// Number of failed starts of the shared cluster in a row after which it is not started again.
const CLUSTER_FAILURES_MAX: usize = 3;

/// The exit status when a test failed, as in libtest.
const FAILED_STATUS: u8 = 101;

/// Environment variable with the directory for logs.
const LOGS_VARIABLE: &str = "FARFORK_TEST_LOGS";

/// Time for which logs of earlier runs are kept.
const LOGS_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

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
}

impl Default for RunSettings {
    /// The longest tests have thousands of running children. Some processes are children of daemons, which are slow to
    /// reap them.
    fn default() -> Self {
        Self { pids_max: 32 << 10, leak_limit: Duration::from_secs(60), run_limit: RUN_LIMIT }
    }
}

/// State that all lanes of a run share.
pub(super) struct RunContext {
    pub(super) name: String,
    pub(super) directory: PathBuf,
    pub(super) groups: GroupSet,
    /// Time at which the run must end; `None` for long tests.
    deadline: Option<Instant>,
    /// Longest wait until processes that a test has killed have disappeared.
    pub(super) leak_limit: Duration,
    janitor: Janitor,
    logs: PathBuf,
    workers_count: AtomicUsize,
    /// Number of failed starts of the shared cluster since the last successful one.
    cluster_failures_count: AtomicUsize,
    /// Held while workers are started or removed. When a signal ends the run, it is held forever.
    workers_lock: Mutex<()>,
}

impl RunContext {
    fn create(has_long_tests: bool, settings: &RunSettings) -> io::Result<Self> {
        let parent = env::temp_dir();
        cleanup::remove_dead_runs(&parent)?;
        let name = identity::own_name()?;
        let logs = make_logs_directory(&name)?;
        let groups = GroupSet::create(&name, run_limits(settings.pids_max)?)?;
        let directory = parent.join(&name);
        fs::create_dir(&directory)?;
        let janitor = Janitor::start(&name)?;
        let deadline = (!has_long_tests).then(|| Instant::now() + settings.run_limit);
        Ok(Self {
            name,
            directory,
            groups,
            deadline,
            leak_limit: settings.leak_limit,
            janitor,
            logs,
            workers_count: AtomicUsize::new(0),
            cluster_failures_count: AtomicUsize::new(0),
            workers_lock: Mutex::new(()),
        })
    }

    pub(super) fn next_worker_name(&self) -> String {
        format!("w{}", self.workers_count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Records whether the shared cluster of a test started.
    pub(super) fn note_cluster_start(&self, has_started: bool) {
        if has_started {
            self.cluster_failures_count.store(0, Ordering::Relaxed);
        } else {
            self.cluster_failures_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether the shared cluster has failed so often that tests that need it are not run.
    pub(super) fn has_no_cluster(&self) -> bool {
        self.cluster_failures_count.load(Ordering::Relaxed) >= CLUSTER_FAILURES_MAX
    }

    /// Takes the lock that must be held while workers are started or removed. Blocks forever if a signal has ended the
    /// run.
    pub(super) fn lock_workers(&self) -> MutexGuard<'_, ()> {
        self.workers_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time until the run must end; `None` for long tests.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    fn log_path(&self, test: &str, suffix: &str) -> PathBuf {
        let path = self.logs.join(format!("{}{suffix}.log", test.replace("::", ".")));
        // An earlier run may have left a log with this name.
        let _ = fs::remove_file(&path);
        path
    }

    /// Kills and removes everything of the run. Returns the objects that could not be removed.
    fn remove(&self) -> Vec<String> {
        let problems = cleanup::remove_all(&self.groups, &self.directory, &self.name);
        self.janitor.stop();
        problems
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
            eprintln!("the tests' control groups or directories cannot be made: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = Arc::clone(&run);
    let clean_up = move || {
        let held = ended.lock_workers();
        eprintln!("\nthe run is ended by a signal: everything that it started is killed");
        ended.remove().iter().for_each(|problem| eprintln!("not removed: {problem}"));
        // A lane that waits for the lock must not continue, so the lock is never released.
        std::mem::forget(held);
    };
    signals::end_run_by_signal(clean_up).expect("signals can be waited for");

    println!("running {} tests", tests.len());
    let report = Mutex::new(RunReport::default());
    let (exclusive, others): (Vec<_>, Vec<_>) = tests.into_iter().partition(|selection| selection.is_exclusive);
    let timed_out = Mutex::new(Vec::new());
    run_lanes(&run, others, lanes_count, &report, &timed_out);
    run_lanes(&run, exclusive, 1, &report, &timed_out);
    let timed_out = timed_out.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    retry(&run, timed_out, &mut report);
    let _held = run.lock_workers();
    add_remains(&run, run.remove(), &mut report);
    // Fails unless the directory is empty, as it is when all tests passed.
    let _ = fs::remove_dir(&run.logs);
    match report.conclude(&run.logs) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED_STATUS),
        Err(error) => {
            eprintln!("the report cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A test that timed out, with the failure of its first run.
struct TimedOutTest {
    selection: Selection,
    failure: Failure,
    log: PathBuf,
}

/// Runs tests in `count` lanes. Adds tests that must run again to `timed_out`.
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
            let log = run.log_path(&selection.name, "");
            let begin = Instant::now();
            let outcome = lane.run_test(&selection, &log);
            let time = begin.elapsed();
            match outcome {
                Ok(()) => lock(report).add_passed(&selection.name, time),
                Err(failure) if failure.kind == FailureKind::TimedOut && lock(timed_out).len() < RETRIES_MAX => {
                    report::print_retry(&selection.name, &failure, time);
                    lock(timed_out).push(TimedOutTest { selection, failure, log });
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
        println!("\nrunning {} tests again that timed out", tests.len());
    }
    for TimedOutTest { selection, failure: first, log: first_log } in tests {
        if run.time_left() == Some(Duration::ZERO) {
            report.add_failed(&selection.name, &first, &first_log, Duration::ZERO);
            continue;
        }
        let log = run.log_path(&selection.name, ".again");
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
    let log = run.logs.join("runner.remains.log");
    let text: String = remains.iter().map(|remnant| format!("{remnant}\n")).collect();
    fs::write(&log, &text).unwrap_or_else(|error| eprintln!("{}: {error}", log.display()));
    report.add_run_failure("runner::remains", &format!("left on the machine: {}", remains.join("; ")), &log);
}

/// Limits a run to three quarters of the machine's process ids and memory, so that the machine stays usable.
fn run_limits(pids_max: u64) -> io::Result<RunLimits> {
    let machine_pids: u64 = fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().parse().map_err(io::Error::other)?;
    let system = rustix::system::sysinfo();
    let memory_bytes = system.totalram * u64::from(system.mem_unit) / 4 * 3;
    Ok(RunLimits { pids: pids_max.min(machine_pids / 4 * 3), memory_bytes })
}

/// Makes the log directory of this run, or uses the one that the user names. Removes old log directories of other runs.
fn make_logs_directory(run_name: &str) -> io::Result<PathBuf> {
    let own = match env::var_os(LOGS_VARIABLE) {
        Some(directory) => PathBuf::from(directory),
        None => {
            let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("e2e-logs");
            for name in identity::dead_names_in(&all) {
                let directory = all.join(name);
                let age =
                    directory.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
                if age.is_some_and(|age| age > LOGS_AGE_MAX) {
                    fs::remove_dir_all(directory)?;
                }
            }
            all.join(run_name)
        }
    };
    fs::create_dir_all(&own)?;
    Ok(own)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
