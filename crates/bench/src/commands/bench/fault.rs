//! `farfork bench fault`: how long one page fault of a child takes, alone and next to a stream of other faults.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::FaultParameters;
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::{GlobalArgs, program_path};

/// Measure single page faults: from a touch in a child to the arrival of its parent's page from another node.
///
/// The benchmark starts two nodes on this machine. Children on one node touch pages far from each other, one by one, and
/// report the time of each touch. They do so back to back, after 150 ms of idleness, and while all of another child's memory
/// arrives at the same node. Also, children of several seeds fetch all of their memory at the same time. The report has the
/// time of the slowest child next to the mean.
///
/// Next to each time of a touch, the report has two more figures, measured in turn in the same run. The floor is the time
/// that two minimal programs need to exchange a request for a page over the same link and to map a copy of the page. The
/// other figure is the time of a touch in a thread whose page faults these programs serve. Both are measured alone, and
/// while two more minimal programs transfer pages over that link and map them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fault                               about half a minute
  farfork bench fault --runs 2 --faults 50          a first impression
  farfork bench fault --encryption off --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a page was wrong, 2 wrong usage.")]
pub(crate) struct BenchFault {
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Number of faults of a round, back to back and again during a stream.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    faults: u64,
    /// Number of faults of a round after idleness.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    idle_faults: u64,
    /// Memory of the stream that runs during faults, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    stream_mib: u64,
    /// Number of children that fetch all of their memory at the same time, once per round; 0 for none.
    ///
    /// Each child has its own seed, of 64 MiB.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=64))]
    streams: u64,
    /// Encrypt memory transfers between the nodes. The nodes authenticate each other in either case.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
    /// Write each sample to this file, as a line of JSON.
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
