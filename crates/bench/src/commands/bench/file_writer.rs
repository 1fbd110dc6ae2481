//! `farfork bench file-writer`: a writing process of `farfork bench volume`.

use std::process::ExitCode;

use clap::Args;

/// Run a writing process of `farfork bench volume`, which starts this command.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench volume      starts several of these

Exit status: 0 the process reported its outcome, 1 it could not, 2 wrong usage.")]
pub(crate) struct BenchFileWriter {
    /// Instructions for the process, as JSON.
    specification: String,
}

impl BenchFileWriter {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        farfork_bench::run_file_writer(&self.specification)?;
        Ok(ExitCode::SUCCESS)
    }
}
