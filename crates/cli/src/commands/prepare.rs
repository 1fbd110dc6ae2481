//! `farfork prepare`: a process becomes a seed.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::{PrepareRequest, Seed};
use farfork_node::client::within;
use farfork_node::failure::Failure;
use farfork_node::limits::PREPARE_TIMEOUT;
use serde::Serialize;

use crate::output::{self, PhaseView, SeedView, bytes, microseconds, phase_table, phase_views, shortened};
use crate::{Global, seconds};

/// Make a seed of a running process, which runs on.
///
/// The process stands still for about as long as a fork(2) of it takes. Its threads, memory, files and signals are
/// carried; what cannot be is refused by name (see `farfork check`), and the process is left as it was. The id of
/// the seed is printed on standard output.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork prepare 4711
  farfork prepare $(pidof python3) --name warm --ttl 10m
  farfork prepare 4711 --json | jq .pause_us
  farfork prepare 4711 --profile

Exit status: 0 there is a seed, 1 refused or failed, and the process is as it was, 2 wrong usage.")]
pub(crate) struct Prepare {
    /// The process, as this node numbers it.
    pid: u32,
    /// A name for the seed, which other commands take in its id's place.
    #[arg(long)]
    name: Option<String>,
    /// Keep the process stopped and use it as it is, until the seed is dropped.
    #[arg(long)]
    freeze: bool,
    /// Drop the seed after this time, for example 30s, 10m or 2h [default: never].
    #[arg(long, value_name = "TIME", value_parser = seconds::parse_ms)]
    ttl: Option<u64>,
    /// Say where the time went, phase by phase.
    #[arg(long)]
    profile: bool,
}

/// A new seed, with its phases where they were asked for.
#[derive(Serialize)]
struct PrepareView<'a> {
    #[serde(flatten)]
    seed: SeedView,
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<Vec<PhaseView<'a>>>,
}

impl Prepare {
    pub(crate) async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let request = PrepareRequest {
            pid: self.pid,
            name: self.name.unwrap_or_default(),
            freeze: self.freeze,
            ttl_ms: self.ttl.unwrap_or(0),
            profile: self.profile,
        };
        let mut client = global.connection.open().await?;
        let answer = client.prepare(within(PREPARE_TIMEOUT, request)).await;
        let seed =
            answer.map_err(|status| Failure::from_status(format!("process {}", self.pid), &status))?.into_inner();
        if global.json {
            let phases = seed.phases.clone();
            let phases = self.profile.then(|| phase_views(&phases));
            output::json(&PrepareView { seed: SeedView::from(seed), phases });
        } else {
            print(&seed);
            if self.profile {
                eprintln!("\n{}", phase_table(&seed.phases));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The id alone on standard output, for `SEED=$(farfork prepare …)`; the figures beside it, for people.
fn print(seed: &Seed) {
    eprintln!(
        "{}: {} threads, {} of memory; it stood still for {}, all took {}",
        shortened(&seed.command),
        seed.threads,
        bytes(seed.memory_bytes),
        microseconds(seed.pause_us),
        microseconds(seed.prepare_us),
    );
    output::line(&seed.id);
}
