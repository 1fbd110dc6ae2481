//! `farfork demo`: forks two programs across nodes, and compares the times with other ways to get the same results.
//!
//! `index` forks a search index onto two other nodes; `agent` branches an interpreter. Both use `cluster` (three
//! nodes), `program` (their Python process), `fork_round` (prepare, fork, first lines of the children) and `progress`.

mod agent;
mod cluster;
mod fork_round;
mod index;
mod program;
mod progress;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use farfork_api::failure::Failure;
use farfork_terminal::interrupt::wait_for_interrupt;
use farfork_terminal::privilege;
use tonic::Code;

use crate::{GlobalArgs, output};
use agent::AgentDemo;
use index::IndexDemo;

/// Show what farfork does: fork a process that is slow to build and slow to pickle onto other nodes.
///
/// Starts three nodes on this machine, and a Python process on the first node that builds a search index of some
/// millions of objects. Then sixteen children on the two other nodes answer a query each. The demo compares them with
/// os.fork(), with pickle and with a cold start, and checks every answer. On an idle machine, it takes about a minute.
/// It needs root, and a Python with NumPy: FARFORK_PYTHON, the one of `make setup`, or `python3`. It removes everything
/// that it made.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo farfork demo
  sudo farfork demo --documents 10000 --json
  sudo farfork demo agent

Exit status: 0 all answers were right, 1 failure, 2 wrong usage.")]
pub(crate) struct Demo {
    #[command(subcommand)]
    scenario: Option<DemoScenario>,
    #[command(flatten)]
    index: IndexDemo,
}

#[derive(Subcommand)]
enum DemoScenario {
    Agent(AgentDemo),
}

impl Demo {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = wait_for_interrupt() => Err(Failure::new(Code::Cancelled, "the demo", "it was interrupted").into()),
                outcome = self.run_scenario(global.json) => outcome,
            }
        })
    }

    async fn run_scenario(&self, json: bool) -> anyhow::Result<ExitCode> {
        match &self.scenario {
            None => {
                let report = self.index.measure().await?;
                if json { output::print_json(&report) } else { report.print() }
            }
            Some(DemoScenario::Agent(agent)) => {
                self.index.require_defaults()?;
                let report = agent.measure().await?;
                if json { output::print_json(&report) } else { report.print() }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
