//! `farfork drop`: drops seeds.

use std::process::ExitCode;

use clap::{ArgGroup, Args};
use farfork_api::client::request_with_timeout;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::DropRequest;

use super::object_outcome::{self, ObjectOutcome};
use super::seeds::{Label, find_labelled_seeds, parse_label};
use crate::GlobalArgs;
use crate::output::print_note;

/// Drop seeds, and free their memory.
///
/// The command refuses a seed that is needed. A child on any node needs its seed until it has all of its memory (see
/// `farfork settle`). Seeds made of such a child need it too. While a node is unreachable, the command also refuses,
/// because children there may need the seed.
///
/// With --force, the command drops the seed anyway. Its children keep the pages that they have. A child that touches a
/// missing page gets SIGBUS, and its log has the reason.
#[derive(Args)]
#[command(group(ArgGroup::new("selection").required(true)))]
#[command(after_help = "\
Examples:
  farfork drop $SEED
  farfork drop --label team=blue
  farfork seeds --json | jq -r '.seeds[].seed' | xargs farfork drop

Exit status: 0 all seeds are dropped, 1 at least one is not, 2 wrong usage.")]
pub(crate) struct DropCommand {
    /// Ids or names of the seeds.
    #[arg(group = "selection", value_name = "SEED")]
    seeds: Vec<String>,
    /// Drop all seeds with this label. If repeated, a seed must have all of the labels.
    ///
    /// If no seed has them, the command succeeds.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label, group = "selection")]
    label: Vec<Label>,
    /// Drop seeds even if children or other seeds need them.
    #[arg(long)]
    force: bool,
}

impl DropCommand {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let seeds =
            if self.label.is_empty() { self.seeds } else { find_labelled_seeds(&mut client, &self.label).await? };
        if seeds.is_empty() {
            let labels: Vec<String> = self.label.iter().map(|(name, value)| format!("{name}={value}")).collect();
            print_note(format_args!("no seed has the label {}", labels.join(" and ")));
        }
        let mut outcomes = Vec::new();
        for seed in seeds {
            let request = DropRequest { seed: seed.clone(), force: self.force };
            let answer = client.clone().drop(request_with_timeout(QUERY_TIMEOUT, request)).await;
            outcomes.push(ObjectOutcome::new("seed", seed, answer.map(drop)));
        }
        Ok(object_outcome::report_outcomes("seeds", &outcomes, global.json))
    }
}
