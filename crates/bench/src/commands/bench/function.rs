//! `farfork bench function`: prepare, resume and execution of Python functions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::{FunctionParameters, FunctionSource};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::commands::function_call::FunctionCallArgs;
use crate::{GlobalArgs, program_path};

/// Measure Python functions in children: nine serverless functions, or a function of your own.
///
/// Starts two nodes on this machine, and a Python process for each function, which calls the function twice. Then makes a
/// seed of the process, and the seed's first child on each node. The child calls the function once. A child of os.fork()
/// does the same, for comparison. Each result is compared with the parent's.
///
/// A function is a Python file with `handler(payload)`. The payload is a JSON document, and every call with the same
/// payload must return the same result: the repr() of the values is compared. A function of your own runs in the current
/// directory, and may import modules from the directory of its file. It has no standard input. Text that it prints in the
/// parent appears on standard error. In a child of farfork, output and changes of files are discarded. Processes that the
/// function leaves are killed at the end, except those in sessions of their own.
///
/// The nine functions need packages from PyPI, which are installed into FARFORK_CACHE (default: ~/.cache/farfork) when
/// they are first needed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench function                                all nine functions
  farfork bench function json image --runs 20 --profile
  farfork bench function ./mine.py:work --payload '{\"size\": 3}'
  farfork bench function ./mine.py --payload @payload.json --python venv/bin/python3

Exit status: 0 measured, 1 a function failed or returned a wrong result, 2 wrong usage.")]
pub(crate) struct BenchFunction {
    /// Functions: helloworld, json, compression, pyaes, chameleon, image, pagerank, recognition, micro, or
    /// FILE.py:HANDLER [default: these nine].
    #[arg(value_name = "FUNCTION", value_parser = FunctionSource::parse)]
    functions: Vec<FunctionSource>,
    #[command(flatten)]
    call: FunctionCallArgs,
    /// Samples of each figure.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Show where the time of each function's last child went: page faults, fetched memory, and the phases of its start.
    #[arg(long)]
    profile: bool,
    /// Write each sample to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchFunction {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let plan = FunctionParameters {
            functions: FunctionSource::distinct_or_embedded(self.functions),
            function_options: self.call.options()?,
            payload: self.call.payload,
            runs: self.runs as usize,
            profile: self.profile,
            samples_file: self.samples,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run =
            progress_bar::run_until_interrupt(async |show| farfork_bench::run_function(&plan, farfork, show).await);
        let report = runtime.block_on(run)?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
