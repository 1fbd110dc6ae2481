//! `farfork bench filebench`: a process of `farfork bench volume` that runs a loop of file operations.

use std::process::ExitCode;

use clap::Args;

/// Run a process of `farfork bench volume`, which starts this command.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench volume filebench      starts this command

Exit status: 0 the process reported its outcome, 1 it could not, 2 wrong usage.")]
pub(crate) struct BenchFilebench {
    /// Instructions for the process, as JSON.
    specification: String,
}

impl BenchFilebench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        farfork_bench::run_filebench(&self.specification)?;
        Ok(ExitCode::SUCCESS)
    }
}
