//! `farfork seeds`: lists the seeds of the cluster.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::{ListRequest, ListSeedsResponse, Seal, Seed};

use crate::GlobalArgs;
use crate::output::{self, SealView, SeedView, Table, format_age, format_bytes, format_microseconds, shorten_command};

/// List the seeds of all nodes.
///
/// MEMORY is the size of the pages that the seed's node holds for children. HELD is the size of deleted files that the seed
/// keeps on its node's disk for children, at most 16 GiB. PAUSE is the time for which the parent was stopped. NEEDED BY is the
/// number of children, and of seeds made of such children, that still need pages of the seed.
///
/// STATE says where the memory of the seed is. `template`: in a stopped copy of the parent, which ends with the node's
/// daemon. `sealing`: it is being written to a file. `sealed`: in that file, which outlives the daemon. `sealing failed`: in
/// the template still; `farfork inspect SEED` has the reason. `template ended`: the memory is lost, and the seed cannot be
/// forked. The template of a child's seed ends with that child.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork seeds
  farfork seeds --label team=blue
  farfork seeds --here --json | jq -r '.seeds[].seed'

Exit status: 0 success, 1 at least one node does not answer, 2 wrong usage.")]
pub(crate) struct Seeds {
    /// List only seeds of this node.
    #[arg(long)]
    here: bool,
    /// List only seeds with this label. If repeated, a seed must have all of the labels.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    label: Vec<Label>,
}

/// Name and value of a label.
pub(super) type Label = (String, String);

impl Seeds {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let request = ListRequest { this_node_only: self.here, living_only: false };
        let answer = client.list_seeds(request_with_timeout(QUERY_TIMEOUT, request)).await;
        let ListSeedsResponse { mut seeds, unanswered } =
            answer.map_err(|status| Failure::from_status("the node", &status))?.into_inner();
        seeds.retain(|seed| has_all_labels(seed, &self.label));
        let unanswered: Vec<Failure> = unanswered.into_iter().map(Failure::from).collect();
        if global.json {
            let seeds: Vec<SeedView> = seeds.into_iter().map(SeedView::from).collect();
            let unanswered: Vec<String> = unanswered.iter().map(Failure::to_string).collect();
            output::print_json(&serde_json::json!({ "seeds": seeds, "unanswered": unanswered }));
        } else {
            seeds_table(seeds).print();
            unanswered.iter().for_each(output::print_failure);
        }
        let is_complete = unanswered.is_empty();
        Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Parses a label: `NAME=VALUE`.
pub(super) fn parse_label(text: &str) -> Result<Label, String> {
    let label = text.split_once('=').filter(|(name, _)| !name.is_empty());
    label.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| "write it like team=blue".to_owned())
}

/// Returns the ids of the cluster's seeds that have all of these labels.
pub(super) async fn find_labelled_seeds(client: &mut Client, labels: &[Label]) -> Result<Vec<String>, Failure> {
    let answer = client.list_seeds(request_with_timeout(QUERY_TIMEOUT, ListRequest::default())).await;
    let mut seeds = answer.map_err(|status| Failure::from_status("the node", &status))?.into_inner().seeds;
    seeds.retain(|seed| has_all_labels(seed, labels));
    Ok(seeds.into_iter().map(|seed| seed.id).collect())
}

fn has_all_labels(seed: &Seed, labels: &[Label]) -> bool {
    labels.iter().all(|(name, value)| seed.labels.get(name) == Some(value))
}

fn seeds_table(seeds: Vec<Seed>) -> Table {
    let headings =
        ["SEED", "NAME", ">PARENT", ">THREADS", ">MEMORY", ">HELD", ">PAUSE", ">AGE", ">NEEDED BY", "STATE", "COMMAND"];
    let mut table = Table::new(&headings);
    for seed in seeds {
        table.add_row([
            seed.id,
            seed.name,
            seed.parent_pid.to_string(),
            seed.threads.to_string(),
            format_bytes(seed.memory_bytes),
            format_bytes(seed.held_file_bytes),
            format_microseconds(seed.pause_us),
            format_age(Duration::from_millis(seed.age_ms)),
            seed.needed_by_count.to_string(),
            state_text(seed.seal, seed.template_ended),
            shorten_command(&seed.command),
        ]);
    }
    table
}

/// Describes where the memory of a seed is: `template`, `template ended`, `sealing 43 %`, `sealed`.
fn state_text(seal: Option<Seal>, template_ended: bool) -> String {
    match seal.map(SealView::from) {
        _ if template_ended => "template ended".to_owned(),
        None => "template".to_owned(),
        Some(SealView { state: "sealing", done_bytes, total_bytes, .. }) => {
            format!("sealing {} %", done_bytes * 100 / total_bytes.max(1))
        }
        Some(SealView { state: "failed", .. }) => "sealing failed".to_owned(),
        Some(SealView { state, .. }) => state.to_owned(),
    }
}
