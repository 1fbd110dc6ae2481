//! `farfork bench fanout`: how long many children of one seed take from the request to their results.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use farfork_bench::{ChildNetwork, FanoutParameters};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// The network of the children.
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

/// Measure many children of one seed: their rate, the time to each result, and the memory that each uses alone.
///
/// The benchmark starts nodes on this machine. One request starts children of one parent on all nodes. Each child touches
/// four pages of its own choice, writes a result that depends on them, and exits. The benchmark waits for the results as any
/// client does. It checks every result, and each result differs. A wrong result fails the run.
///
/// The report has floors next to each figure, measured in turn in the same run. Two floors are local forks of the same
/// memory that do the same work: with and without the namespaces of an existing container. As many run at the same time
/// as a node starts. A further floor is the work of the kernel for a child in its own container, two at the same time.
/// This work is a control group, namespaces, /proc, a network, process 1, the fork, and the end of all of them. If this
/// work is not permitted, or the machine has no unified hierarchy of control groups, the report says so.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fanout                                  200 children on two nodes, five rounds
  farfork bench fanout --children 1000 --seconds 60 --runs 1
  farfork bench fanout --children 1000 --seconds 60 --runs 1 --net shared
  farfork bench fanout --children 100 --nodes 3 --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a result was wrong, 2 wrong usage.")]
pub(crate) struct BenchFanout {
    /// Number of children of a fan-out.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    children: u64,
    /// Number of nodes for the children. The parent is on the first node.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10))]
    nodes: u64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Time for which each round repeats the fan-out, in seconds [default: one fan-out per round].
    #[arg(long, value_name = "SECONDS", value_parser = crate::commands::load::parse_seconds)]
    seconds: Option<f64>,
    /// Number of containers that each node keeps ready [default: as `farfork node`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pool: Option<u64>,
    /// Maximum number of zygotes of each node; 0 for none [default: as `farfork node`].
    #[arg(long, value_name = "N")]
    zygotes: Option<u64>,
    /// Network of the children, and of the local forks into namespaces: `private`, `shared` or `host`.
    ///
    /// `private` is a network for each child. `shared` is one network for all children of a fan-out on the same node.
    /// `host` is the network of the node.
    #[arg(long, value_name = "KIND", default_value = "private")]
    net: NetworkMode,
    /// Encrypt memory transfers between the nodes. The nodes authenticate each other in either case.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
    /// Write each sample to this file, as a line of JSON.
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
