//! The one binary, `farfork`: parses the command line and passes it to the command's own file.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage; an attached single `fork` gives the child's own.
#![forbid(unsafe_code)]

mod commands;
mod connection;
mod duration;
mod interrupt;
mod log;
mod manual;
mod output;
mod payload;
mod privilege;
mod process_names;
mod signal;
mod size;

use std::process::ExitCode;

use clap::{Args, Parser};
use farfork_node::failure::Failure;

use commands::Command;
use connection::ConnectionArgs;

/// `fork(2)` that reaches other machines.
///
/// A running, unmodified process becomes a seed; any node of the cluster turns the seed into running children, whose
/// memory follows over the network as they touch it.
#[derive(Parser)]
#[command(name = "farfork", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  farfork up --nodes 3                      a small cluster on this machine
  SEED=$(farfork prepare 4711)              process 4711 becomes a seed, and runs on
  farfork fork $SEED --to n2                a child of it on node n2, attached to this terminal
  farfork fork $SEED --to any -n 8 --detach eight children, spread over the cluster
  farfork down                              ends the cluster
  source <(farfork completions bash)        this shell completes commands and options

Exit status: 0 done, 1 failed, 2 wrong usage; an attached single `fork` gives the child's own.")]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// What each command takes.
#[derive(Args, Clone)]
pub(crate) struct GlobalArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Print one JSON document with stable keys.
    #[arg(long, global = true, display_order = 103)]
    json: bool,
}

impl GlobalArgs {
    /// Who this machine is, and whom it trusts.
    fn trust(&self) -> farfork_trust::TrustDirectory {
        self.connection.trust_directory()
    }
}

/// What a shell says of a program that SIGPIPE has killed, as one of whose output nobody reads is.
const EXIT_SIGPIPE: u8 = 128 + 13;

fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let json = global.json;
    match command.run(global) {
        Ok(_) if output::is_output_lost() => ExitCode::FAILURE,
        Ok(status) => status,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::from(EXIT_SIGPIPE),
        Err(error) => {
            report_error(&error, json);
            ExitCode::FAILURE
        }
    }
}

/// Says what failed: for people on standard error, for scripts on standard output too.
fn report_error(error: &anyhow::Error, json: bool) {
    let failure = error.downcast_ref::<Failure>();
    match failure {
        Some(failure) => output::print_failure(failure),
        None => eprintln!("farfork: {}", error_chain_text(error)),
    }
    if json {
        let text = failure.map_or_else(|| error_chain_text(error), Failure::to_string);
        output::print_json(&serde_json::json!({ "error": text }));
    }
}

/// An error and what caused it, each once: many an error has its cause in its own words.
fn error_chain_text(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |told, cause| match told.as_str() {
        "" => cause,
        before if before.contains(&cause) => told,
        before => format!("{before}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = anyhow::anyhow!("too many open files");
        let nested = cause.context("cannot look (too many open files)").context("node q");
        assert_eq!(error_chain_text(&nested), "node q: cannot look (too many open files)");
    }
}
