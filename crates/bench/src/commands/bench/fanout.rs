//! `farfork bench fanout`: how long many children of one seed take from the request to their results.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use farfork_bench::{ChildNetwork, FanoutParameters};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// Which network a child is in.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum NetworkMode {
    Private,
    Shared,
    Host,
}

impl From<NetworkMode> for ChildNetwork {
    fn from(mode: NetworkMode) -> Self {
        match mode {
            NetworkMode::Private => Self::Private,
            NetworkMode::Shared => Self::Shared,
            NetworkMode::Host => Self::Host,
        }
    }
}

/// Measure many children of one seed: how many a second, how soon each has its result, what memory each has for itself.
///
/// Starts nodes on this machine. In one request a parent's children are asked for on all of them; each touches four
/// pages of its own choice, writes what it made of them, and ends. Every result is checked, and each is another: a wrong one
/// fails the run. Results are waited for as any client does.
///
/// Beside them stand, measured in turn in the same run, local forks of the same memory that do the same, as many at once as a
/// node starts: bare, and each into the namespaces of a container that was there before. And just what the kernel must do for a
/// child in a container of its own, two at once: control group, namespaces, /proc, network, process 1, the fork, all ends. Where that is
/// not permitted, or the machine has no unified hierarchy of control groups, it is said.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fanout                                  200 children over two nodes, five rounds
  farfork bench fanout --children 1000 --seconds 60 --runs 1
  farfork bench fanout --children 1000 --seconds 60 --runs 1 --net shared
  farfork bench fanout --children 100 --nodes 3 --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a result was wrong, 2 wrong usage.")]
pub(crate) struct BenchFanout {
    /// Children of a fan-out.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    children: u64,
    /// Nodes that they are spread over; their parent is on the first.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10))]
    nodes: u64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Rounds, in each of which everything is measured in turn.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// In a round, let one fan-out follow the other for so many seconds [default: one of each].
    #[arg(long, value_name = "SECONDS", value_parser = crate::commands::load::parse_seconds)]
    seconds: Option<f64>,
    /// Containers that each node keeps ready [default: as many as a node does by itself].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pool: Option<u64>,
    /// Zygotes that each node keeps, 0 for none [default: as many as a node does by itself].
    #[arg(long, value_name = "N")]
    zygotes: Option<u64>,
    /// The network of the children, and of local forks into namespaces: each its own, one for all of a fan-out on a node, or the
    /// node's.
    #[arg(long, value_name = "KIND", default_value = "private")]
    net: NetworkMode,
    /// Whether memory is encrypted between the nodes; they prove who they are either way.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
    /// Write each sample into this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchFanout {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let plan = FanoutParameters {
            children: self.children,
            nodes: self.nodes as usize,
            mib: self.mib,
            runs: self.runs as usize,
            seconds: self.seconds.unwrap_or(0.0),
            pool: self.pool,
            zygotes: self.zygotes,
            network: self.net.into(),
            encrypted: self.encryption == "on",
            samples_file: self.samples,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report =
            runtime.block_on(farfork_bench::run_fanout(&plan, farfork, &mut progress_bar::show_progress()?))?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }
}
