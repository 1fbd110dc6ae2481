//! The availability experiment: a mail server works on a volume while processes of each node in turn are stopped or
//! killed.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::BenchVolume;
use super::case::VolumeExperiment;
use super::storage::{MountedStorage, StorageTestbed, VolumeNodes};
use crate::error::BenchError;
use crate::experiment::nodes::{SIGCONT, SIGKILL, SIGSTOP};
use crate::experiment::observer::NodeProcess;
use crate::samples::Spread;
use crate::workload::file_tree::FileCount;
use crate::workload::filebench::{FilebenchLoop, FilebenchProcess, FilebenchSpec, INTERVAL_S};

/// When in its period a fault begins, and how long it lasts, as fractions of the period.
const BEGINS_AT: f64 = 0.25;
const LASTS: f64 = 0.5;

/// The faults, each with the position of its node in the chain. Each fault has its own period of the run. The mail server works
/// on the first node: when that is killed, its operations wait for the next daemon.
const FAULTS: [(usize, FaultKind); 7] = [
    (0, FaultKind::WorkerStopped),
    (1, FaultKind::WorkerStopped),
    (2, FaultKind::WorkerStopped),
    (1, FaultKind::WorkerKilled),
    (1, FaultKind::OffloadKilled),
    (2, FaultKind::NodeKilled),
    (0, FaultKind::NodeKilled),
];

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultKind {
    /// SIGSTOP to the worker, and SIGCONT when the fault ends.
    WorkerStopped,
    /// SIGKILL to the worker.
    WorkerKilled,
    /// SIGKILL to the offload process.
    OffloadKilled,
    /// SIGKILL to the daemon. Its worker and its offload process end with it. The daemon is started again when the fault
    /// ends.
    NodeKilled,
}

impl FaultKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WorkerStopped => "worker stopped",
            Self::WorkerKilled => "worker killed",
            Self::OffloadKilled => "offload process killed",
            Self::NodeKilled => "node killed",
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct AvailabilityRun {
    /// Operations in each second.
    pub(crate) per_s: Vec<f64>,
    /// The longest operation of each second, in ms.
    pub(crate) longest_ms: Vec<f64>,
    pub(crate) faults: Vec<InjectedFault>,
    /// The time of a fault and of the recovery from it, in seconds.
    pub(crate) period_s: f64,
    /// Files that were read again on another node, after all periods.
    #[serde(skip)]
    pub(crate) verified: FileCount,
}

/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct InjectedFault {
    pub(crate) kind: FaultKind,
    /// The position in the chain, from 0, of the node with the fault.
    pub(crate) node: usize,
    /// Begin and end of the fault, in seconds since the start of the run.
    pub(crate) from_s: f64,
    pub(crate) until_s: f64,
}

/// Interval at which a wait calls `check_interrupt`.
const CALLBACK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the experiment. `check_interrupt` is called several times each second, and may end it.
///
/// # Errors
/// An operation failed, a process is missing, a node has other contents after a fault, or `check_interrupt` fails.
pub(super) fn run_availability(
    plan: &BenchVolume,
    testbed: &mut StorageTestbed,
    check_interrupt: &mut dyn FnMut() -> Result<(), BenchError>,
) -> Result<AvailabilityRun, BenchError> {
    let storage = testbed.mount_volume(VolumeNodes::Offload)?;
    let measured = run_periods(plan, testbed, &storage, check_interrupt);
    // Remove the volume also after an error, because it would outlive the run.
    testbed.remove(storage)?;
    measured
}

/// Runs a period without a fault, and one for each fault. The mail server rests after each period, while its files are
/// compared.
fn run_periods(
    plan: &BenchVolume,
    testbed: &mut StorageTestbed,
    storage: &MountedStorage,
    check_interrupt: &mut dyn FnMut() -> Result<(), BenchError>,
) -> Result<AvailabilityRun, BenchError> {
    let spec = FilebenchSpec {
        operations: FilebenchLoop::Varmail,
        directory: storage.directory.clone(),
        files: plan.files_of(VolumeExperiment::Varmail),
        seconds: plan.period_s(),
        has_constant_sizes: plan.like_the_document,
    };
    let mut process = FilebenchProcess::start(testbed.machine(), &spec)?;
    let mut run = AvailabilityRun { period_s: plan.period_s(), ..AvailabilityRun::default() };
    for fault in [None].into_iter().chain(FAULTS.map(Some)) {
        process.begin()?;
        let began_s = run.per_s.len() as f64 * INTERVAL_S;
        if let Some((node, kind)) = fault {
            let [from_s, until_s] = inject_fault(run.period_s, testbed, node, kind, check_interrupt)?;
            run.faults.push(InjectedFault { kind, node, from_s: began_s + from_s, until_s: began_s + until_s });
        }
        for interval in process.finish()? {
            run.per_s.push(interval.per_s);
            run.longest_ms.push(interval.longest_ms);
        }
        check_interrupt()?;
        run.verified.add(testbed.verify(storage)?);
    }
    Ok(run)
}

