//! `farfork drop`: seeds end.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::DropRequest;
use farfork_node::client::within;
use farfork_node::limits::QUERY_TIMEOUT;

use super::each::{self, Outcome};
use crate::Global;

/// Drop seeds, and free the memory that they hold.
///
/// Children go on with the pages that they have. A page that is missing by then cannot come any more: the child that
/// touches it gets SIGBUS, and its log says why.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork drop $SEED
  farfork seeds --json | jq -r '.seeds[].seed' | xargs farfork drop

Exit status: 0 all are dropped, 1 one or more are not, 2 wrong usage.")]
pub(crate) struct Drop {
    /// Ids or names.
    #[arg(required = true, value_name = "SEED")]
    seeds: Vec<String>,
}

impl Drop {
    pub(crate) async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let client = global.connection.open().await?;
        let mut outcomes = Vec::new();
        for seed in self.seeds {
            let request = DropRequest { seed: seed.clone() };
            let answer = client.clone().drop(within(QUERY_TIMEOUT, request)).await;
            outcomes.push(Outcome::new("seed", seed, answer.map(drop)));
        }
        Ok(each::conclude("seeds", &outcomes, global.json))
    }
}
