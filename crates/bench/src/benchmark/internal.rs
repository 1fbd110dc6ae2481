//! The hidden commands of `farfork bench`: processes that benchmarks start.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::endpoint::run_endpoint;
use crate::experiment::fork_load::run_fork_client;
use crate::experiment::host_report::run_host_observer;
use crate::experiment::observer::run_observer;
use crate::experiment::timed_client::run_requester;
use crate::machine::program::read_specification;
use crate::scratch::run_remover;
use crate::workload::clustering::run_clustering;
use crate::workload::file_tree::run_file_tree;
use crate::workload::file_writer::run_file_writer;
use crate::workload::filebench::run_filebench;

/// Run a process of a benchmark. The benchmark starts this command on a machine.
///
/// It reads its instructions, a line of JSON, from standard input.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress fork       starts several of these

Exit status: 0 the process reported its outcome, 1 it could not, 2 wrong usage.")]
pub(crate) struct BenchProcess {
    /// The work of the process.
    work: ProcessWork,
    /// Directory of the run on this machine. Lists of processes show it.
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProcessWork {
    /// One end of a connection.
    Endpoint,
    /// A client that forks children.
    Forker,
    /// The observer of a node.
    Observer,
    /// The observer of a host.
    HostObserver,
    /// A client that sends the requests of the coordinator.
    Requester,
    FileTree,
    FileWriter,
    Filebench,
    Clustering,
}

impl BenchProcess {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let specification = read_specification()?;
        match self.work {
            ProcessWork::Endpoint => run_endpoint(&specification),
            ProcessWork::Forker => new_runtime()?.block_on(run_fork_client(&specification)),
            ProcessWork::HostObserver => new_runtime()?.block_on(run_host_observer(&specification)),
            ProcessWork::Requester => new_runtime()?.block_on(run_requester(&specification)),
            ProcessWork::Observer => run_observer(&specification),
            ProcessWork::FileTree => run_file_tree(&specification),
            ProcessWork::FileWriter => run_file_writer(&specification),
            ProcessWork::Filebench => run_filebench(&specification),
            ProcessWork::Clustering => run_clustering(&specification),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

fn new_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
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
