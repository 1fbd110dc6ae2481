//! `DemoProgress`: the current step of the demo, as a spinner on a terminal or as a line of a log.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The steps of a demo, on standard error.
pub(super) struct DemoProgress {
    began: Instant,
    /// `None` if standard error is not a terminal.
    spinner: Option<ProgressBar>,
}

impl DemoProgress {
    pub(super) fn start() -> Self {
        let spinner = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed:>3}  {msg}").expect("the template is valid");
            let spinner = ProgressBar::new_spinner().with_style(style);
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        Self { began: Instant::now(), spinner }
    }

    pub(super) fn show_step(&self, step: impl Into<String>) {
        let step = step.into();
        match &self.spinner {
            Some(spinner) => spinner.set_message(step),
            None => {
                // If standard error has no reader, the demo continues, because its result is on standard output.
                let _ = writeln!(stderr(), "{:5.1} s  {step}", self.began.elapsed().as_secs_f64());
            }
        }
    }
}

impl Drop for DemoProgress {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
