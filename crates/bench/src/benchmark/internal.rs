//! The hidden commands of `farfork bench`: processes that benchmarks start.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::embedded_program::read_specification;
use crate::endpoint::run_endpoint;
use crate::experiment::fork_load::run_fork_client;
use crate::scratch::run_remover;
use crate::workload::clustering::run_clustering;
use crate::workload::file_writer::run_file_writer;
use crate::workload::filebench::run_filebench;

/// Run one end of a connection that a benchmark measures. The benchmark starts this command.
#[derive(Args)]
pub(crate) struct BenchEndpoint {
    /// Instructions of the benchmark.
    specification: String,
}

impl BenchEndpoint {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        run_endpoint(&self.specification)?;
        Ok(ExitCode::SUCCESS)
    }
}

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

/// Remove the nodes of a benchmark after it was killed. The benchmark starts this command.
#[derive(Args)]
pub(crate) struct BenchRemover {
    /// Process id of the benchmark.
    pid: i32,
}

impl BenchRemover {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        run_remover(self.pid)?;
        Ok(ExitCode::SUCCESS)
    }
}

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
            ProcessWork::FileWriter => run_file_writer(&self.specification),
            ProcessWork::Filebench => run_filebench(&self.specification),
            ProcessWork::Clustering => run_clustering(&self.specification),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
