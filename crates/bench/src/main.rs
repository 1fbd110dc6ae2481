//! The program `farfork-bench`: the commands `farfork bench` and `farfork stress`. `farfork` executes this program with
//! the arguments that it received.
//!
//! Exit status: 0 measured or passed, 1 failed, 2 wrong usage.
#![forbid(unsafe_code)]

// benchmark/  `farfork bench`: one module per benchmark, with its arguments, steps, figures and tables
// stress/     `farfork stress`: one module per long run
//   │  experiment/: what they share: nodes, clients, children, checks of logs and leaks
//   ├─▶ workload/   measured programs           ─┐ C++ programs, embedded in this program
//   └─▶ baseline/   floors, CRIU and GlusterFS  ─┘ (`machine` runs them)
//
// `figure` describes a measured figure, `samples` has its samples, and `report` the tables and plots that a benchmark makes
// of them: as text, as JSON, and in pages. `options` has options that several benchmarks share, and `reference` the
// published figures. If both sides of a connection are measured, each side is an `endpoint`: another process of this
// program. `peer` has other RPC systems.
//
// `machine` is the interface to the machines on which everything runs. `scratch` has the files of a run, and removes them
// with the nodes if the benchmark is killed. `suite` runs all benchmarks, each as a process. `plan` runs commands and
// experiments on remote hosts.

mod baseline;
mod benchmark;
mod endpoint;
mod error;
mod experiment;
mod figure;
mod machine;
mod options;
mod peer;
mod placement;
mod plan;
mod reference;
mod report;
mod samples;
mod scratch;
mod stress;
mod suite;
mod workload;

use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use farfork_terminal::command_failure::exit_status;
use farfork_terminal::manual::{self, ManualArguments};
use farfork_terminal::output;
use serde_json::json;

use benchmark::BenchCommand;
use machine::program::end_with_parent;
use stress::StressCommand;

/// The command line, under the name of the program that the user typed.
#[derive(Parser)]
#[command(name = "farfork", bin_name = "farfork", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// The options of each command.
#[derive(Args, Clone)]
pub(crate) struct GlobalArgs {
    /// Print one JSON document with stable keys.
    #[arg(long, global = true, display_order = 103)]
    json: bool,
    #[command(flatten)]
    placement: placement::PlacementArgs,
}

#[derive(Subcommand)]
enum Command {
    Bench(BenchCommand),
    Stress(StressCommand),
    /// Print or write the manual pages of these commands. `farfork man` runs this command.
    #[command(hide = true)]
    Man(ManualArguments),
}

impl Command {
    /// Runs the command, and returns its exit status.
    fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        match self {
            Command::Bench(command) => command.run(global),
            Command::Stress(command) => command.run(global),
            Command::Man(arguments) => print_manual(&arguments, global.json),
        }
    }
}

fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let run = || {
        end_with_parent()?;
        global.placement.apply()?;
        command.run(&global)
    };
    exit_status(run(), global.json)
}

/// Prints one manual page, or writes all pages. Skips the first page, `farfork` itself, which this program does not
/// contain.
fn print_manual(arguments: &ManualArguments, json: bool) -> anyhow::Result<ExitCode> {
    let root = manual::build_command(Cli::command());
    let pages: Vec<_> = manual::manual_pages(&root).into_iter().skip(1).collect();
    match &arguments.output {
        Some(directory) => {
            let names = manual::write_pages(directory, &pages)?;
            if json {
                output::print_json(&json!({ "directory": directory, "pages": names }));
            }
        }
        None => manual::print_page(&root, &pages, &arguments.command)?,
    }
    Ok(ExitCode::SUCCESS)
}
