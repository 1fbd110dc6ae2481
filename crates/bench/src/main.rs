//! The program `farfork-bench`: the commands `farfork bench` and `farfork stress`. `farfork` executes this program with
//! the arguments that it received.
//!
//! Exit status: 0 measured or passed, 1 failed, 2 wrong usage.
#![forbid(unsafe_code)]

mod commands;
mod placement;
mod program_path;

use std::process::ExitCode;

use clap::{Args, Parser};
use farfork_terminal::command_failure::exit_status;

use commands::Command;

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

fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let run = || {
        farfork_bench::end_with_parent()?;
        global.placement.apply()?;
        command.run(&global)
    };
    exit_status(run(), global.json)
}
