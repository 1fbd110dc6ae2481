//! `farfork stress functions`: like `farfork stress fork`, with Python functions.

use std::process::ExitCode;

use clap::Args;
use farfork_bench::{ForkWorkload, FunctionSource};

use super::fork::{ForkLoadArgs, run_stress};
use crate::GlobalArgs;
use crate::commands::function_call::FunctionCallArgs;

/// Run Python functions in children that client processes on several nodes fork, and judge the outcome.
///
/// Does the same as `farfork stress fork` for each function in turn. Each child calls the function once, and its result is
/// compared with the parent's. If a function fails before its children are forked, the others still run, and its error is
/// printed at the end. `farfork bench function --help` describes functions and their packages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress functions                              nine functions, a minute each
  farfork stress functions json image --seconds 600
  farfork stress functions ./mine.py:work --payload '{\"size\": 3}' --python /usr/bin/python3

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressFunctions {
    /// Functions: helloworld, json, compression, pyaes, chameleon, image, pagerank, recognition, micro, or
    /// FILE.py:HANDLER [default: these nine].
    #[arg(value_name = "FUNCTION", value_parser = FunctionSource::parse)]
    functions: Vec<FunctionSource>,
    #[command(flatten)]
    call: FunctionCallArgs,
    #[command(flatten)]
    load: ForkLoadArgs,
}

impl StressFunctions {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let options = self.call.options()?;
        let functions = FunctionSource::distinct_or_embedded(self.functions);
        let workload = |source| ForkWorkload::Function { source, payload: self.call.payload.clone() };
        let plans: Vec<_> =
            functions.into_iter().map(|source| self.load.plan(workload(source), options.clone())).collect();
        run_stress(global, &plans)
    }
}
