//! `farfork cluster revoke` and `rotate`: revoke a member, or replace a key.

use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::PREPARE_TIMEOUT;
use farfork_api::v1;
use farfork_trust::{Role, member};
use farfork_wire::NodeName;

use crate::{GlobalArgs, output};

/// Revoke all certificates of a member.
///
/// Within seconds, all nodes reject the certificates that the member has now, and close its connections. All existing
/// join tokens become invalid too. A revoked node can join again with a new token. A revoked client needs a new
/// certificate (`farfork cluster issue`).
///
/// The command does not check that the member exists. `farfork cluster show` lists the revoked members.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster revoke n3
  farfork cluster revoke alice --role client

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Revoke {
    /// Name of the member.
    name: NodeName,
    /// Role of the member: node, client or read-only. A node and a client can have the same name.
    #[arg(long, value_name = "ROLE", default_value = "node")]
    role: Role,
}

impl Revoke {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let roster = member::revoke_identity(&global.trust(), self.role, &self.name, SystemTime::now)?;
        if global.json {
            output::print_json(&serde_json::json!({ "name": self.name, "role": self.role.as_str(), "roster": roster }));
        } else {
            let (role, name) = (self.role.as_str(), &self.name);
            output::print_line(&format!("revoked the certificates of {role} {name}, and all join tokens"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Replace the keys of nodes or the cluster's authority, while the cluster runs.
///
/// Without options, the command replaces the key of this node: the daemon at --socket renews it in its own trust
/// directory. With --all, it does the same for all nodes. Nodes also renew their keys by
/// themselves, long before the certificates expire.
///
/// The authority is replaced in two steps, and nodes trust both authorities in between. First, run --authority. Then
/// wait until `farfork cluster show` on every node lists the new authority, and give clients new certificates with
/// `farfork cluster issue`. Last, run --finish. It ends connections that use certificates of the old authority, such as
/// an attached `fork`, `wait` or `logs --follow`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster rotate --all
  farfork cluster rotate --authority && farfork cluster show
  farfork cluster rotate --finish

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Rotate {
    /// Replace the keys of all nodes that answer.
    #[arg(long)]
    all: bool,
    /// Create a new authority, which signs from now on. Nodes still trust the old one.
    #[arg(long, conflicts_with = "all")]
    authority: bool,
    /// Remove the old authority. Nodes no longer trust it.
    #[arg(long, conflicts_with_all = ["all", "authority"])]
    finish: bool,
}

impl Rotate {
    /// Whether the command makes a request to the daemon. Otherwise it changes files of the trust directory.
    pub(crate) fn uses_daemon(&self) -> bool {
        !self.authority && !self.finish
    }

    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        if self.authority {
            member::begin_rotation(&global.trust(), SystemTime::now())?;
        } else if self.finish {
            member::end_rotation(&global.trust())?;
        } else {
            return self.renew_keys(global).await;
        }
        if global.json {
            output::print_json(&serde_json::json!({ "authority": if self.finish { "finished" } else { "begun" } }));
        } else if self.finish {
            output::print_line("removed the old authority: nodes no longer trust it");
        } else {
            output::print_line("created a new authority: nodes still trust the old one until --finish");
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn renew_keys(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open_for_cluster().await?;
        let answer =
            client.rotate(request_with_timeout(PREPARE_TIMEOUT, v1::RotateRequest { all_nodes: self.all })).await;
        let answer = answer.map_err(|status| Failure::from_status("the node", &status))?.into_inner();
        for error in &answer.failed {
            output::print_failure(&Failure::from(error.clone()));
        }
        if global.json {
            let failed: Vec<String> = answer.failed.iter().map(|e| Failure::from(e.clone()).to_string()).collect();
            output::print_json(&serde_json::json!({ "nodes": answer.nodes, "failed": failed }));
        } else {
            answer.nodes.iter().for_each(|node| output::print_line(&format!("renewed the key of node {node}")));
        }
        Ok(if answer.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
