//! `farfork cluster`: manages the members of a cluster. Most subcommands only need the trust directory, not a daemon.

mod enrollment;
mod revocation;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::GlobalArgs;
use crate::connection::block_on;

/// Make a cluster, let machines and people into it, throw them out, change its keys.
///
/// The machine where `farfork cluster init` was run holds the cluster's authority, and tokens, certificates, revocations
/// and rotations are made there. Its trust directory (--trust) is worth as much as all nodes together: keep it, and a
/// copy of it in a safe.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster init --name n1
  farfork cluster token --ttl 10m
  farfork cluster issue dashboard --role read-only --out ./dashboard
  farfork cluster revoke n3

Exit status: 0 done, 1 failed, 2 wrong usage.")]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    Init(enrollment::Init),
    Token(enrollment::TokenCommand),
    Issue(enrollment::Issue),
    Revoke(revocation::Revoke),
    Rotate(revocation::Rotate),
    Show(show::Show),
}

impl ClusterArguments {
    pub(crate) fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        match self.command {
            ClusterCommand::Init(command) => command.run(&global),
            ClusterCommand::Token(command) => command.run(&global),
            ClusterCommand::Issue(command) => command.run(&global),
            ClusterCommand::Revoke(command) => command.run(&global),
            ClusterCommand::Rotate(command) => block_on(command.run(global)),
            ClusterCommand::Show(command) => command.run(&global),
        }
    }
}
