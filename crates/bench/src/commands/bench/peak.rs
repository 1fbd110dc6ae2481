//! `farfork bench peak`: how many children clients on several nodes fork per second.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use farfork_bench::{ForkWorkload, FunctionSource, PeakParameters};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::commands::function_call::FunctionCallArgs;
use crate::commands::load::parse_seconds;
use crate::{GlobalArgs, program_path};

/// Measure how many children clients on several nodes fork per second, with functions or a C++ program.
///
/// Starts a node for the parents, and nodes for the clients. For each workload, every client process requests a child from
/// its own node, waits for the child's result, checks the result, and requests the next child. Workloads are the nine
/// functions of `farfork bench function`, functions of your own, and `sparse`, a C++ program of 16 MiB whose children touch
/// four pages.
///
/// A workload whose children would need more than half of the available memory gets fewer clients. If a function fails, the
/// others are still measured, and its error is printed at the end.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench peak                                    as published for MITOSIS: 8 nodes of 12 clients, 20 s for each row
  farfork bench peak helloworld sparse --nodes 2 --clients 2 --seconds 5
  farfork bench peak json --strategy cow --strategy eager --zygotes off
  farfork bench peak ./mine.py:work --payload '{\"size\": 3}' --python /usr/bin/python3

Exit status: 0 measured, 1 failed, a function failed or a result was wrong, 2 wrong usage.")]
pub(crate) struct BenchPeak {
    /// Workloads: sparse, helloworld, json, compression, pyaes, chameleon, image, pagerank, recognition, micro, or
    /// FILE.py:HANDLER [default: sparse and the nine functions].
    #[arg(value_name = "WORKLOAD", value_parser = WorkloadName::parse)]
    workloads: Vec<WorkloadName>,
    #[command(flatten)]
    call: FunctionCallArgs,
    /// Number of nodes with clients. The parent is on one more node.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=10))]
    nodes: u64,
    /// Number of client processes on each of these nodes.
    #[arg(long, value_name = "C", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: u64,
    /// Time for which the clients of each row fork, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Whether nodes keep zygotes.
    #[arg(long, value_name = "on|off|both", default_value = "both")]
    zygotes: ZygoteChoice,
    /// Paging strategy of children, as `farfork fork --strategy`. Can be repeated [default: as `farfork fork`].
    #[arg(long, value_name = "STRATEGY")]
    strategy: Vec<String>,
    /// Write each sample to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

/// A workload of the command line.
#[derive(Debug, Clone)]
enum WorkloadName {
    Sparse,
    Function(FunctionSource),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ZygoteChoice {
    On,
    Off,
    Both,
}

/// Private memory of the C++ program, in MiB: as in the published stress test.
const SPARSE_MIB: u64 = 16;

impl WorkloadName {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "sparse" => Ok(Self::Sparse),
            _ => FunctionSource::parse(text).map(Self::Function).map_err(|error| format!("{error}, or sparse")),
        }
    }

    fn all() -> Vec<Self> {
        [Self::Sparse].into_iter().chain(FunctionSource::embedded().into_iter().map(Self::Function)).collect()
    }

    /// As [`FunctionSource::make_distinct`]. `sparse` is first.
    fn make_distinct(names: Vec<Self>) -> Vec<Self> {
        let has_sparse = names.iter().any(|name| matches!(name, Self::Sparse));
        let function = |name| if let Self::Function(source) = name { Some(source) } else { None };
        let functions = FunctionSource::make_distinct(names.into_iter().filter_map(function).collect());
        has_sparse.then_some(Self::Sparse).into_iter().chain(functions.into_iter().map(Self::Function)).collect()
    }

    fn into_workload(self, payload: &str) -> ForkWorkload {
        match self {
            Self::Sparse => ForkWorkload::Sparse { mib: SPARSE_MIB },
            Self::Function(source) => ForkWorkload::Function { source, payload: payload.to_owned() },
        }
    }
}

impl BenchPeak {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let names = if self.workloads.is_empty() { WorkloadName::all() } else { self.workloads };
        let plan = PeakParameters {
            workloads: WorkloadName::make_distinct(names)
                .into_iter()
                .map(|name| name.into_workload(&self.call.payload))
                .collect(),
            child_nodes: self.nodes as usize,
            clients: self.clients as usize,
            seconds: self.seconds,
            zygotes: match self.zygotes {
                ZygoteChoice::On => vec![true],
                ZygoteChoice::Off => vec![false],
                ZygoteChoice::Both => vec![true, false],
            },
            strategies: if self.strategy.is_empty() { vec![String::new()] } else { self.strategy },
            function_options: self.call.options()?,
            samples_file: self.samples,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let summary = runtime.block_on(farfork_bench::run_peak(&plan, farfork, &mut progress_bar::show_progress()?))?;
        output::print_report(global.json, || summary.to_json(), || summary.to_text());
        Ok(if summary.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
