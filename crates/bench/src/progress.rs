//! The progress of a run, reported before each step to a callback, which may end the run.

use std::ops::ControlFlow;

use crate::error::BenchError;

/// The progress that is reported before a step.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Number of completed steps.
    pub done: usize,
    /// Number of all steps.
    pub steps: usize,
    /// Describes the measurement of the next step.
    pub description: String,
}

/// Receives the progress. May end the run.
pub type ProgressCallback<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Reports the progress.
///
/// # Errors
/// [`BenchError::Interrupted`] if the callback ends the run.
pub(crate) fn report_progress(
    show: ProgressCallback<'_>,
    done: usize,
    steps: usize,
    what: impl Into<String>,
) -> Result<(), BenchError> {
    match show(Progress { done, steps, description: what.into() }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(BenchError::Interrupted),
    }
}
