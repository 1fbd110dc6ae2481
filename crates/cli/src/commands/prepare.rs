//! `farfork prepare`: makes a seed of a process.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::{LABEL_BYTES_MAX, PREPARE_TIMEOUT, SEED_NAME_BYTES_MAX};
use farfork_api::v1::inspect_response::Object;
use farfork_api::v1::{InspectRequest, PrepareRequest, Seal, SealState, Seed};
use serde::Serialize;
use tonic::Code;

use super::check::NamespacesArgument;
use super::seeds::{Label, parse_label};
use crate::output::{
    self, ByteProgressBar, PhaseView, SeedView, format_bytes, format_microseconds, phase_table, phase_views,
    shorten_command,
};
use crate::process_names::{ProcessName, parse_process, resolve_pid};
use crate::{GlobalArgs, duration};

/// Make a seed of a running process, and print the seed's id.
///
/// The process is stopped for about as long as fork(2) of it takes, and then continues. The seed has its threads,
/// memory, open files and signals. If prepare cannot capture a part of the process's state, it names that part and
/// fails (see `farfork check`). The process then continues unchanged.
///
/// The memory of a seed is in a stopped copy of the process, which ends with the node's daemon. With --sealed, the node
/// copies the memory to a file in the background. The file then replaces the stopped copy, and the seed survives a
/// restart of the daemon. Dropping the seed removes the file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork prepare 4711
  farfork prepare $(pidof python3) --name warm --ttl 10m --label team=blue
  farfork prepare 4711 --json | jq .pause_us
  farfork prepare 4711 --profile
  SEED=$(farfork prepare 4711 --sealed --wait)
  farfork --socket /run/farfork/n2/node.sock prepare n2.c00f3a96c5d217e84

Exit status: 0 the seed exists, 1 prepare was refused or failed, 2 wrong usage. \
With --wait, also 1 if the seed exists but cannot be sealed.")]
pub(crate) struct Prepare {
    /// Process id, as the node sees it, name from `farfork run`, or id of a child on this node.
    #[arg(value_name = "PID|NAME|CHILD", value_parser = parse_process)]
    process: ProcessName,
    /// Name of the seed, which other commands accept instead of its id: up to 63 letters, digits, `-` and `_`.
    #[arg(long)]
    name: Option<String>,
    /// Keep the process stopped, and use it instead of a copy, until the seed is dropped or sealed.
    #[arg(long)]
    freeze: bool,
    /// Drop the seed when it was neither forked nor needed for this time, such as 30s, 10m or 2h [default: never].
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms)]
    ttl: Option<u64>,
    /// Label of the seed, by which `farfork seeds` and `farfork drop` select seeds. Can be repeated, up to 16 labels.
    ///
    /// NAME and VALUE have up to 63 letters, digits, `-`, `_`, `.` and `/` each.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    label: Vec<Label>,
    /// Copy the seed's memory to a file in the background, so that the seed outlives the process and the node's daemon.
    #[arg(long)]
    sealed: bool,
    /// Policy for a part of the process's own mount, UTS, IPC or network namespaces that children would lack.
    #[arg(long, value_name = "POLICY", default_value = "own")]
    namespaces: NamespacesArgument,
    /// Wait until the seed is sealed. Needs --sealed.
    #[arg(long, requires = "sealed")]
    wait: bool,
    /// Copy the files that the process has open for reading, or has mapped shared, while it is stopped.
    ///
    /// Children see this content even if the files are changed in place later. The process is stopped for as long as
    /// the files take to read.
    #[arg(long)]
    snapshot_files: bool,
    /// Print the time that each phase took.
    #[arg(long)]
    profile: bool,
}

/// Interval between two queries of a seed that is being sealed. Users do not notice shorter delays.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A new seed in JSON output, with its phases if they were requested.
#[derive(Serialize)]
struct PrepareView<'a> {
    #[serde(flatten)]
    seed: SeedView,
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<Vec<PhaseView<'a>>>,
}

