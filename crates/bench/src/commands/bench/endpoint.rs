//! `farfork bench end`: one end of a connection that a benchmark measures. Only benchmarks start it.

use std::process::ExitCode;

use clap::Args;

/// Be one end of a connection that a benchmark measures.
#[derive(Args)]
pub(crate) struct BenchEndpoint {
    /// What it is to be, as the benchmark says it.
    specification: String,
}

impl BenchEndpoint {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        farfork_bench::run_endpoint(&self.specification)?;
        Ok(ExitCode::SUCCESS)
    }
}
