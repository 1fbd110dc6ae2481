//! `farfork drop`: drops seeds.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::DropRequest;
use farfork_node::client::request_with_timeout;
use farfork_node::limits::QUERY_TIMEOUT;

use super::object_outcome::{self, ObjectOutcome};
use super::seeds::{Label, find_labelled_seeds, parse_label};
use crate::GlobalArgs;

/// Drop seeds, and free the memory that they hold.
///
/// A seed that somebody needs stays: children, on any node, that have not all of their memory (see `farfork settle`), and seeds that
/// were made of such children. With --force it is dropped all the same. Children go on with the pages that they have then; one that
/// touches a page that is missing gets SIGBUS, and its log says why.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork drop $SEED
  farfork drop --label team=blue
  farfork seeds --json | jq -r '.seeds[].seed' | xargs farfork drop

Exit status: 0 all are dropped, 1 one or more are not, or are needed, 2 wrong usage.")]
pub(crate) struct DropCommand {
    /// Ids or names.
    #[arg(required_unless_present = "label", value_name = "SEED")]
    seeds: Vec<String>,
    /// Those that have this label; all of them, where it is repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label, conflicts_with = "seeds")]
    label: Vec<Label>,
    /// Also those that somebody needs.
    #[arg(long)]
    force: bool,
}

impl DropCommand {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let seeds =
            if self.label.is_empty() { self.seeds } else { find_labelled_seeds(&mut client, &self.label).await? };
        let mut outcomes = Vec::new();
        for seed in seeds {
            let request = DropRequest { seed: seed.clone(), force: self.force };
            let answer = client.clone().drop(request_with_timeout(QUERY_TIMEOUT, request)).await;
            outcomes.push(ObjectOutcome::new("seed", seed, answer.map(drop)));
        }
        Ok(object_outcome::report_outcomes("seeds", &outcomes, global.json))
    }
}
