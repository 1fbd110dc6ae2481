//! `farfork bench fork`: prepare, resume and execution of a process of several sizes.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use farfork_api::failure::Failure;
use farfork_bench::{ForkParameters, ForkSummary, PageSize, PeerSystem, ResumeCase, TouchAccess, TouchOrder};
use farfork_terminal::interrupt::wait_for_interrupt;
use farfork_terminal::{output, privilege};
use tonic::Code;

use super::progress_bar::BenchProgressBar;
use crate::{GlobalArgs, program_path};

/// Largest size, in MiB: a terabyte.
const MIB_MAX: u64 = 1 << 20;

/// Mappings of the program's making at most: half of what the kernel allows a process (`vm.max_map_count`).
const MAPPINGS_MAX: u64 = 32_768;

/// Measure prepare, resume and execution of a process of several sizes.
///
/// Starts two nodes on this machine, and for each size a program that holds so much private memory. Measures, back to
/// back and after 150 ms of idleness: how long it takes to make a seed of it, and how long the program stands still for
/// that; how long it takes from the request for a child, on the program's own node and on the other one, to the child's
/// first instruction; and how long the child takes to touch each of its pages once. Each child then compares every byte
/// with what its parent held: a wrong one fails the run.
///
/// Beside each figure stand its floors, measured in the same run: fork(2) of the same process, the same touches in it,
/// the same bytes over the same link by two bare programs; and a published reference, measured on other machines.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fork                                   all sizes, below five minutes
  farfork bench fork --mib 1,64 --runs 5               a first impression, in seconds
  farfork bench fork --write --samples samples.jsonl   pages are written; each sample goes to a file
  farfork bench fork --huge                            the program's memory is in huge pages
  farfork bench fork --threads 4 --mappings 150 --first
                                                       first children of a larger program's seeds
  farfork bench fork --threads 4 --mappings 150 --first --foretold
                                                       the same of a program that was seeded and forked before
  farfork bench fork --threads 4 --mappings 150 --first --fresh
                                                       the same, each of a new program's first seed
  farfork bench fork --strategies cow --strategies eager --strategies prefetch,cache
                                                       these side by side, too
  farfork bench fork --peer criu                       beside CRIU, in the same run
  farfork bench fork --json                            one JSON document

Exit status: 0 measured, 1 failed, or a child had a wrong byte, 2 wrong usage.")]
pub(crate) struct BenchFork {
    /// Private memory of the program, in MiB: one size or several
    /// [default: 1,4,8,16,32,64,128,256,512,1024].
    #[arg(long, value_name = "MIB,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    mib: Vec<u64>,
    /// Samples of each figure [default: 20].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: Option<u64>,
    /// Seconds for all samples: figures that take longer get fewer of them, but three while time is left
    /// [default: 230, with a peer 200].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    within: Option<u64>,
    /// Touch the pages from the first to the last; else at random.
    #[arg(long)]
    sequential: bool,
    /// Write to the pages; else read them.
    #[arg(long)]
    write: bool,
    /// Have the program's memory in huge pages of 2 MiB; else in small ones of 4 KiB.
    #[arg(long)]
    huge: bool,
    /// Threads of the program; all but the first wait.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Mappings of the program, beside its memory and what every program has.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=MAPPINGS_MAX))]
    mappings: u64,
    /// Measure the resume of each seed's first child on a node, which has to fetch the seed's description; else of later ones.
    #[arg(long)]
    first: bool,
    /// Have them asked for as by users, by nodes that keep zygotes and had a child of the seed before: they may be foretold.
    #[arg(long, requires = "first")]
    foretold: bool,
    /// Have each of a seed that is a new program's first, by nodes that keep zygotes: the program's own node may have made one.
    #[arg(long, requires = "first", conflicts_with = "foretold")]
    fresh: bool,
    /// Measure this strategy too, as `farfork fork --strategy` takes it: a first child of a seed on the other node, and a second, up to
    /// five times; for several, again.
    #[arg(long, value_name = "STRATEGY")]
    strategies: Vec<String>,
    /// Whether memory is encrypted between the nodes; they prove who they are either way.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
    /// Measure somebody else, too: `criu`, which must be installed, clones the program by dump and restore.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(["criu"]))]
    peer: Option<String>,
    /// Write each sample into this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchFork {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        // One thread: a hand-over between threads would be measured, too.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(self.measure(farfork))?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }

    /// Whatever ends this early, what it started is ended by dropping it.
    async fn measure(self, farfork: PathBuf) -> anyhow::Result<ForkSummary> {
        let bar = BenchProgressBar::new();
        let plan = self.parameters();
        let mut show = |progress| {
            bar.show(progress);
            ControlFlow::Continue(())
        };
        tokio::select! {
            biased;
            () = wait_for_interrupt() => {
                Err(Failure::new(Code::Cancelled, "the benchmark", "it was interrupted").into())
            }
            report = farfork_bench::run_fork(&plan, farfork, &mut show) => Ok(report?),
        }
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
