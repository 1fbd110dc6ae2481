//! The commands of `farfork-bench`: arguments, progress and verdicts. The library `farfork_bench` measures.

mod bench;
mod function_call;
mod load;
mod stress;

use std::process::ExitCode;

use clap::{CommandFactory as _, Subcommand};
use farfork_terminal::manual::{self, ManualArguments};
use farfork_terminal::output;
use serde_json::json;

use crate::{Cli, GlobalArgs};

#[derive(Subcommand)]
pub(crate) enum Command {
    Bench(bench::BenchCommand),
    Stress(stress::Stress),
    /// Print or write the manual pages of these commands. `farfork man` runs this command.
    #[command(hide = true)]
    Man(ManualArguments),
}

impl Command {
    /// Runs the command, and returns its exit status.
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        match self {
            Command::Bench(command) => command.run(global),
            Command::Stress(command) => command.run(global),
            Command::Man(arguments) => print_manual(&arguments, global.json),
        }
    }
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
