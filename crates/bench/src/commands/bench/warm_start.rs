//! `farfork bench warm-start`: functions run by children that are paused between two calls.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::{FunctionSource, WarmStartParameters, WarmWorkload};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::commands::function_call::FunctionCallArgs;
use crate::commands::load::parse_seconds;
use crate::{GlobalArgs, program_path};

/// Measure how many functions per second run in children that are paused before and after each function.
///
/// The benchmark starts a node on this machine, and paused children of one seed, each in its own container. It sends a child
/// a request, resumes the child, and pauses it again when its function has answered. It uses several children at the same
/// time. To find the best number, it doubles the number as long as the rate increases. It checks every answer. If a function
/// fails, the others are still measured, and its error is printed at the end.
///
/// The report has floors next to each figure, measured in turn in the same run: local forks that are stopped by the freezer
/// of a control group alone, and by SIGSTOP.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench warm-start                              search for the best number of children
  farfork bench warm-start --parallel 4,24,30 --steps 100000
  farfork bench warm-start helloworld json --parallel 1,2,4,8,16,24,30,32,64 --runs 3
  farfork bench warm-start helloworld --root /srv/image
  farfork bench warm-start --json --samples samples.jsonl

Exit status: 0 measured, 1 failed, a function failed or an answer was wrong, 2 wrong usage.")]
pub(crate) struct BenchWarmStart {
    /// Functions: helloworld, json, compression, pyaes, chameleon, image, pagerank, recognition, micro, or
    /// FILE.py:HANDLER [default: a C++ function of --steps].
    #[arg(value_name = "FUNCTION", value_parser = FunctionSource::parse, conflicts_with_all = ["steps", "mib"])]
    functions: Vec<FunctionSource>,
    #[command(flatten)]
    call: FunctionCallArgs,
    /// Number of children that run functions at the same time. Each of several numbers is a case
    /// [default: the best number, up to 64].
    #[arg(long, value_name = "C,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=256))]
    parallel: Vec<u64>,
    /// Number of steps that the function computes, some nanoseconds each. With 0, it answers immediately.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    steps: u64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Time of each measurement, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = parse_seconds)]
    seconds: f64,
    /// Directory that is the root of the parents and their children, such as an unpacked container image. It does not
    /// change: the parents see an overlay of it, without mounts below it.
    ///
    /// The benchmark's files, the files of your functions, and the Python of the nine functions are mounted in it. The
    /// Python of your own functions, and the one of --python, is in the directory, as are the C libraries of all of them.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Write each sample to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchWarmStart {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let steps = WarmWorkload::Steps { steps: self.steps, mib: self.mib };
        let function = |source| WarmWorkload::Function { source, payload: self.call.payload.clone() };
        let plan = WarmStartParameters {
            workloads: match self.functions.is_empty() {
                true => vec![steps],
                false => FunctionSource::make_distinct(self.functions).into_iter().map(function).collect(),
            },
            function_options: match self.root {
                Some(_) => self.call.options_in_root(),
                None => self.call.options()?,
            },
            root: self.root,
            parallel: self.parallel.into_iter().map(|parallel| parallel as usize).collect(),
            runs: self.runs as usize,
            seconds: self.seconds,
            samples_file: self.samples,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run =
            progress_bar::run_until_interrupt(async |show| farfork_bench::run_warm_start(&plan, farfork, show).await);
        let report = runtime.block_on(run)?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
