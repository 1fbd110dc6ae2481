//! `farfork check`: reports what a prepare of a process would carry and what it would refuse, without stopping the
//! process.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use farfork_node::api::v1::{CheckRequest, CheckResponse};
use farfork_node::client::request_with_timeout;
use farfork_node::failure::Failure;
use farfork_node::limits::QUERY_TIMEOUT;

use crate::process_names::{ProcessName, ProcessNames, parse_process};
use crate::{GlobalArgs, output};

/// Say whether a process can be prepared, and what would be refused, without touching it.
///
/// Prints how much would be carried, notes about what a child will find changed, and what stands against it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork check $(pidof redis-server)
  farfork check 4711 --json | jq -r '.refusals[] | .object + \": \" + .reason'

Exit status: 0 it can be prepared, 1 it would be refused, or its node cannot be asked, 2 wrong usage.")]
pub(crate) struct Check {
    /// The process: its id, as this node numbers it, or the name that `farfork run` gave it.
    #[arg(value_name = "PID|NAME", value_parser = parse_process)]
    process: ProcessName,
    /// Where children would lack something of the process's own namespaces (mounts, host name, IPC limits, network): refuse, or let
    /// them have the node's.
    #[arg(long, value_name = "WHOSE", default_value = "own")]
    namespaces: NamespacesArgument,
}

/// Whose namespaces children are to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum NamespacesArgument {
    /// The process's: what is not carried of them is refused.
    Own,
    /// The node's: what children lack then is noted.
    Node,
}

impl Check {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let pid = ProcessNames::from_environment().resolve_pid(&self.process)?;
        let mut client = global.connection.open().await?;
        let request = CheckRequest { pid, takes_node_namespaces: self.namespaces == NamespacesArgument::Node };
        let answer = client.check(request_with_timeout(QUERY_TIMEOUT, request)).await;
        let answer = answer.map_err(|status| Failure::from_status(format!("process {pid}"), &status))?.into_inner();
        if global.json {
            output::print_json(&check_json(pid, &answer));
        } else {
            print_check(pid, &answer);
        }
        let can_be_prepared = answer.refusals.is_empty();
        Ok(if can_be_prepared { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn check_json(pid: u32, answer: &CheckResponse) -> serde_json::Value {
    let refusals = answer.refusals.iter();
    let refusals: Vec<_> =
        refusals.map(|refusal| serde_json::json!({ "object": refusal.object, "reason": refusal.reason })).collect();
    serde_json::json!({
        "pid": pid,
        "command": answer.command,
        "threads": answer.threads,
        "mappings": answer.mappings,
        "file_descriptors": answer.file_descriptors,
        "memory_bytes": answer.memory_bytes,
        "can_be_prepared": refusals.is_empty(),
        "refusals": refusals,
        "notes": answer.notes,
    })
}

fn print_check(pid: u32, answer: &CheckResponse) {
    let (threads, memory) = (output::format_threads(answer.threads), output::format_bytes(answer.memory_bytes));
    let command = format!("process {pid}: {}", output::shorten_command(&answer.command));
    // A thread of the kernel has none.
    output::print_line(command.trim_end_matches(": "));
    output::print_line(&format!("  would be carried: {threads}, {memory} of memory"));
    if answer.refusals.is_empty() {
        output::print_line("  nothing would be refused");
    }
    for note in &answer.notes {
        output::print_line(&format!("  note: {note}"));
    }
    for refusal in &answer.refusals {
        output::print_line(&format!("  would be refused: {}: {}", refusal.object, refusal.reason));
    }
}
