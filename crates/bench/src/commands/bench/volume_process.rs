//! `farfork bench volume-process`: a process of `farfork bench volume`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

/// Run a process of `farfork bench volume`, which starts this command.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench volume      starts several of these

Exit status: 0 the process reported its outcome, 1 it could not, 2 wrong usage.")]
pub(crate) struct BenchVolumeProcess {
    /// The work of the process.
    work: ProcessWork,
    /// Instructions for the process, as JSON.
    specification: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProcessWork {
    FileWriter,
    Filebench,
    Clustering,
}

impl BenchVolumeProcess {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.work {
            ProcessWork::FileWriter => farfork_bench::run_file_writer(&self.specification),
            ProcessWork::Filebench => farfork_bench::run_filebench(&self.specification),
            ProcessWork::Clustering => farfork_bench::run_clustering(&self.specification),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
