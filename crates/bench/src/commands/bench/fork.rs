//! `farfork bench fork`: prepare, resume and execution of a process of several sizes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use farfork_bench::{ForkOperation, ForkParameters, PageSize, PeerSystem, ResumeCase, TouchAccess, TouchOrder};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// Maximum size, in MiB: a terabyte.
const MIB_MAX: u64 = 1 << 20;

/// Maximum number of additional mappings: half of the kernel's default limit for a process (`vm.max_map_count`).
const MAPPINGS_MAX: u64 = 32_768;

/// Measure prepare, resume and execution of a process of several sizes.
///
/// The benchmark starts two nodes on this machine. For each size it starts a program with that much private memory. It
/// measures these times, back to back and after 150 ms of idleness:
///
/// Prepare: the time to make a seed of the program, and the time for which the program is stopped.
///
/// Resume: the time from the request for a child to the child's first instruction, on the program's own node and on the
/// other node.
///
/// Execution: the time that the child takes to touch each of its pages once. Each child then compares every byte with its
/// parent's memory. A wrong byte fails the run.
///
/// The report has floors next to each figure, measured in the same run. They are fork(2) of the same process, the same
/// touches in it, and the transfer of the same bytes over the same link by two minimal programs. The report also has a
/// published reference, measured on other machines.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fork                                   all sizes, in less than five minutes
  farfork bench fork --mib 1,64 --runs 5               a first impression, in seconds
  farfork bench fork --only prepare,resume             no touches of pages
  farfork bench fork --write --samples samples.jsonl   write to the pages, and each sample to a file
  farfork bench fork --huge                            memory in huge pages
  farfork bench fork --threads 4 --mappings 150 --first
                                                       first children of a larger program's seeds
  farfork bench fork --threads 4 --mappings 150 --first --foretold
                                                       the same for a program that was prepared and forked before
  farfork bench fork --threads 4 --mappings 150 --first --fresh
                                                       the same for the first seed of a new program each
  farfork bench fork --strategies cow --strategies eager --strategies prefetch,cache
                                                       these strategies too, side by side
  farfork bench fork --peer criu                       CRIU too, in the same run
  farfork bench fork --json                            one JSON document

Exit status: 0 measured, 1 failed, or a child had a wrong byte, 2 wrong usage.")]
pub(crate) struct BenchFork {
    /// Private memory of the program, in MiB. Can be several sizes
    /// [default: 1,4,8,16,32,64,128,256,512,1024].
    #[arg(long, value_name = "MIB,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    mib: Vec<u64>,
    /// Measure only these operations [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<OperationName>,
    /// Number of samples of each figure [default: 20].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: Option<u64>,
    /// Time for all samples, in seconds. Slow figures get fewer samples, but at least three while time is left
    /// [default: 230, or 200 with --peer].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    within: Option<u64>,
    /// Touch the pages from the first to the last [default: in random order].
    #[arg(long)]
    sequential: bool,
    /// Write to the pages [default: read them].
    #[arg(long)]
    write: bool,
    /// Put the program's memory in huge pages of 2 MiB [default: small pages of 4 KiB].
    #[arg(long)]
    huge: bool,
    /// Number of threads of the program. All threads except the first wait.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Number of additional mappings of the program. The mapping of the touched memory, and the mappings that every program
    /// has, do not count.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=MAPPINGS_MAX))]
    mappings: u64,
    /// Measure the resume of the first child of each seed on a node [default: of later children].
    ///
    /// For the first child on another node, the node has to fetch the seed's descriptor.
    #[arg(long)]
    first: bool,
    /// Request the first children as users do, on nodes that keep zygotes. Needs --first.
    ///
    /// The nodes had a child of the program's previous seed. So they may make a zygote of this seed before the request.
    #[arg(long, requires = "first")]
    foretold: bool,
    /// Use a new program for each sample, and the first seed of the program. Needs --first. Not with --foretold.
    ///
    /// The nodes keep zygotes. The program's own node may have made a zygote of the seed before the request.
    #[arg(long, requires = "first", conflicts_with = "foretold")]
    fresh: bool,
    /// Measure this strategy of `farfork fork --strategy` too. Can be repeated.
    ///
    /// The benchmark measures a first child and a second child of a seed on the other node, up to five times.
    #[arg(long, value_name = "STRATEGY")]
    strategies: Vec<String>,
    /// Encrypt memory transfers between the nodes. The nodes authenticate each other in either case.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
    /// Measure another system too: `criu`, which must be installed. It clones the program by dump and restore.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(["criu"]))]
    peer: Option<String>,
    /// Write each sample to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

/// An operation of the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OperationName {
    Prepare,
    Resume,
    Execution,
}

impl OperationName {
    fn operation(self) -> ForkOperation {
        match self {
            Self::Prepare => ForkOperation::Prepare,
            Self::Resume => ForkOperation::Resume,
            Self::Execution => ForkOperation::Execution,
        }
    }
}

impl BenchFork {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        // Use a single thread. With several threads, the figures would include hand-overs between them.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let plan = self.parameters();
        let run = progress_bar::run_until_interrupt(async |show| farfork_bench::run_fork(&plan, farfork, show).await);
        let report = runtime.block_on(run)?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }

    fn parameters(self) -> ForkParameters {
        let peer = self.peer.map(|_| PeerSystem::Criu);
        let encrypted = self.encryption == "on";
        let resumed = match (self.first, self.foretold, self.fresh) {
            (false, ..) => ResumeCase::Later,
            (true, false, false) => ResumeCase::First,
            (true, true, _) => ResumeCase::Speculative,
            (true, false, true) => ResumeCase::Fresh,
        };
        let mut plan = ForkParameters {
            encrypted,
            threads: self.threads,
            mappings: self.mappings,
            only: self.only.into_iter().map(OperationName::operation).collect(),
            resume_case: resumed,
            strategies: self.strategies,
            samples_file: self.samples,
            ..ForkParameters::with_peer(peer)
        };
        if !self.mib.is_empty() {
            plan.sizes_mib = self.mib;
            plan.sizes_mib.sort_unstable();
            plan.sizes_mib.dedup();
        }
        if let Some(runs) = self.runs {
            plan.runs = runs as usize;
        }
        if let Some(seconds) = self.within {
            plan.time_max = Duration::from_secs(seconds);
        }
        if self.sequential {
            plan.order = TouchOrder::Sequential;
        }
        if self.write {
            plan.access = TouchAccess::Write;
        }
        if self.huge {
            plan.page_size = PageSize::Huge;
        }
        plan
    }
}
