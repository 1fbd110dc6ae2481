//! Runs a plan: first the steps that run once, then the rounds, and at the end the cleanup.

use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};

use super::error::PlanError;
use super::machine::{COORDINATOR, ConnectedMachines};
use super::results::RunResults;
use super::step::{PlanRound, StepRun, StopRequest};
use super::template::Values;
use super::{BenchPlan, PlanStep};

/// A run of a plan.
#[derive(Debug)]
pub(super) struct PlanRun<'a> {
    pub(super) plan: &'a BenchPlan,
    pub(super) machines: &'a ConnectedMachines,
    pub(super) results: &'a RunResults,
    /// Whether the next rounds run after a failure.
    pub(super) keeps_going: bool,
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepProgress {
    Waiting,
    /// The number of machines on which it is not ready.
    Running(usize),
    /// It has ended, or is ready.
    Complete,
}

impl PlanRun<'_> {
    /// Copies files, and runs all steps. Returns at the first failure, or when `interrupted` returns. All commands have ended
    /// then.
    pub(super) async fn run(&self, interrupted: impl Future<Output = ()>) -> Result<(), PlanError> {
        let mut interrupted = Box::pin(interrupted);
        for path in &self.plan.sync {
            tokio::select! {
                () = &mut interrupted => return Err(PlanError::Interrupted),
                synced = self.machines.sync(path, &self.plan.file) => synced?,
            }
        }
        let once = self.round("once", Values::new());
        self.run_steps(&once, &self.plan.steps, |step| step.once, interrupted.as_mut()).await?;
        let mut failure = None;
        for (index, values) in self.plan.rounds().into_iter().enumerate() {
            let round = self.round(format!("round-{}", index + 1), values);
            if !round.values.is_empty() {
                let values: Vec<String> =
                    round.values.iter().map(|(name, value)| format!("{name} = {value}")).collect();
                self.results.log(COORDINATOR, &round.name, values.join(", ").as_bytes())?;
            }
            match self.run_steps(&round, &self.plan.steps, |step| !step.once, interrupted.as_mut()).await {
                Err(error) if self.keeps_going && !error.is_interruption() => {
                    failure.get_or_insert(error);
                }
                result => result?,
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Runs all steps of the cleanup on each host, also after a failure of one of them. Returns all failures.
    pub(super) async fn clean_up(&self, interrupted: impl Future<Output = ()>) -> Result<(), PlanError> {
        let (mut interrupted, mut results) = (Box::pin(interrupted), Vec::new());
        for step in &self.plan.cleanup {
            let round = PlanRound { is_cleanup: true, ..self.round("cleanup", Values::new()) };
            results.push(self.run_steps(&round, std::slice::from_ref(step), |_| true, interrupted.as_mut()).await);
            if matches!(results.last(), Some(Err(PlanError::Interrupted))) {
                break;
            }
        }
        PlanError::collect(results)
    }

    fn round(&self, name: impl Into<String>, values: Values) -> PlanRound<'_> {
        PlanRound { machines: self.machines, results: self.results, name: name.into(), values, is_cleanup: false }
    }

    /// Runs those of the steps that are selected, each after the steps that it names. At the end, stops those that still run.
    async fn run_steps(
        &self,
        round: &PlanRound<'_>,
        steps: &[PlanStep],
        is_selected: impl Fn(&PlanStep) -> bool,
        mut interrupted: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), PlanError> {
        let (stop, must_stop) = watch::channel(StopRequest::None);
        let (ready, mut becomes_ready) = mpsc::unbounded_channel();
        let initial = |step| if is_selected(step) { StepProgress::Waiting } else { StepProgress::Complete };
        let mut progress: Vec<StepProgress> = steps.iter().map(initial).collect();
        let mut running = FuturesUnordered::new();
        let result = loop {
            let can_start = |index: &usize| {
                let is_complete = |before: &usize| progress[*before] == StepProgress::Complete;
                progress[*index] == StepProgress::Waiting && steps[*index].after.iter().all(is_complete)
            };
            for index in (0..steps.len()).filter(can_start).collect::<Vec<_>>() {
                let step = &steps[index];
                progress[index] = StepProgress::Running(StepRun::machines_count(step));
                let run = StepRun { round, step, must_stop: must_stop.clone(), ready: ready.clone(), index };
                running.push(async move { (index, run.run().await) });
            }
            if progress.iter().all(|progress| *progress == StepProgress::Complete) {
                break Ok(());
            }
            tokio::select! {
                biased;
                () = &mut interrupted => break Err(PlanError::Interrupted),
                Some(index) = becomes_ready.recv() => {
                    progress[index] = match progress[index] {
                        StepProgress::Running(count @ 2..) => StepProgress::Running(count - 1),
                        _ => StepProgress::Complete,
                    };
                }
                Some((index, result)) = running.next() => match result {
                    Ok(()) => progress[index] = StepProgress::Complete,
                    Err(error) => break Err(error),
                },
            }
        };
        // Receivers exist as long as steps run.
        let _ = stop.send(if result.is_ok() { StopRequest::Complete } else { StopRequest::Cancel });
        let mut failure = Ok(());
        while let Some((_, result)) = running.next().await {
            failure = failure.and(result);
        }
        result.and(failure)
    }
}
