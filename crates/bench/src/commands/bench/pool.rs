//! `farfork bench pool`: creating children in containers, and pausing them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::PoolParameters;
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// Measure how long it takes to create a child in a container that is ready, and to pause one and let it go on.
///
/// Starts a node on this machine. In each round a child is created back to back with another and after 150 ms of nothing, and
/// four times as many at once as containers are ready; and one that waits for requests is sent one, let go on, and paused again
/// when it has answered. Every result is checked.
///
/// Beside them stand, measured in turn in the same run, local forks of the same memory, bare and into the namespaces of a
/// container that was there before; and local forks that are stopped by SIGSTOP and by the bare freezer of a control group.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench pool
  farfork bench pool --pool 32 --runs 50 --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a result was wrong, 2 wrong usage.")]
pub(crate) struct BenchPool {
    /// Containers that the node keeps ready.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=256))]
    pool: u64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Rounds, in each of which everything is measured in turn.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Write each sample into this file, as a line of JSON.
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
