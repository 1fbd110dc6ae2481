//! `farfork bench forker`: a client process of `farfork stress fork`.

use std::process::ExitCode;

use clap::Args;

/// A client of a stress test, which starts it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress fork       starts some of these

Exit status: 0 it said how it went, 1 it could not, 2 wrong usage.")]
pub(crate) struct BenchForkClient {
    /// What it is to do, as JSON.
    specification: String,
}

impl BenchForkClient {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(farfork_bench::run_fork_client(&self.specification))?;
        Ok(ExitCode::SUCCESS)
    }
}
