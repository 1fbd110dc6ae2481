//! The pause of a whole tree. Each process passes through `pause`; all are released when the last one has.
//! `attempt` calls `pause_tree`.

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

/// A process that stands, and what the pause has yielded.
pub(super) struct PausedProcess {
    guard: StopGuard,
    outcome: PauseOutcome,
}

/// The same of one that goes on.
pub(super) type ReleasedProcess = (PauseOutcome, ProcessSnapshot);

impl PausedProcess {
    /// What was read of its files; once.
    pub(super) fn take_file_states(&mut self) -> Result<OpenFileStates, CaptureError> {
        std::mem::replace(&mut self.outcome.file_states, Ok(OpenFileStates::default()))
    }

    /// What was copied of memory that it shares; once.
    pub(super) fn take_shared_copies(&mut self) -> Result<SharedCopies, CaptureError> {
        std::mem::replace(&mut self.outcome.shared_copies, Ok(SharedCopies::default()))
    }

    /// What its template has as it had it; once.
    pub(super) fn take_root(&mut self) -> Result<ProcessRoot, CaptureError> {
        let taken = Err(CaptureError::ProcessGone { pid: self.guard.snapshot.pid });
        std::mem::replace(&mut self.outcome.root, taken)
    }

    /// Lets it go; in freeze mode it stays.
    pub(super) fn release(mut self) -> (TemplateProcess, ReleasedProcess) {
        match self.outcome.cloned.clone.take() {
            Some(clone) => (TemplateProcess::Clone(clone), (self.outcome, self.guard.release())),
            None => {
                let snapshot = self.guard.snapshot.clone();
                (TemplateProcess::Parent(self.guard), (self.outcome, snapshot))
            }
        }
    }
}

/// All that is done while all stand.
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
    let pause_executor = PauseExecutor::new(tids, deadline);
    let (mut all, mut failed) = (Vec::with_capacity(tids.len()), None);
    for (paused, own) in pause_processes(tree, &mut stopped, options.freeze, &pause_executor) {
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

type TimedPause = (Result<PauseOutcome, CaptureError>, CaptureTimes);

/// Has all processes go their ways through the pause: beside one another. One after the other go those that a pager serves, which
/// knows a clone by an address that may be the same in several; and those of whom some have one memory, in which each clone shall
/// find no pages but its own process's.
fn pause_processes(
    tree: &mut ProcessTree,
    stopped: &mut [StopGuard],
    freeze: bool,
    pause_executor: &PauseExecutor<'_>,
) -> Vec<TimedPause> {
    let is_served = tree.processes.iter().any(|one| one.prepared.template_search.is_some());
    let have_one_memory = tree.processes.iter().any(TreeProcess::shares_memory);
    let processes = tree.processes.iter_mut().zip(stopped);
    if !is_served && !have_one_memory {
        let mut all: Vec<(i32, BoxedFuture<'_, TimedPause>)> = Vec::with_capacity(processes.len());
        for (one, stopped) in processes {
            all.push((one.pid(), Box::pin(pause_process(&mut one.prepared, stopped, freeze, pause_executor))));
        }
        return pause_executor.run(all);
    }
    let (mut pauses, mut last_space): (Vec<TimedPause>, _) = (Vec::with_capacity(processes.len()), None);
    for (one, stopped) in processes {
        if let (Some(search), Some(last)) = (&mut one.prepared.template_search, last_space) {
            search.skip_address_space(last);
        }
        let pid = one.pid();
        let mut done = pause_executor
            .run(vec![(pid, Box::pin(pause_process(&mut one.prepared, stopped, freeze, pause_executor)))]);
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

async fn pause_process(
    prepared: &mut PreparedProcess,
    stopped: &mut StopGuard,
    freeze: bool,
    pause_executor: &PauseExecutor<'_>,
) -> TimedPause {
    let mut injector = Injector::with_executor(prepared.survey.pid, prepared.survey.syscall_address, pause_executor);
    let mut times = CaptureTimes::default();
    let paused = pause::run_pause(stopped, prepared, &mut injector, freeze, &mut times).await;
    stopped.add_withheld(&mut injector.withheld_signals);
    (paused, times)
}
