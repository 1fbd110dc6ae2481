//! `farfork pause`: pauses children.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::PauseRequest;
use farfork_node::client::request_with_timeout;
use farfork_node::limits::QUERY_TIMEOUT;

use super::object_outcome::{self, ObjectOutcome};
use crate::GlobalArgs;

/// Have children stand still where they are, with all that they have forked, until `farfork unpause`.
///
/// A paused child uses no processor, and keeps its memory. Signals wait until it goes on, but for KILL, which ends it; its
/// --timeout runs on. A system call that waits may end with EINTR, as after SIGSTOP and SIGCONT. What is paused stays so.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork pause n2.c00f3a96c5d217e84
  farfork ps --running --quiet | xargs farfork pause

Exit status: 0 all stand still, 1 one or more do not, 2 wrong usage.")]
pub(crate) struct Pause {
    /// Ids of the children.
    #[arg(required = true, value_name = "CHILD")]
    children: Vec<String>,
}

impl Pause {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let client = global.connection.open().await?;
        let mut outcomes = Vec::new();
        for child in self.children {
            let request = PauseRequest { child: child.clone() };
            let answer = client.clone().pause(request_with_timeout(QUERY_TIMEOUT, request)).await;
            outcomes.push(ObjectOutcome::new("child", child, answer.map(drop)));
        }
        Ok(object_outcome::report_outcomes("children", &outcomes, global.json))
    }
}
