//! The progress of a run, reported before each step to a callback, which may end the run.

use std::ops::ControlFlow;

use crate::error::BenchError;

/// What is told before a step.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Steps that were done.
    pub done: usize,
    /// All steps.
    pub steps: usize,
    /// What is measured now.
    pub description: String,
}

/// Who is told.
pub type ProgressCallback<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Tells how far the run is.
///
/// # Errors
/// [`BenchError::Interrupted`]: it is to end here.
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