/// Injects a fault into a period that begins now. Returns its begin and end, in seconds of the period.
fn inject_fault(
    period_s: f64,
    testbed: &mut StorageTestbed,
    node: usize,
    kind: FaultKind,
    check_interrupt: &mut dyn FnMut() -> Result<(), BenchError>,
) -> Result<[f64; 2], BenchError> {
    let started = Instant::now();
    let mut wait_until = |seconds: f64| {
        loop {
            check_interrupt()?;
            let remaining = Duration::from_secs_f64(seconds).saturating_sub(started.elapsed());
            if remaining.is_zero() {
                return Ok(());
            }
            thread::sleep(remaining.min(CALLBACK_INTERVAL));
        }
    };
    wait_until(period_s * BEGINS_AT)?;
    let from_s = started.elapsed().as_secs_f64();
    begin_fault(testbed, node, kind, || wait_until(period_s * (BEGINS_AT + LASTS)))?;
    Ok([from_s, started.elapsed().as_secs_f64()])
}

/// Injects a fault. `wait` returns when a lasting fault is to end.
fn begin_fault(
    testbed: &mut StorageTestbed,
    node: usize,
    kind: FaultKind,
    wait: impl FnOnce() -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let send = |process, signal| testbed.cluster().running.signal(node, &[process], &[signal]);
    match kind {
        FaultKind::WorkerStopped => {
            send(NodeProcess::VolumeWorker, SIGSTOP)?;
            let waited = wait();
            // An error means that the worker has ended during the wait.
            let _ = send(NodeProcess::VolumeWorker, SIGCONT);
            waited?;
        }
        FaultKind::WorkerKilled => send(NodeProcess::VolumeWorker, SIGKILL)?,
        FaultKind::OffloadKilled => send(NodeProcess::VolumeOffload, SIGKILL)?,
        FaultKind::NodeKilled => {
            testbed.cluster().running.kill_daemon(node)?;
            let waited = wait();
            testbed.cluster_mut().running.restart_daemon(node)?;
            waited?;
        }
    }
    Ok(())
}

impl AvailabilityRun {
    /// The median rate of all seconds.
    pub(crate) fn median_per_s(&self) -> f64 {
        Spread::from_samples(&self.per_s).map_or(0.0, |spread| spread.median)
    }

    /// The rate of the slowest second of a fault and of the recovery from it.
    pub(crate) fn lowest_per_s(&self, fault: &InjectedFault) -> Option<f64> {
        self.per_s[self.seconds_of(fault)].iter().copied().reduce(f64::min)
    }

    /// The longest operation during a fault and the recovery from it, in ms.
    pub(crate) fn longest_ms(&self, fault: &InjectedFault) -> Option<f64> {
        self.longest_ms[self.seconds_of(fault)].iter().copied().reduce(f64::max)
    }

    /// The seconds from the beginning of a fault to the end of its period.
    fn seconds_of(&self, fault: &InjectedFault) -> std::ops::Range<usize> {
        let from = (fault.from_s as usize).min(self.per_s.len());
        let until = ((fault.from_s + self.period_s * (1.0 - BEGINS_AT)).ceil() as usize).min(self.per_s.len());
        from..until.max(from)
    }

    /// Number of seconds of a fault and of the recovery from it with less than half of the median rate.
    pub(crate) fn slow_seconds(&self, fault: &InjectedFault) -> usize {
        let half = self.median_per_s() / 2.0;
        self.per_s[self.seconds_of(fault)].iter().filter(|per_s| **per_s < half).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_seconds_are_counted_for_their_fault() {
        let fault = |from_s: f64| InjectedFault { kind: FaultKind::WorkerKilled, node: 1, from_s, until_s: from_s };
        let run = AvailabilityRun {
            per_s: vec![100.0, 100.0, 10.0, 40.0, 100.0, 100.0, 20.0, 100.0],
            longest_ms: vec![1.0; 8],
            faults: vec![fault(2.2), fault(6.0)],
            period_s: 4.0,
            verified: FileCount::default(),
        };
        assert_eq!((run.median_per_s(), run.seconds_of(&run.faults[0])), (100.0, 2..6));
        assert_eq!((run.lowest_per_s(&run.faults[1]), run.longest_ms(&run.faults[1])), (Some(20.0), Some(1.0)));
        assert_eq!((run.slow_seconds(&run.faults[0]), run.slow_seconds(&run.faults[1])), (2, 1));
    }
}
