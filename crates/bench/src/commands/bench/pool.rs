//! `farfork bench pool`: creating children in containers, and pausing them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::PoolParameters;
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// Measure how long a node takes to create a child in a ready container, and to pause and unpause a child.
///
/// The benchmark starts a node on this machine. In each round it creates a child back to back with another child, a child
/// after 150 ms of idleness, and four times as many children at the same time as containers are ready. It also sends a
/// request to a paused child, unpauses the child, and pauses it again when it has answered. It checks every result.
///
/// The report has floors next to each figure, measured in turn in the same run. For creation, these are local forks of the
/// same memory, alone and into the namespaces of an existing container. For a pause, these are local forks that are stopped
/// by SIGSTOP, and by the freezer of a control group alone.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench pool
  farfork bench pool --pool 32 --runs 50 --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a result was wrong, 2 wrong usage.")]
pub(crate) struct BenchPool {
    /// Number of containers that the node keeps ready.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=256))]
    pool: u64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Write each sample to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchPool {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let Self { pool, mib, runs, samples } = self;
        let plan = PoolParameters { pool, mib, runs: runs as usize, samples_file: samples };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(farfork_bench::run_pool(&plan, farfork, &mut progress_bar::show_progress()?))?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }
}
