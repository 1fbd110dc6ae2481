//! `farfork bench end`: one end of a connection that a benchmark measures. Only benchmarks start it.

use std::process::ExitCode;

use clap::Args;

/// Run one end of a connection that a benchmark measures. The benchmark starts this command.
#[derive(Args)]
pub(crate) struct BenchEndpoint {
    /// Instructions of the benchmark.
    specification: String,
}

impl BenchEndpoint {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        farfork_bench::run_endpoint(&self.specification)?;
        Ok(ExitCode::SUCCESS)
    }
}
