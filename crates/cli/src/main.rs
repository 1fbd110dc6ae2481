//! The binary `farfork`: parses the command line and calls the file of the command.
//!
//! Exit status: 0 success, 1 failure, 2 wrong usage. `fork` of a single attached child exits with the child's status.
//! `volume check` exits with 3 when the replicas cannot be compared.
#![forbid(unsafe_code)]

mod commands;
mod connection;
mod duration;
mod log;
mod output;
mod payload;
mod process_names;
mod signal;
mod size;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser};
use farfork_terminal::command_failure::exit_status;

use commands::{Command, bench_program};
use connection::ConnectionArgs;

/// fork(2) across machines.
///
/// farfork makes a seed of a running, unmodified process. Any node of the cluster can start children of the seed. A
/// child fetches its memory over the network when it touches it.
#[derive(Parser)]
#[command(name = "farfork", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  farfork up --nodes 3                      start a cluster on this machine
  SEED=$(farfork prepare 4711)              make a seed of process 4711, which keeps running
  farfork fork $SEED --to n2                start a child on node n2, attached to this terminal
  farfork fork $SEED --to any -n 8 --detach start eight children, spread over the cluster
  farfork down                              stop the cluster
  source <(farfork completions bash)        enable completion in this shell

Exit status: 0 success, 1 failure, 2 wrong usage. `fork` of a single attached child exits with the child's status.")]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

impl Cli {
    /// Parses a command line, which begins with the name of the program.
    fn parse(line: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(line)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let applied = cli.global.connection.apply_command_line(cli.command.connection_options(), &matches);
        applied.map_err(|text| Self::command().error(ErrorKind::ArgumentConflict, text))?;
        if cli.global.json && cli.command.prints_text_only() {
            let text = "this command does not use --json; drop it";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        Ok(cli)
    }

    /// Parses the command line of this process. Ends it after a usage error.
    fn parse_command_line() -> Self {
        Self::parse(env::args_os()).unwrap_or_else(|mut error: clap::Error| {
            if error.kind() == ErrorKind::InvalidSubcommand && error.get(ContextKind::SuggestedSubcommand).is_none() {
                let hint = ContextValue::StyledStrs(vec!["`farfork help` lists the commands".into()]);
                error.insert(ContextKind::Suggested, hint);
            }
            error.exit()
        })
    }
}

/// Options of every command.
#[derive(Args, Clone)]
pub(crate) struct GlobalArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Print the result as a JSON document with stable keys.
    #[arg(long, global = true, display_order = 103)]
    json: bool,
}

impl GlobalArgs {
    /// The trust directory: the identity of this machine, and the authorities that it trusts.
    fn trust(&self) -> farfork_trust::TrustDirectory {
        self.connection.trust_directory()
    }
}

fn main() -> ExitCode {
    if let Some(arguments) = bench_program::help_arguments(env::args_os()) {
        return exit_status(Err(bench_program::execute(arguments)), false);
    }
    let Cli { global, command } = Cli::parse_command_line();
    let json = global.json;
    exit_status(command.run(global), json)
}
