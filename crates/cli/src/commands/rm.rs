//! `farfork rm`: removes the records of children that have ended.

use std::process::ExitCode;

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::RemoveRequest;

use super::object_outcome::{self, ObjectOutcome};
use crate::GlobalArgs;

/// Remove the records and the output of children that have ended.
///
/// The command refuses children that still run. End them first, for example with `farfork kill`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork rm $CHILD
  farfork ps --json | jq -r '.children[] | select(.state != \"running\").child' | xargs farfork rm

Exit status: 0 all children are removed, 1 at least one is not, 2 wrong usage.")]
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
