//! `farfork bench clustering`: a process of `farfork bench volume` that computes next to a volume.

use std::process::ExitCode;

use clap::Args;

/// Run a process of `farfork bench volume`, which starts this command.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench volume interference      starts several of these

Exit status: 0 the process reported its outcome, 1 it could not, 2 wrong usage.")]
pub(crate) struct BenchClustering {
    /// Instructions for the process, as JSON.
    specification: String,
}

impl BenchClustering {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        farfork_bench::run_clustering(&self.specification)?;
        Ok(ExitCode::SUCCESS)
    }
}
