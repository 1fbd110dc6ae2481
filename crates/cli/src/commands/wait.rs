//! `farfork wait`: waits for children to end, and reports their status and output.

use std::process::ExitCode;

use clap::Args;
use farfork_api::client::Client;
use farfork_api::failure::Failure;
use farfork_api::v1::wait_event::Event;
use farfork_api::v1::{Child, WaitRequest};
use serde::Serialize;
use tonic::Code;

use crate::output::{self, ChildView, exit_text};
use crate::{GlobalArgs, duration};

/// Wait for children to end, and print their exit statuses or results.
///
/// The result of a child is the value that it returned after a checkpoint, if its program made the checkpoint itself.
/// Otherwise the result is the child's standard output. With --json, the key is `result` in the first case, and `stdout` in
/// the second.
///
/// The output follows the order of the arguments. The command prints each part as soon as it is available.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork wait n2.c00f3a96c5d217e84
  farfork fork $SEED --to any -n 8 --payloads in.jsonl --detach | xargs farfork wait --results

Exit status: 0 all children exited with 0, 1 at least one did not or --timeout expired, 2 wrong usage.")]
pub(crate) struct Wait {
    /// Ids of the children.
    #[arg(required = true, value_name = "CHILD")]
    children: Vec<String>,
    /// Print the result of each child instead of its exit status.
    ///
    /// Exit statuses other than 0 are printed on standard error.
    #[arg(long)]
    results: bool,
    /// Stop waiting after this time, such as 500ms, 30s or 10m; the children keep running [default: never].
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms)]
    timeout: Option<u64>,
}

impl Wait {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let printing = WaitPrinting { results: self.results, quiet: global.json, labels: &[] };
        let waiting = wait_for_all(&mut client, &self.children, &printing);
        let ends = match self.timeout {
            None => waiting.await?,
            Some(limit_ms) => {
                let limit = std::time::Duration::from_millis(limit_ms);
                tokio::time::timeout(limit, waiting).await.map_err(|_| timeout_failure(limit_ms))??
            }
        };
        if global.json {
            output::print_json(&serde_json::json!({ "children": ends }));
        }
        Ok(exit_code_of_all(&ends))
    }
}

/// The outcome of waiting for one child.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum WaitOutcome {
    Ended {
        #[serde(flatten)]
        child: Box<ChildView>,
        /// With --results: the child's standard output as UTF-8, unless the child returned a result.
        #[serde(skip_serializing_if = "Option::is_none")]
        stdout: Option<String>,
        /// With --results: the result that the child returned, as UTF-8.
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<String>,
    },
    Failed {
        child: String,
        error: String,
    },
}

/// Returns exit status 0 if all children ended with status 0.
pub(crate) fn exit_code_of_all(ends: &[WaitOutcome]) -> ExitCode {
    let is_well = |end: &WaitOutcome| matches!(end, WaitOutcome::Ended { child, .. } if child.exit_code == Some(0));
    if ends.iter().all(is_well) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The output of a wait.
pub(crate) struct WaitPrinting<'a> {
    /// Print results, and failures on standard error. Otherwise, exit statuses.
    pub(crate) results: bool,
    /// Print only errors and the reason for lost memory, on standard error.
    pub(crate) quiet: bool,
    /// Names of the children for messages, in order. Empty: messages have only the ids.
    pub(crate) labels: &'a [String],
}

/// Waits for all children, and prints each outcome when it arrives.
pub(crate) async fn wait_for_all(
    client: &mut Client,
    children: &[String],
    printing: &WaitPrinting<'_>,
) -> anyhow::Result<Vec<WaitOutcome>> {
    let WaitPrinting { results, quiet, labels } = *printing;
    let request = WaitRequest { children: children.to_vec(), results };
    let lost = |status| Failure::from_status("the children", &status);
    let mut events = client.wait(request).await.map_err(lost)?.into_inner();
    let mut ends = Vec::with_capacity(children.len());
    let (mut written, mut given) = (Vec::new(), Vec::new());
    while let Some(message) = events.message().await.map_err(lost)? {
        match message.event {
            Some(Event::Stdout(piece)) if quiet => written.extend(piece),
            Some(Event::Result(piece)) if quiet => given.extend(piece),
            Some(Event::Stdout(piece) | Event::Result(piece)) => output::write_bytes(&piece)?,
            Some(Event::Ended(child)) => {
                let result = take_text(&mut given);
                let stdout = (results && result.is_none()).then(|| take_text(&mut written).unwrap_or_default());
                print_outcome(&child, printing, labels.get(message.index as usize));
                ends.push(WaitOutcome::Ended { child: Box::new(child.into()), stdout, result });
            }
            Some(Event::Error(error)) => {
                let failure = Failure::from(error);
                output::print_failure(&failure);
                let child = children.get(message.index as usize).cloned().unwrap_or_default();
                ends.push(WaitOutcome::Failed { child, error: failure.to_string() });
            }
            None => {}
        }
    }
    anyhow::ensure!(ends.len() == children.len(), "the node stopped before all children had ended");
    Ok(ends)
}

/// Takes the bytes as text; `None` if there are no bytes.
fn take_text(bytes: &mut Vec<u8>) -> Option<String> {
    let bytes = std::mem::take(bytes);
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints how a child ended. Standard output may be only for results: then prints failures on standard error, and
/// nothing for a success. Always prints why memory was lost.
fn print_outcome(child: &Child, printing: &WaitPrinting<'_>, label: Option<&String>) {
    let is_well = child.exit.as_ref().and_then(output::exit_code) == Some(0);
    let text = format!("{}  {}", child.id, exit_text(child.exit.as_ref()));
    if !child.memory_lost.is_empty() {
        output::print_note(format_args!("farfork: {}", child.memory_lost));
    }
    match (printing.quiet, printing.results, is_well) {
        (true, ..) | (false, true, true) => {}
        (false, true, false) => {
            let label = label.map_or_else(String::new, |label| format!("{label}: "));
            output::print_note(format_args!("farfork: {label}{text}\n         see `farfork logs {}`", child.id));
        }
        (false, false, _) => output::print_line(&text),
    }
}

fn timeout_failure(limit_ms: u64) -> Failure {
    let cause = format!("not all have ended within {}", duration::format_ms(limit_ms));
    Failure::new(Code::DeadlineExceeded, "the children", cause)
        .with_next_step("they keep running: see `farfork ps`, wait again or `farfork kill` them")
}
