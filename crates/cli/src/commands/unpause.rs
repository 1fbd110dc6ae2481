//! `farfork unpause`: continues paused children.

use std::process::ExitCode;

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::UnpauseRequest;

use super::object_outcome::{self, ObjectOutcome};
use crate::GlobalArgs;

/// Continue paused children.
///
/// The command continues children that `farfork pause` stopped, and starts children that were forked with --paused. A
/// child that already runs is not changed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  CHILD=$(farfork fork $SEED --paused --detach)
  gdb -p $(farfork inspect $CHILD --json | jq .pid)
  farfork unpause $CHILD

Exit status: 0 all children run, 1 at least one does not, 2 wrong usage.")]
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
