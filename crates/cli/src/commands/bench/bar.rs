//! How far a benchmark of connections is.

use std::io::{IsTerminal as _, stderr};

use farfork_bench::RpcProgress;
use indicatif::{ProgressBar, ProgressStyle};

/// How far the run is, on a terminal only.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Self {
        let bar = if stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg:28} {bar:40} {elapsed} of about {duration}");
        bar.set_style(style.expect("the template is right"));
        Self(bar)
    }

    pub(super) fn show(&self, RpcProgress { done, steps, what }: RpcProgress) {
        self.0.set_length(steps as u64);
        self.0.set_position(done as u64);
        self.0.set_message(what);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
