//! `farfork bench tree`: how long a process tree is paused while its seed is made.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::TreeParameters;
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// Measure how long a prepare stops trees of processes.
///
/// The benchmark starts two nodes on this machine, and trees of several sizes. In each round it prepares each tree in turn.
/// Before a prepare, each process of the tree forks itself with fork(2). The floor of the pause is the sum of the times of
/// these forks and the time to copy the memory that the processes share.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench tree
  farfork bench tree --processes 1,16 --mib 1 --shared-mib 0 --json

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchTree {
    /// Number of processes of a tree. Each of several numbers is a tree.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = clap::value_parser!(u64).range(1..=64))]
    processes: Vec<u64>,
    /// Private memory of each process, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    mib: u64,
    /// Memory that the processes of a tree share, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1024))]
    shared_mib: u64,
    /// Number of rounds. Each round measures every tree once.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Write each sample to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchTree {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let Self { processes, mib, shared_mib, runs, samples } = self;
        let plan = TreeParameters { processes, mib, shared_mib, runs: runs as usize, samples_file: samples };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(farfork_bench::run_tree(&plan, farfork, &mut progress_bar::show_progress()?))?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }
}
