//! `farfork bench forker`: a client process of `farfork stress fork`, `stress functions` and `bench peak`.

use std::process::ExitCode;

use clap::Args;
use farfork_bench::{read_specification, run_fork_client};

/// Run a client process that forks children. `stress fork`, `stress functions` and `bench peak` start this command.
///
/// It reads its instructions, a line of JSON, from standard input.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress fork       starts several of these

Exit status: 0 the client reported its outcome, 1 it could not, 2 wrong usage.")]
pub(crate) struct BenchForkClient {}

impl BenchForkClient {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(run_fork_client(&read_specification()?))?;
        Ok(ExitCode::SUCCESS)
    }
}
