//! `farfork cluster`: manages the members of a cluster. Only `rotate` without --authority and --finish needs a daemon. `deploy`
//! and `undeploy` use the hosts of an inventory, and the other subcommands the files of the trust directory.

mod deployment;
mod enrollment;
mod revocation;
mod set_catalog;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use farfork_api::failure::Failure;
use tonic::Code;

use crate::GlobalArgs;
use crate::connection::{ConnectionOption, block_on};

/// Manage the members and the keys of a cluster.
///
/// The machine on which `farfork cluster init` ran holds the cluster's authority: the key that signs all certificates.
/// Run `token`, `issue`, `revoke` and `rotate --authority` there. The trust directory of this machine (--trust) gives
/// control of all nodes. Protect the directory, and keep a backup in a safe place.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster deploy --inventory HOSTS.toml
  farfork cluster init --name n1
  farfork cluster token --ttl 10m
  farfork cluster issue dashboard --role read-only --out ./dashboard
  farfork cluster revoke n3

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    Deploy(deployment::DeployCluster),
    Undeploy(deployment::UndeployCluster),
    Init(enrollment::Init),
    Token(enrollment::TokenCommand),
    Join(enrollment::JoinCluster),
    Issue(enrollment::Issue),
    Revoke(revocation::Revoke),
    Rotate(revocation::Rotate),
    SetCatalog(set_catalog::SetCatalog),
    Show(show::Show),
}

impl ClusterArguments {
    /// The options of the connection that the command uses. It refuses a node by itself.
    pub(crate) fn connection_options(&self) -> &'static [ConnectionOption] {
        use ConnectionOption::{Node, RunDir, Socket, Trust};
        match &self.command {
            ClusterCommand::Rotate(command) if command.uses_daemon() => &[Socket, RunDir, Node],
            ClusterCommand::Deploy(_) | ClusterCommand::Undeploy(_) => &[],
            _ => &[Node, Trust],
        }
    }

    pub(crate) fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        if let Some(address) = global.connection.node_address() {
            let cause = "`farfork cluster` acts on this machine's daemon and trust directory only";
            let refused = Failure::new(Code::InvalidArgument, format!("node {address}"), cause);
            return Err(refused
                .with_next_step("drop --node and FARFORK_NODE, and run the command on that machine")
                .into());
        }
        match self.command {
            ClusterCommand::Init(command) => command.run(&global),
            ClusterCommand::Token(command) => command.run(&global),
            ClusterCommand::Join(command) => block_on(command.run(global)),
            ClusterCommand::Issue(command) => command.run(&global),
            ClusterCommand::Deploy(command) => block_on(command.run(global)),
            ClusterCommand::Undeploy(command) => block_on(command.run(global)),
            ClusterCommand::Revoke(command) => command.run(&global),
            ClusterCommand::Rotate(command) => block_on(command.run(global)),
            ClusterCommand::SetCatalog(command) => command.run(&global),
            ClusterCommand::Show(command) => command.run(&global),
        }
    }
}
