//! `RunContext`: the control groups, the directory, the janitor and the logs of a run. The supervisor makes it, and lanes
//! and workers use it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs};

use super::group_set::{GroupSet, RunLimits};
use super::janitor::Janitor;
use super::supervisor::RunSettings;
use super::{cleanup, identity, run_directory};

/// Number of failed starts of the shared cluster in a row after which it is not started again.
const CLUSTER_FAILURES_MAX: usize = 3;

/// Environment variable with the directory for logs.
const LOGS_VARIABLE: &str = "FARFORK_TEST_LOGS";

/// Time for which logs of earlier runs are kept.
const LOGS_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

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
    pub(super) logs: PathBuf,
    workers_count: AtomicUsize,
    /// Number of failed starts of the shared cluster since the last successful one.
    cluster_failures_count: AtomicUsize,
    /// Held while workers are started or removed. When a signal ends the run, it is held forever.
    workers_lock: Mutex<()>,
}

impl RunContext {
    /// Makes the directory and the control groups of a run, after the remains of dead runs were removed.
    ///
    /// # Errors
    /// The object that cannot be made, the cause, and what to do.
    pub(super) fn create(has_long_tests: bool, settings: &RunSettings) -> io::Result<Self> {
        cleanup::remove_dead_runs()?;
        let name = identity::own_name()?;
        let directory = run_directory::create(&name)?;
        // If a later step fails, the janitor removes what the earlier ones have made.
        let janitor = Janitor::start(&name)?;
        let logs = make_logs_directory(&name)?;
        let groups = GroupSet::create(&name, run_limits(settings.pids_max)?).map_err(|error| {
            io::Error::other(format!("control groups {name}: {error}; the tests need writable control groups"))
        })?;
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

    /// Returns the path of the log of a test.
    pub(super) fn log_path(&self, test: &str, suffix: &str) -> PathBuf {
        let path = self.logs.join(format!("{}{suffix}.log", test.replace("::", ".")));
        // An earlier run may have left a log with this name.
        let _ = fs::remove_file(&path);
        path
    }

    /// Kills and removes everything of the run. Returns the objects that could not be removed.
    pub(super) fn remove(&self) -> Vec<String> {
        let problems = cleanup::remove_all(&self.groups, &self.directory, &self.name);
        self.janitor.stop();
        problems
    }
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
                    // Another run may remove it too.
                    let _ = fs::remove_dir_all(directory);
                }
            }
            all.join(run_name)
        }
    };
    let advice = format!("set {LOGS_VARIABLE} to a directory that can be written");
    fs::create_dir_all(&own)
        .map_err(|error| io::Error::other(format!("log directory {}: {error}; {advice}", own.display())))?;
    Ok(own)
}
