//! `farfork rm`: removes the records of children that have ended.

use std::process::ExitCode;

use clap::{ArgGroup, Args};
use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::RemoveRequest;

use super::object_outcome::{self, ObjectOutcome};
use super::ps::{list_children, node_failures};
use crate::GlobalArgs;
use crate::output;

/// Remove the records and the output of children that have ended.
///
/// The command refuses children that have not ended. End them first, for example with `farfork kill`.
#[derive(Args)]
#[command(group(ArgGroup::new("selection").required(true)))]
#[command(after_help = "\
Examples:
  farfork rm $CHILD
  farfork rm --ended

Exit status: 0 all children are removed, 1 at least one is not or a node does not answer, 2 wrong usage.")]
pub(crate) struct Rm {
    /// Ids of the children.
    #[arg(group = "selection", value_name = "CHILD")]
    children: Vec<String>,
    /// Remove all children that have ended, on all nodes.
    #[arg(long, group = "selection")]
    ended: bool,
    /// With --ended: only children on this node.
    #[arg(long, requires = "ended")]
    here: bool,
}

impl Rm {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let (children, unanswered) =
            if self.ended { list_ended(&mut client, self.here).await? } else { (self.children, Vec::new()) };
        let mut outcomes = Vec::new();
        for child in children {
            let request = RemoveRequest { child: child.clone() };
            let answer = client.clone().remove(request_with_timeout(QUERY_TIMEOUT, request)).await;
            outcomes.push(ObjectOutcome::new("child", child, answer.map(drop)));
        }
        let code = object_outcome::report_outcomes("children", &outcomes, global.json);
        unanswered.iter().for_each(output::print_failure);
        Ok(if unanswered.is_empty() { code } else { ExitCode::FAILURE })
    }
}

/// Returns the ids of ended children, and a failure for each node that did not answer.
async fn list_ended(client: &mut Client, here: bool) -> Result<(Vec<String>, Vec<Failure>), Failure> {
    let answer = list_children(client, here).await?;
    let unanswered = node_failures(&answer);
    let ended = answer.children.into_iter().filter(|child| child.exit.is_some());
    Ok((ended.map(|child| child.id).collect(), unanswered))
}
