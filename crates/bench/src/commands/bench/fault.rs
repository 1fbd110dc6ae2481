//! `farfork bench fault`: how long one page fault of a child takes, alone and next to a stream of other faults.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::FaultParameters;
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// Measure single page faults: from a touch in a child to the page of its parent on another node.
///
/// Starts two nodes on this machine. Children on one of them touch pages far from each other, one by one, and tell how long
/// each touch took: back to back, after 150 ms of idleness, and while all of another child's memory streams to the same node.
/// And children of several seeds take all of their memory at the same time: how long the slowest takes, beside the mean.
///
/// Beside them stand, measured in turn in the same run: what two bare programs need to exchange a request for a page over
/// the same link and to map a copy of it (the floor), and what a thread sees that they serve; alone, and while two further
/// bare programs stream pages over that link and map them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fault                               about half a minute
  farfork bench fault --runs 2 --faults 50          a first impression
  farfork bench fault --encryption off --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a page was wrong, 2 wrong usage.")]
pub(crate) struct BenchFault {
    /// Rounds, in each of which everything is measured in turn.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Faults of a round, back to back and beside a stream.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    faults: u64,
    /// Faults of a round after idleness.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    idle_faults: u64,
    /// Memory that is streamed beside faults, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    stream_mib: u64,
    /// Children of as many seeds of 64 MiB each that take all of their memory at the same time, once a round; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=64))]
    streams: u64,
    /// Whether memory is encrypted between the nodes; they prove who they are either way.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
    /// Write each sample into this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchFault {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let plan = self.parameters();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(farfork_bench::run_fault(&plan, farfork, &mut progress_bar::show_progress()?))?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }

    fn parameters(self) -> FaultParameters {
        FaultParameters {
            runs: self.runs as usize,
            faults: self.faults as usize,
            idle_faults: self.idle_faults as usize,
            stream_mib: self.stream_mib,
            streams: self.streams as usize,
            encrypted: self.encryption == "on",
            samples_file: self.samples,
        }
    }
}
