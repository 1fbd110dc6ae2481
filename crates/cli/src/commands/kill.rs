//! `farfork kill`: sends a signal to children.

use std::process::ExitCode;

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::KillRequest;

use super::object_outcome::{self, ObjectOutcome};
use super::wait::{self, WaitPrinting};
use crate::GlobalArgs;
use crate::signal::Signal;

/// Send a signal to children.
///
/// As with kill(1), a child that handles or ignores the signal keeps running. With --wait, the command waits for the end of
/// the children, so that their seed can be dropped next.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork kill n2.c00f3a96c5d217e84
  farfork ps --running --quiet | xargs farfork kill -s KILL
  farfork kill --wait n2.c00f3a96c5d217e84 && farfork drop n1.s00f3a96c5d217e84

Exit status: 0 the signal was sent to all children, 1 at least one did not get it, 2 wrong usage.")]
pub(crate) struct Kill {
    /// Ids of the children.
    #[arg(required = true, value_name = "CHILD")]
    children: Vec<String>,
    /// Name or number of the signal, such as TERM, SIGUSR1 or 9.
    #[arg(long, short, default_value = "TERM")]
    signal: Signal,
    /// Wait until the children that got the signal have ended.
    #[arg(long)]
    wait: bool,
}

impl Kill {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let (mut outcomes, mut signalled) = (Vec::new(), Vec::new());
        for child in self.children {
            let request = KillRequest { child: child.clone(), signal: self.signal.0, by_program: false };
            let answer = client.clone().kill(request_with_timeout(QUERY_TIMEOUT, request)).await;
            signalled.extend(answer.is_ok().then(|| child.clone()));
            outcomes.push(ObjectOutcome::new("child", child, answer.map(drop)));
        }
        if self.wait && !signalled.is_empty() {
            let silent = WaitPrinting { results: false, quiet: true, labels: &[] };
            wait::wait_for_all(&mut client, &signalled, &silent).await?;
        }
        Ok(object_outcome::report_outcomes("children", &outcomes, global.json))
    }
}
