//! `farfork pause`: pauses children.

use std::process::ExitCode;

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::PauseRequest;

use super::object_outcome::{self, ObjectOutcome};
use crate::GlobalArgs;

/// Pause children, with all processes that they forked, until `farfork unpause`.
///
/// A paused child uses no CPU and keeps its memory. It receives signals when it continues. Only SIGKILL ends it at
/// once. The time of `fork --timeout` keeps running. As with SIGSTOP and SIGCONT, a blocked system call may fail with
/// EINTR. A child that is already paused is not changed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork pause n2.c00f3a96c5d217e84
  farfork ps --running --quiet | xargs farfork pause

Exit status: 0 all children are paused, 1 at least one is not, 2 wrong usage.")]
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
