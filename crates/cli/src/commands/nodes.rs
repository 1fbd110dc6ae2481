//! `farfork nodes`: lists the nodes of the cluster.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::ListNodesRequest;
use farfork_node::client::request_with_timeout;
use farfork_node::failure::Failure;
use farfork_node::limits::QUERY_TIMEOUT;

use crate::GlobalArgs;
use crate::output::{self, NodeView, Table, format_microseconds};

/// List the cluster's nodes, as this one sees them.
///
/// A node is `alive` while it is heard from, `unreachable` after some seconds of silence, and `not ready` where it is heard from and takes
/// no children: the reason stands below the table, and `--to any` does not choose it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork nodes
  farfork nodes --json | jq -r '.nodes[] | select(.state == \"alive\").name'

Exit status: 0 listed, 1 this node cannot be asked, 2 wrong usage.")]
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
            reasons.iter().for_each(|reason| println!("{reason}"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Why a node takes no children, where it takes none.
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
