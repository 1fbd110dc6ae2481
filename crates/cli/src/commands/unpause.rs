//! `farfork unpause`: continues paused children.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::UnpauseRequest;
use farfork_node::client::request_with_timeout;
use farfork_node::limits::QUERY_TIMEOUT;

use super::object_outcome::{self, ObjectOutcome};
use crate::GlobalArgs;

/// Let children go on that `farfork pause` stopped, and those that were forked with --paused make their first step.
///
/// What runs goes on as it does.
#[derive(Args)]
#[command(after_help = "\
Examples:
  CHILD=$(farfork fork $SEED --paused --detach)
  gdb -p $(farfork inspect $CHILD --json | jq .pid)
  farfork unpause $CHILD

Exit status: 0 all run, 1 one or more do not, 2 wrong usage.")]
pub(crate) struct Unpause {
    /// Ids of the children.
    #[arg(required = true, value_name = "CHILD")]
    children: Vec<String>,
}

impl Unpause {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let client = global.connection.open().await?;
        let mut outcomes = Vec::new();
        for child in self.children {
            let request = UnpauseRequest { child: child.clone() };
            let answer = client.clone().unpause(request_with_timeout(QUERY_TIMEOUT, request)).await;
            outcomes.push(ObjectOutcome::new("child", child, answer.map(drop)));
        }
        Ok(object_outcome::report_outcomes("children", &outcomes, global.json))
    }
}
