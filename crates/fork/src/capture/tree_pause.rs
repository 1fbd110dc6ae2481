//! The pause of a whole tree. `pause` handles each process; all processes are released together at the end. `attempt` calls
//! `pause_tree`.

use super::attempt::TemplateProcess;
use super::error::CaptureError;
use super::files::OpenFileStates;
use super::injection::injector::Injector;
use super::pause::{self, PauseOutcome, PreparedProcess};
use super::shared::SharedCopies;
use super::state::process_root::ProcessRoot;
use super::stop::stop_guard::{ProcessSnapshot, StopGuard};
use super::tracer::deadline::Deadline;
use super::tracer::executor::{BoxedFuture, PauseExecutor};
use super::tracer::trace_lock::TraceLock;
use super::tree::{ProcessTree, TreeProcess};
use super::{CaptureOptions, CaptureTimes};
use crate::phase;

/// A stopped process, with the results of its pause.
pub(super) struct PausedProcess {
    guard: StopGuard,
    outcome: PauseOutcome,
}

/// The results of a process that runs again, or stays stopped in freeze mode.
pub(super) struct ReleasedProcess {
    pub(super) outcome: PauseOutcome,
    pub(super) snapshot: ProcessSnapshot,
}

impl PausedProcess {
    /// The stopped threads.
    pub(super) fn tids(&self) -> impl Iterator<Item = i32> + Clone {
        self.guard.snapshot.threads.iter().map(|thread| thread.tid)
    }

    /// Takes the state of the process's open files. Call it once.
    pub(super) fn take_file_states(&mut self) -> Result<OpenFileStates, CaptureError> {
        std::mem::replace(&mut self.outcome.file_states, Ok(OpenFileStates::default()))
    }

    /// Takes the copies of the process's shared memory. Call it once.
    pub(super) fn take_shared_copies(&mut self) -> Result<SharedCopies, CaptureError> {
        std::mem::replace(&mut self.outcome.shared_copies, Ok(SharedCopies::default()))
    }

    /// Takes the process's root directory. Call it once.
    pub(super) fn take_root(&mut self) -> Result<ProcessRoot, CaptureError> {
        let taken = Err(CaptureError::ProcessGone { pid: self.guard.snapshot.pid });
        std::mem::replace(&mut self.outcome.root, taken)
    }

    /// Releases the process. In freeze mode it stays stopped.
    pub(super) fn release(mut self) -> (TemplateProcess, ReleasedProcess) {
        match self.outcome.cloned.clone.take() {
            Some(clone) => {
                let snapshot = self.guard.release();
                (TemplateProcess::Clone(clone), ReleasedProcess { outcome: self.outcome, snapshot })
            }
            None => {
                let snapshot = self.guard.snapshot.clone();
                (TemplateProcess::Parent(self.guard), ReleasedProcess { outcome: self.outcome, snapshot })
            }
        }
    }
}

/// Runs the pause of each process. All processes of the tree are stopped, and stay stopped.
pub(super) fn pause_tree(
    tree: &mut ProcessTree,
    tids: &[Vec<i32>],
    options: &CaptureOptions,
    deadline: &Deadline,
    trace_lock: &TraceLock,
    times: &mut CaptureTimes,
) -> Result<Vec<PausedProcess>, CaptureError> {
    let taken = tree.processes.iter().zip(tids).map(|(one, tids)| StopGuard::new(one.pid(), tids));
    let mut stopped: Vec<StopGuard> =
        phase!("prepare.registers", taken.collect::<Vec<_>>()).into_iter().collect::<Result<_, _>>()?;
    let setup = PauseSetup { freeze: options.freeze, executor: &PauseExecutor::new(tids, deadline) };
    let (mut all, mut failed) = (Vec::with_capacity(tids.len()), None);
    for (paused, own) in pause_processes(tree, &mut stopped, setup) {
        times.add_pause(&own);
        match paused {
            Ok(paused) => all.push(paused),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        None => Ok(stopped
            .into_iter()
            .zip(all)
            .map(|(stopped, paused)| PausedProcess { guard: stopped, outcome: paused })
            .collect()),
        Some(error) => {
            drop(stopped);
            let clones = all.into_iter().flat_map(|one| one.cloned.clone.into_iter().chain(one.cloned.discarded));
            clones.for_each(|mut clone| clone.kill(Some(trace_lock)));
            Err(error)
        }
    }
}

/// Values that the pauses of all processes of a tree share.
#[derive(Clone, Copy)]
struct PauseSetup<'a> {
    freeze: bool,
    executor: &'a PauseExecutor<'a>,
}

type TimedPause = (Result<PauseOutcome, CaptureError>, CaptureTimes);

/// Runs the pauses of all processes, at the same time if possible. They run one after the other in two cases.
///
/// First, if a pager serves the processes: it identifies a clone by an address that several clones may share. Second, if
/// some processes share memory: each clone must have the injection pages of its own process only.
fn pause_processes(tree: &mut ProcessTree, stopped: &mut [StopGuard], setup: PauseSetup<'_>) -> Vec<TimedPause> {
    let is_served = tree.processes.iter().any(|one| one.prepared.template_search.is_some());
    let have_one_memory = tree.processes.iter().any(TreeProcess::shares_memory);
    let processes = tree.processes.iter_mut().zip(stopped);
    if !is_served && !have_one_memory {
        let mut all: Vec<(i32, BoxedFuture<'_, TimedPause>)> = Vec::with_capacity(processes.len());
        for (one, stopped) in processes {
            all.push((one.pid(), Box::pin(pause_process(&mut one.prepared, stopped, setup))));
        }
        return setup.executor.run(all);
    }
    let (mut pauses, mut last_space): (Vec<TimedPause>, _) = (Vec::with_capacity(processes.len()), None);
    for (one, stopped) in processes {
        if let (Some(search), Some(last)) = (&mut one.prepared.template_search, last_space) {
            search.skip_address_space(last);
        }
        let pid = one.pid();
        let mut done = setup.executor.run(vec![(pid, Box::pin(pause_process(&mut one.prepared, stopped, setup)))]);
        let space =
            |(paused, _): &TimedPause| paused.as_ref().ok()?.cloned.address_space.as_ref().ok().copied().flatten();
        last_space = done.first().and_then(space).or(last_space);
        pauses.append(&mut done);
        if pauses.last().is_some_and(|(paused, _)| paused.is_err()) {
            break;
        }
    }
    pauses
}

async fn pause_process(prepared: &mut PreparedProcess, stopped: &mut StopGuard, setup: PauseSetup<'_>) -> TimedPause {
    let mut injector = Injector::with_executor(prepared.survey.pid, prepared.survey.syscall_address, setup.executor);
    let mut times = CaptureTimes::default();
    let paused = pause::run_pause(stopped, prepared, &mut injector, setup.freeze, &mut times).await;
    stopped.add_withheld(&mut injector.withheld_signals);
    (paused, times)
}
