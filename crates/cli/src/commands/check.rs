//! `farfork check`: reports what a prepare of a process would carry and what it would refuse, without stopping the
//! process.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::{CheckRequest, CheckResponse, VolumeObject};

use crate::process_names::{ProcessName, parse_process, resolve_pid};
use crate::{GlobalArgs, output};

/// Check whether a process can be prepared, without stopping it.
///
/// Prints the size of the seed, notes on what children will find changed, and each reason why `farfork prepare` would
/// refuse the process. Also prints what the process has on volumes: a child runs only on a node that has the same volume
/// mounted at the same path.
///
/// The process runs on, so its data changes. Data in sockets that a prepare would refuse is a note. Not checked: contents of
/// pipes and terminals, urgent data, files in flight in sockets, unread errors, half-read netlink replies, and data of waiting
/// connections over TCP.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork check $(pidof redis-server)
  farfork check 4711 --json | jq -r '.refusals[] | .object + \": \" + .reason'

Exit status: 0 the process can be prepared, 1 it would be refused or the node does not answer, 2 wrong usage.")]
pub(crate) struct Check {
    /// Process id, as the node sees it, name from `farfork run`, or id of a child on this node.
    #[arg(value_name = "PID|NAME|CHILD", value_parser = parse_process)]
    process: ProcessName,
    /// Policy for a part of the process's own mount, UTS, IPC or network namespaces that children would lack.
    #[arg(long, value_name = "POLICY", default_value = "own")]
    namespaces: NamespacesArgument,
}

/// The value of `--namespaces`: the policy for namespaces that children would lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum NamespacesArgument {
    /// Refuse the process.
    Own,
    /// Accept the process. Children use the node's namespaces, and notes name what they lack.
    Node,
}

impl Check {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let pid = resolve_pid(&mut client, &self.process, global.connection.run_dir()).await?;
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
        "processes": answer.processes,
        "threads": answer.threads,
        "mappings": answer.mappings,
        "file_descriptors": answer.file_descriptors,
        "memory_bytes": answer.memory_bytes,
        "can_be_prepared": refusals.is_empty(),
        "refusals": refusals,
        "volume_objects": answer.volume_objects.iter().map(volume_object_json).collect::<Vec<_>>(),
        "notes": answer.notes,
    })
}

fn volume_object_json(object: &VolumeObject) -> serde_json::Value {
    serde_json::json!({
        "kind": object.kind,
        "pid": object.pid,
        "fd": object.fd,
        "volume": object.volume,
        "path": object.path,
    })
}

/// Describes an object on a volume: `fd 3` in the process itself, `pid 4712, mapping` in a descendant.
fn describe_volume_object(pid: u32, object: &VolumeObject) -> String {
    let number = object.fd.map_or_else(String::new, |number| format!(" {number}"));
    let owner = if object.pid == pid { String::new() } else { format!("pid {}, ", object.pid) };
    format!("{owner}{}{number}", object.kind)
}

fn print_check(pid: u32, answer: &CheckResponse) {
    let processes = output::format_processes(answer.processes, answer.threads);
    let memory = output::format_bytes(answer.memory_bytes);
    let command = format!("process {pid}: {}", output::shorten_command(&answer.command));
    // A kernel thread has no command line.
    output::print_line(command.trim_end_matches(": "));
    output::print_line(&format!("  would be carried: {processes}, {memory} of resident memory"));
    if answer.refusals.is_empty() {
        output::print_line("  nothing would be refused");
    }
    for object in &answer.volume_objects {
        let (name, VolumeObject { volume, path, .. }) = (describe_volume_object(pid, object), object);
        output::print_line(&format!("  on volume {volume}: {path} ({name})"));
    }
    for note in &answer.notes {
        output::print_line(&format!("  note: {note}"));
    }
    for refusal in &answer.refusals {
        output::print_line(&format!("  would be refused: {}: {}", refusal.object, refusal.reason));
    }
}
