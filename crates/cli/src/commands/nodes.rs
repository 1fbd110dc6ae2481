//! `farfork nodes`: lists the nodes of the cluster.

use std::process::ExitCode;

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::ListNodesRequest;

use crate::GlobalArgs;
use crate::output::{self, NodeView, Table, format_microseconds};

/// List the nodes of the cluster, as this node sees them.
///
/// An `alive` node sends heartbeats. An `unreachable` node has not sent one for at least 5 seconds. A node that is
/// `not ready` sends heartbeats but accepts no children; the reason follows the table. SILENT is the time since the
/// last heartbeat. `farfork fork --to any` uses only nodes that are `alive`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork nodes
  farfork nodes --json | jq -r '.nodes[] | select(.state == \"alive\").name'

Exit status: 0 success, 1 this node does not answer, 2 wrong usage.")]
pub(crate) struct Nodes {}

impl Nodes {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let answer = client.list_nodes(request_with_timeout(QUERY_TIMEOUT, ListNodesRequest {})).await;
        let answer = answer.map_err(|status| Failure::from_status("the node", &status))?.into_inner();
        let nodes: Vec<NodeView> = answer.nodes.into_iter().map(NodeView::from).collect();
        if global.json {
            output::print_json(&serde_json::json!({ "nodes": nodes }));
        } else {
            let reasons: Vec<String> = nodes.iter().filter_map(not_ready_reason).collect();
            nodes_table(nodes).print();
            reasons.iter().for_each(|reason| output::print_line(reason));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns why a node accepts no children; `None` if it accepts them.
fn not_ready_reason(node: &NodeView) -> Option<String> {
    (!node.not_ready.is_empty()).then(|| format!("{} is not ready: {}", node.name, node.not_ready))
}

fn nodes_table(nodes: Vec<NodeView>) -> Table {
    let mut table = Table::new(&["NODE", "ADDRESS", "FABRIC", "STATE", ">SILENT"]);
    for node in nodes {
        let silent = match node.is_self {
            true => "this node".to_owned(),
            false => format_microseconds(node.silent_ms * 1000),
        };
        table.add_row([node.name, node.address, node.fabric_address, node.state.to_owned(), silent]);
    }
    table
}
