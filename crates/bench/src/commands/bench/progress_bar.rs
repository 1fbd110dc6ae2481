//! `show_progress`: shows the progress of a benchmark on a terminal, and stops the benchmark after an interrupt.

use std::io::{IsTerminal as _, stderr};
use std::ops::ControlFlow;

use farfork_bench::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use farfork_terminal::interrupt::InterruptFlag;

/// The progress bar of a run. It is shown on a terminal only.
pub(super) struct BenchProgressBar(ProgressBar);

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

impl BenchProgressBar {
    pub(super) fn new() -> Self {
        let bar = if stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg:28} {bar:40} {elapsed} of about {duration}");
        bar.set_style(style.expect("the template is valid"));
        Self(bar)
    }

    pub(super) fn show(&self, Progress { done, steps, description: what }: Progress) {
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
