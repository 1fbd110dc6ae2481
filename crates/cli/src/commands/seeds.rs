//! `farfork seeds`: lists the seeds of the cluster.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::{ListRequest, ListSeedsResponse, Seal, Seed};
use farfork_node::client::{Client, request_with_timeout};
use farfork_node::failure::Failure;
use farfork_node::limits::QUERY_TIMEOUT;

use crate::GlobalArgs;
use crate::output::{self, SealView, SeedView, Table, format_age, format_bytes, format_microseconds, shorten_command};

/// List seeds of all nodes.
///
/// HELD are files that were removed or replaced since, which stay on the owner's disk for children: 16 GiB for one seed at most. PAUSE is how long the parent stood still, NEEDED BY how many children, and seeds that were made of such, want pages of it still. SEAL tells of a seed that is sealed: its memory is in an image, and it outlives
/// its parent and its node's daemon.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork seeds
  farfork seeds --label team=blue
  farfork seeds --here --json | jq -r '.seeds[].seed'

Exit status: 0 listed, 1 one or more nodes cannot be asked, 2 wrong usage.")]
pub(crate) struct Seeds {
    /// Only those of this node.
    #[arg(long)]
    here: bool,
    /// Only those that have this label; all of them, where it is repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    label: Vec<Label>,
}

/// A label's name and value.
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

/// A label as a user writes it.
pub(super) fn parse_label(text: &str) -> Result<Label, String> {
    let label = text.split_once('=').filter(|(name, _)| !name.is_empty());
    label.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| "write it like team=blue".to_owned())
}

/// Ids of the cluster's seeds that have these labels.
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
        ["SEED", "NAME", ">PARENT", ">THREADS", ">MEMORY", ">HELD", ">PAUSE", ">AGE", ">NEEDED BY", "SEAL", "COMMAND"];
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
            format_age(seed.created_unix_ms),
            seed.needed_by_count.to_string(),
            seal_text(seed.seal),
            shorten_command(&seed.command),
        ]);
    }
    table
}

/// `sealed`, `sealing 43 %`; nothing for a seed that is not to be sealed.
fn seal_text(seal: Option<Seal>) -> String {
    let Some(SealView { state, done_bytes, total_bytes, .. }) = seal.map(SealView::from) else { return String::new() };
    match state {
        "sealing" => format!("sealing {} %", done_bytes * 100 / total_bytes.max(1)),
        _ => state.to_owned(),
    }
}
