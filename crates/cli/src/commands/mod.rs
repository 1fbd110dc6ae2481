//! The commands, one file each. A file has the arguments, whose comments are the documentation, and what they do.

mod check;
mod drop;
mod each;
mod fork;
mod inspect;
mod kill;
mod logs;
mod nodes;
mod prepare;
mod ps;
mod rm;
mod seeds;
mod unpause;
mod wait;

use std::process::ExitCode;

use clap::Subcommand;

use crate::Global;
use crate::connection::block_on;

#[derive(Subcommand)]
pub(crate) enum Command {
    Check(check::Check),
    Prepare(prepare::Prepare),
    Fork(fork::Fork),
    Wait(wait::Wait),
    Ps(ps::Ps),
    Seeds(seeds::Seeds),
    Inspect(inspect::Inspect),
    Nodes(nodes::Nodes),
    Logs(logs::Logs),
    Kill(kill::Kill),
    Unpause(unpause::Unpause),
    Rm(rm::Rm),
    Drop(drop::Drop),
}

impl Command {
    /// Does it; the exit status is the command's own.
    pub(crate) fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        match self {
            Command::Check(command) => block_on(command.run(global)),
            Command::Prepare(command) => block_on(command.run(global)),
            Command::Fork(command) => block_on(command.run(global)),
            Command::Wait(command) => block_on(command.run(global)),
            Command::Ps(command) => block_on(command.run(global)),
            Command::Seeds(command) => block_on(command.run(global)),
            Command::Inspect(command) => block_on(command.run(global)),
            Command::Nodes(command) => block_on(command.run(global)),
            Command::Logs(command) => block_on(command.run(global)),
            Command::Kill(command) => block_on(command.run(global)),
            Command::Unpause(command) => block_on(command.run(global)),
            Command::Rm(command) => block_on(command.run(global)),
            Command::Drop(command) => block_on(command.run(global)),
        }
    }
}
