//! `farfork bench warm-start`: functions run by children that are paused between two calls.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::WarmStartParameters;
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::commands::load::parse_seconds;
use crate::{GlobalArgs, program_path};

/// Measure how many functions a second are run by children that are paused before each and after it.
///
/// Starts a node on this machine, and children of one seed, each in its container, paused. Of as many at once as is wanted each
/// is sent a request, let go on, and paused again when its function has answered. How many at once are best is searched for:
/// twice as many each time, as long as that brings more. Every answer is checked.
///
/// Beside them stand, measured in turn in the same run, local forks that are stopped by the bare freezer of a control group,
/// and by SIGSTOP.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench warm-start                              the best number at once is searched for
  farfork bench warm-start --parallel 4,24,30 --steps 100000
  farfork bench warm-start --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or an answer was wrong, 2 wrong usage.")]
pub(crate) struct BenchWarmStart {
    /// How many at once [default: the best is searched for, up to 64].
    #[arg(long, value_name = "C,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=256))]
    parallel: Vec<u64>,
    /// Steps of computing that the function makes, some nanoseconds each; 0: it answers at once.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    steps: u64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Rounds, in each of which everything is measured in turn.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// How long each measurement takes.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = parse_seconds)]
    seconds: f64,
    /// Write each sample into this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchWarmStart {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let plan = WarmStartParameters {
            parallel: self.parallel.into_iter().map(|parallel| parallel as usize).collect(),
            steps: self.steps,
            mib: self.mib,
            runs: self.runs as usize,
            seconds: self.seconds,
            samples_file: self.samples,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report =
            runtime.block_on(farfork_bench::run_warm_start(&plan, farfork, &mut progress_bar::show_progress()?))?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }
}