impl Prepare {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        self.check_lengths()?;
        let mut client = global.connection.open().await?;
        let pid = resolve_pid(&mut client, &self.process, global.connection.run_dir()).await?;
        let request = PrepareRequest {
            pid,
            name: self.name.unwrap_or_default(),
            freeze: self.freeze,
            ttl_ms: self.ttl.unwrap_or(0),
            profile: self.profile,
            sealed: self.sealed,
            labels: self.label.into_iter().collect(),
            snapshot_files: self.snapshot_files,
            takes_node_namespaces: self.namespaces == NamespacesArgument::Node,
        };
        let answer = client.prepare(request_with_timeout(PREPARE_TIMEOUT, request)).await;
        let mut seed = answer.map_err(|status| Failure::from_status(format!("process {pid}"), &status))?.into_inner();
        if self.wait {
            seed.seal = Some(wait_until_sealed(&mut client, &seed.id).await?);
        }
        let seal_failure = seed.seal.as_ref().filter(|seal| seal.state() == SealState::Failed).map(|seal| {
            Failure::new(
                Code::ResourceExhausted,
                format!("seed {}", seed.id),
                format!("it is not sealed: {}", seal.failure),
            )
            .with_next_step("it can be forked while its node's daemon runs")
        });
        if global.json {
            let phases = seed.phases.clone();
            let phases = self.profile.then(|| phase_views(&phases));
            output::print_json(&PrepareView { seed: SeedView::from(seed), phases });
        } else {
            print(&seed);
            if self.profile {
                output::print_note(format_args!("\n{}", phase_table(&seed.phases)));
            }
        }
        seal_failure.iter().for_each(output::print_failure);
        Ok(if seal_failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Prepare {
    /// Refuses names and labels that are too long. The error has the length instead of the long text.
    fn check_lengths(&self) -> Result<(), Failure> {
        let refuse = |object: String, bytes_max: usize| {
            let failure = Failure::new(Code::InvalidArgument, object, format!("it may have {bytes_max} bytes at most"));
            Err(failure.with_next_step("choose a shorter one"))
        };
        if let Some(name) = self.name.as_ref().filter(|name| name.len() > SEED_NAME_BYTES_MAX) {
            return refuse(format!("name of {} bytes", name.len()), SEED_NAME_BYTES_MAX);
        }
        let parts = self.label.iter().flat_map(|(name, value)| [name, value]);
        match parts.map(String::len).max() {
            Some(bytes) if bytes > LABEL_BYTES_MAX => {
                refuse(format!("label with a name or value of {bytes} bytes"), LABEL_BYTES_MAX)
            }
            _ => Ok(()),
        }
    }
}

/// Prints only the id on standard output, for `SEED=$(farfork prepare …)`. Prints figures and notes for people on
/// standard error.
fn print(seed: &Seed) {
    output::print_note(format_args!(
        "{}: {}, {} of private memory; stopped for {}; prepare took {}",
        shorten_command(&seed.command),
        output::format_processes(seed.processes, seed.threads),
        format_bytes(seed.memory_bytes),
        format_microseconds(seed.pause_us),
        format_microseconds(seed.prepare_us),
    ));
    seed.notes.iter().for_each(|note| output::print_note(format_args!("note: {note}")));
    output::print_line(&seed.id);
}

/// Waits until the seed is sealed, or sealing fails.
async fn wait_until_sealed(client: &mut Client, id: &str) -> anyhow::Result<Seal> {
    let bar = ByteProgressBar::new("sealing");
    loop {
        let request = request_with_timeout(PREPARE_TIMEOUT, InspectRequest { id: id.to_owned() });
        let answer = client.inspect(request).await;
        let answer = answer.map_err(|status| Failure::from_status(format!("seed {id}"), &status))?.into_inner();
        let Some(Object::Seed(detail)) = answer.object else { anyhow::bail!("{id}: the node's answer is empty") };
        let Some(seal) = detail.seed.and_then(|seed| seed.seal) else {
            anyhow::bail!("{id}: no sealing was requested")
        };
        bar.show(seal.done_bytes, seal.total_bytes);
        if seal.state() != SealState::Sealing {
            return Ok(seal);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
