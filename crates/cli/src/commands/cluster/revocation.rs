//! `farfork cluster revoke` and `rotate`: revoke a member, or replace a key.

use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use farfork_node::api::v1;
use farfork_node::client::request_with_timeout;
use farfork_node::failure::Failure;
use farfork_node::limits::PREPARE_TIMEOUT;
use farfork_trust::{Role, member};
use farfork_wire::NodeName;

use crate::{GlobalArgs, output};

/// Trust a member no longer: what was issued to it until now counts nowhere within seconds, and its connections end.
///
/// Join tokens that are out become worthless too. A node that is to come back joins again with a new token.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster revoke n3
  farfork cluster revoke alice --role client

Exit status: 0 done, 1 failed, 2 wrong usage.")]
pub(crate) struct Revoke {
    /// Whom.
    name: NodeName,
    /// As what.
    #[arg(long, value_name = "ROLE", default_value = "node")]
    role: Role,
}

impl Revoke {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let roster = member::revoke_identity(&global.trust(), self.role, &self.name, SystemTime::now)?;
        if global.json {
            output::print_json(&serde_json::json!({ "name": self.name, "role": self.role.as_str(), "roster": roster }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Change keys while everything runs: a node's own, or the cluster's authority.
///
/// Nodes renew their keys by themselves, long before the certificates end. The authority is changed in two steps, between
/// which both are trusted: `--authority`, then, when `farfork cluster show` on every node names the new one, `--finish`.
/// Clients get new certificates with `farfork cluster issue` in between. What stands on connections that began before that
/// (an attached `fork`, `wait`, `logs --follow`) ends with `--finish`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster rotate --all
  farfork cluster rotate --authority && farfork cluster show
  farfork cluster rotate --finish

Exit status: 0 done, 1 failed, 2 wrong usage.")]
pub(crate) struct Rotate {
    /// The keys of all nodes that answer, not of this one alone.
    #[arg(long)]
    all: bool,
    /// Begin to change the authority: a new one issues, the old one is still trusted.
    #[arg(long, conflicts_with = "all")]
    authority: bool,
    /// End the change of the authority: the old one is trusted no longer.
    #[arg(long, conflicts_with_all = ["all", "authority"])]
    finish: bool,
}

impl Rotate {
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
        }
        Ok(if answer.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
