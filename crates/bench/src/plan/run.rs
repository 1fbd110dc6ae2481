//! Runs a plan: first the steps that run once, then the rounds, and at the end the cleanup.

use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};

use super::error::PlanError;
use super::machine::Machines;
use super::results::RunResults;
use super::step::{Round, StepRun};
use super::template::Values;
use super::{Plan, PlanStep};

/// A run of a plan.
#[derive(Debug)]
pub(super) struct PlanRun<'a> {
    pub(super) plan: &'a Plan,
    pub(super) machines: &'a Machines,
    pub(super) results: &'a RunResults,
    /// The program of experiments.
    pub(super) farfork: &'a str,
    /// Whether the next rounds run after a failure.
    pub(super) keeps_going: bool,
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
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
                synced = self.machines.sync(path) => synced?,
            }
        }
        let once = self.round("once", Values::new());
        self.run_steps(&once, &self.plan.steps, |step| step.once, interrupted.as_mut()).await?;
        let mut failure = None;
        for (index, values) in self.plan.rounds().into_iter().enumerate() {
            let round = self.round(format!("round-{}", index + 1), values);
            match self.run_steps(&round, &self.plan.steps, |step| !step.once, interrupted.as_mut()).await {
                Err(error) if self.keeps_going && !matches!(error, PlanError::Interrupted) => {
                    failure.get_or_insert(error);
                }
                result => result?,
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Runs all steps of the cleanup, also after a failure of one of them. Returns the first failure.
    pub(super) async fn clean_up(&self, interrupted: impl Future<Output = ()>) -> Result<(), PlanError> {
        let (mut interrupted, mut failure) = (Box::pin(interrupted), Ok(()));
        for step in &self.plan.cleanup {
            let round = self.round("cleanup", Values::new());
            let cleaned = self.run_steps(&round, std::slice::from_ref(step), |_| true, interrupted.as_mut()).await;
            if matches!(cleaned, Err(PlanError::Interrupted)) {
                return cleaned;
            }
            failure = failure.and(cleaned);
        }
        failure
    }

    fn round(&self, name: impl Into<String>, values: Values) -> Round<'_> {
        let Self { machines, results, farfork, .. } = *self;
        Round { machines, results, farfork, name: name.into(), values }
    }

    /// Runs those of the steps that are selected, each after the steps that it names. At the end, stops those that still run.
    async fn run_steps(
        &self,
        round: &Round<'_>,
        steps: &[PlanStep],
        is_selected: impl Fn(&PlanStep) -> bool,
        mut interrupted: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), PlanError> {
        let (stop, must_stop) = watch::channel(false);
        let (ready, mut becomes_ready) = mpsc::unbounded_channel();
        let initial = |step| if is_selected(step) { Progress::Waiting } else { Progress::Complete };
        let mut progress: Vec<Progress> = steps.iter().map(initial).collect();
        let mut running = FuturesUnordered::new();
        let result = loop {
            let can_start = |index: &usize| {
                let is_complete =
                    |before: &usize| progress.get(*before).is_none_or(|before| *before == Progress::Complete);
                progress[*index] == Progress::Waiting && steps[*index].after.iter().all(is_complete)
            };
            for index in (0..steps.len()).filter(can_start).collect::<Vec<_>>() {
                let step = &steps[index];
                progress[index] = Progress::Running(StepRun::machines_count(step));
                running.push(run_step(index, round, step, must_stop.clone(), ready.clone()));
            }
            if progress.iter().all(|progress| *progress == Progress::Complete) {
                break Ok(());
            }
            tokio::select! {
                biased;
                () = &mut interrupted => break Err(PlanError::Interrupted),
                Some(index) = becomes_ready.recv() => {
                    progress[index] = match progress[index] {
                        Progress::Running(count @ 2..) => Progress::Running(count - 1),
                        _ => Progress::Complete,
                    };
                }
                Some((index, result)) = running.next() => match result {
                    Ok(()) => progress[index] = Progress::Complete,
                    Err(error) => break Err(error),
                },
            }
        };
        // Receivers exist as long as steps run.
        let _ = stop.send(true);
        let mut failure = Ok(());
        while let Some((_, result)) = running.next().await {
            failure = failure.and(result);
        }
        result.and(failure)
    }
}

async fn run_step(
    index: usize,
    round: &Round<'_>,
    step: &PlanStep,
    must_stop: watch::Receiver<bool>,
    ready: mpsc::UnboundedSender<usize>,
) -> (usize, Result<(), PlanError>) {
    (index, StepRun { round, step, must_stop, ready, index }.run().await)
}
