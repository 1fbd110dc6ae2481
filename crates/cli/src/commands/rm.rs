//! `farfork rm`: removes the records of children that have ended.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::RemoveRequest;
use farfork_node::client::request_with_timeout;
use farfork_node::limits::QUERY_TIMEOUT;

use super::object_outcome::{self, ObjectOutcome};
use crate::GlobalArgs;

/// Forget children that have ended, with what they wrote.
///
/// A child that runs is refused: `farfork kill` it first.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork rm $CHILD
  farfork ps --json | jq -r '.children[] | select(.state != \"running\").child' | xargs farfork rm

Exit status: 0 all are forgotten, 1 one or more are not, 2 wrong usage.")]
pub(crate) struct Rm {
    /// Ids of the children.
    #[arg(required = true, value_name = "CHILD")]
    children: Vec<String>,
}

impl Rm {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let client = global.connection.open().await?;
        let mut outcomes = Vec::new();
        for child in self.children {
            let request = RemoveRequest { child: child.clone() };
            let answer = client.clone().remove(request_with_timeout(QUERY_TIMEOUT, request)).await;
            outcomes.push(ObjectOutcome::new("child", child, answer.map(drop)));
        }
        Ok(object_outcome::report_outcomes("children", &outcomes, global.json))
    }
}
