//! `ByteProgressBar`: the progress of a transfer, shown on a terminal only.

use std::io::{IsTerminal as _, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error, cleared when it is dropped. Hidden if standard error is not a terminal.
pub(crate) struct ByteProgressBar(ProgressBar);

impl ByteProgressBar {
    /// Makes a bar with the label `what`.
    pub(crate) fn new(what: &'static str) -> Self {
        let bar = if stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg:10} {bar:40} {bytes} of {total_bytes}, {bytes_per_sec}");
        bar.set_style(style.expect("the template is right"));
        bar.set_message(what);
        Self(bar)
    }

    /// Shows that `done` of `total` bytes are complete.
    pub(crate) fn show(&self, done: u64, total: u64) {
        self.0.set_length(total.max(1));
        self.0.set_position(done);
    }
}

impl Drop for ByteProgressBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
