//! `RunContext`: the control groups, the directory, the janitor and the logs of a run. The supervisor makes it, and lanes
//! and workers use it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::group_set::{GroupSet, MEMORY_FILES, PIDS_FILES, RunLimits};
use super::janitor::Janitor;
use super::log_directory::LogDirectory;
use super::supervisor::RunSettings;
use super::{cleanup, identity, run_directory};
use crate::harness::print_error;

/// Number of failed starts of the shared cluster in a row after which it is not started again.
const CLUSTER_FAILURES_MAX: usize = 3;

/// State that all lanes of a run share.
pub(super) struct RunContext {
    pub(super) name: String,
    pub(super) directory: PathBuf,
    pub(super) groups: GroupSet,
    /// Time at which the run must end; `None` for long tests.
    deadline: Option<Instant>,
    /// Longest wait until processes that a test has killed have disappeared.
    pub(super) leak_limit: Duration,
    /// Maximum number of bytes that a test may write.
    pub(super) output_bytes_max: u64,
    janitor: Janitor,
    /// The locks of the directory and of the control groups. Other runs recognize by them that this run has not ended.
    _locks: Vec<File>,
    pub(super) logs: LogDirectory,
    workers_count: AtomicUsize,
    /// Number of failed starts of the shared cluster since the last successful one.
    cluster_failures_count: AtomicUsize,
    /// Held while workers are started or removed. When a signal ends the run, it is held forever.
    workers_lock: Mutex<()>,
    /// Whether a signal ends the run, and kills its tests.
    is_ending: AtomicBool,
}

impl RunContext {
    /// Makes the directory and the control groups of a run, after the remains of dead runs were removed.
    ///
    /// # Errors
    /// The object that cannot be made, the cause, and what to do.
    pub(super) fn create(has_long_tests: bool, settings: &RunSettings) -> io::Result<Self> {
        // First of all: without control groups, the processes of dead runs cannot be found either.
        GroupSet::require_hierarchies()?;
        let temporary = run_directory::temporary_directory()?;
        cleanup::remove_dead_runs(&temporary)?;
        let name = identity::own_name()?;
        let directory = run_directory::create(&name, &temporary)?;
        let mut locks = vec![run_directory::lock(&directory)?];
        // If a later step fails, the janitor removes what the earlier ones have made.
        let janitor = Janitor::start(&name, &temporary).map_err(|error| {
            run_directory::remove_empty(&directory);
            io::Error::other(format!("the janitor, a process of this program: {error}"))
        })?;
        let logs = LogDirectory::create(&name)?;
        let groups = GroupSet::create(&name, run_limits(settings.pids_max)?)?;
        locks.extend(groups.lock()?);
        for controller in groups.missing_limits() {
            print_error(format_args!(
                "the run has no {controller} limit: no control group here can use this controller"
            ));
        }
        let deadline = (!has_long_tests).then(|| Instant::now() + settings.run_limit);
        Ok(Self {
            name,
            directory,
            groups,
            deadline,
            leak_limit: settings.leak_limit,
            output_bytes_max: settings.output_bytes_max,
            janitor,
            _locks: locks,
            logs,
            workers_count: AtomicUsize::new(0),
            cluster_failures_count: AtomicUsize::new(0),
            workers_lock: Mutex::new(()),
            is_ending: AtomicBool::new(false),
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

    /// Records that a signal ends the run.
    pub(super) fn set_ending(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// Blocks forever if a signal ends the run: the failure of a test that was killed by this is no result.
    pub(super) fn wait_if_ending(&self) {
        while self.is_ending.load(Ordering::SeqCst) {
            thread::park();
        }
    }

    /// Returns the time until the run must end; `None` for long tests.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Kills and removes everything of the run. Returns the objects that could not be removed.
    pub(super) fn remove(&self) -> Vec<String> {
        let problems = cleanup::remove_all(&self.groups, &self.directory, &self.name);
        self.janitor.stop();
        problems
    }
}

/// Limits a run to three quarters of the process ids and the memory of the machine, or of the container that this process is
/// in, so that both stay usable. The runner itself needs the rest.
fn run_limits(pids_max: u64) -> io::Result<RunLimits> {
    let machine_pids: u64 = fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().parse().map_err(io::Error::other)?;
    let system = rustix::system::sysinfo();
    let machine_bytes = system.totalram * u64::from(system.mem_unit);
    let pids = GroupSet::limit_above(&PIDS_FILES)?.map_or(machine_pids, |limit| limit.min(machine_pids));
    let memory_bytes = GroupSet::limit_above(&MEMORY_FILES)?;
    let memory_bytes = memory_bytes.map_or(machine_bytes, |limit| limit.min(machine_bytes));
    Ok(RunLimits { pids: pids_max.min(pids / 4 * 3), memory_bytes: memory_bytes / 4 * 3 })
}
