//! `farfork demo`: forks a Python program with a large array onto two other nodes, and compares it with a local fork
//! and a cold start. This file has the sequence; `cluster`, `program`, `measurement` and `report` have the parts.

mod cluster;
mod measurement;
mod program;
mod report;

use std::io::{IsTerminal as _, stderr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_terminal::interrupt::wait_for_interrupt;
use farfork_terminal::privilege;
use indicatif::ProgressBar;
use tokio::task::block_in_place;
use tonic::Code;

use crate::{GlobalArgs, output};
use cluster::DemoCluster;
use measurement::ArrayPart;
use program::DemoProgram;
use report::DemoReport;

/// Children on each of the two other nodes.
const CHILDREN_PER_NODE: usize = 4;

/// Show what farfork does: fork a Python program with a large array onto other nodes.
///
/// Starts three nodes on this machine, and a Python program that has imported NumPy and filled an array. Makes a seed
/// of it, forks four children onto each of two other nodes, each with a part of the array to add up, checks the
/// results, and shows the figures beside those of a local fork and of a cold start. Takes some seconds, needs root and
/// a Python with NumPy (FARFORK_PYTHON, or `python3`), and leaves nothing behind.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo farfork demo
  sudo farfork demo --memory 1024 --json

Exit status: 0 all children gave the right results, 1 failed, 2 wrong usage.")]
pub(crate) struct Demo {
    /// Size of the array, in MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    memory: u64,
}

impl Demo {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let report = runtime.block_on(async {
            tokio::select! {
                biased;
                () = wait_for_interrupt() => Err(Failure::new(Code::Cancelled, "the demo", "it was interrupted").into()),
                report = self.measure() => report,
            }
        })?;
        if global.json {
            output::print_json(&report)
        } else {
            report.print()
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Whatever ends this early, what it started is ended by dropping it.
    async fn measure(&self) -> anyhow::Result<DemoReport> {
        let python = program::find_python()?;
        let scratch = program::DemoDirectory::make()?;
        let progress = DemoSpinner::start();

        progress.show_step("starting three nodes");
        let cluster = block_in_place(|| DemoCluster::start(scratch.path()))?;
        progress.show_step(&format!("starting Python with NumPy and an array of {} MiB", self.memory));
        let mut parent = block_in_place(|| DemoProgram::start(&python, &scratch, "parent", self.memory))?;
        block_in_place(|| parent.wait_ready())?;

        let parts = ArrayPart::split_array(self.memory, 2 * CHILDREN_PER_NODE);
        progress.show_step("preparing it, and forking it onto two other nodes");
        let across = measurement::fork_across_nodes(&cluster, parent.pid(), &parts).await?;
        progress.show_step("doing the same with a local fork");
        let local = block_in_place(|| measurement::run_local_fork(&python, &scratch, self.memory, &parts))?;
        progress.show_step("doing the same with a cold start");
        let cold = block_in_place(|| measurement::run_cold_start(&python, &scratch, self.memory, &parts[0]))?;

        progress.show_step("taking everything down");
        parent.check_alive()?;
        drop(parent);
        block_in_place(|| cluster.stop())?;
        Ok(DemoReport { array_bytes: self.memory << 20, across, local, cold })
    }
}

/// What the demo is doing, on a terminal only.
struct DemoSpinner(ProgressBar);

impl DemoSpinner {
    fn start() -> Self {
        let bar = if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    fn show_step(&self, step: &str) {
        self.0.set_message(step.to_owned());
    }
}

impl Drop for DemoSpinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
