//! `show_progress`: shows the progress of a benchmark on a terminal, and stops the benchmark after an interrupt.

use std::io::{IsTerminal as _, stderr};
use std::ops::ControlFlow;

use farfork_api::failure::Failure;
use farfork_bench::{BenchError, Progress, ProgressCallback};
use farfork_terminal::interrupt::{InterruptFlag, wait_for_interrupt};
use indicatif::{ProgressBar, ProgressStyle};
use tonic::Code;

/// The progress bar of a run. It is shown on a terminal only.
struct BenchProgressBar(ProgressBar);

/// Shows the progress of a run until the returned function is dropped. The run ends after an interrupt.
///
/// # Errors
/// The errors of [`InterruptFlag::watch`].
pub(super) fn show_progress() -> anyhow::Result<impl FnMut(Progress) -> ControlFlow<()>> {
    let (bar, interruption) = (BenchProgressBar::new(), InterruptFlag::watch()?);
    Ok(move |progress| {
        bar.show(progress);
        if interruption.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// Shows the progress of a run until it has ended, or an interrupt ends it: dropping the run ends everything that it has
/// started.
///
/// # Errors
/// The errors of the run, or an interrupt.
pub(super) async fn run_until_interrupt<T>(
    run: impl AsyncFnOnce(ProgressCallback<'_>) -> Result<T, BenchError>,
) -> anyhow::Result<T> {
    let bar = BenchProgressBar::new();
    let mut show = |progress| {
        bar.show(progress);
        ControlFlow::Continue(())
    };
    tokio::select! {
        biased;
        () = wait_for_interrupt() => Err(Failure::new(Code::Cancelled, "the benchmark", "it was interrupted").into()),
        result = run(&mut show) => Ok(result?),
    }
}

impl BenchProgressBar {
    fn new() -> Self {
        let bar = if stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg:28} {bar:40} {elapsed} of about {duration}");
        bar.set_style(style.expect("the template is valid"));
        Self(bar)
    }

    fn show(&self, Progress { done, steps, description: what }: Progress) {
        self.0.set_length(steps as u64);
        self.0.set_position(done as u64);
        self.0.set_message(what);
    }
}

impl Drop for BenchProgressBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
