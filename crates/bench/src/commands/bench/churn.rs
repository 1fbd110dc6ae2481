//! `farfork bench churn`: the arguments and tables of the benchmark in which children change memory before it arrives.
//! `farfork_bench` runs it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::ChurnParameters;
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// Measure programs that change much of their memory while it arrives.
///
/// The benchmark starts two nodes on this machine. A child releases memory and fills it again as an allocator does, moves
/// memory, or copies live objects as a garbage collector does. Or it forks a hundred processes, or gets a signal every
/// 200 µs.
///
/// Each child runs on its parent's node and on the other node, in turn with the same program without a fork. Each child
/// checks its memory. A wrong page fails the run.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench churn
  farfork bench churn --mib 16 --runs 3 --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a page was wrong, 2 wrong usage.")]
pub(crate) struct BenchChurn {
    /// Private memory of the program, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Encrypt memory transfers between the nodes. The nodes authenticate each other in either case.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
    /// Write each sample to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchChurn {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let plan = ChurnParameters {
            mib: self.mib,
            runs: self.runs as usize,
            encrypted: self.encryption == "on",
            samples_file: self.samples,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(farfork_bench::run_churn(&plan, farfork, &mut progress_bar::show_progress()?))?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }
}
