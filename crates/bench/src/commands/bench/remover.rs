//! `farfork bench remover`: removes what a benchmark has left that was killed. Only benchmarks start it.

use std::process::ExitCode;

use clap::Args;

/// Remove the nodes of a benchmark after it was killed. The benchmark starts this command.
#[derive(Args)]
pub(crate) struct BenchRemover {
    /// Process id of the benchmark.
    pid: i32,
}

impl BenchRemover {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        farfork_bench::run_remover(self.pid)?;
        Ok(ExitCode::SUCCESS)
    }
}
