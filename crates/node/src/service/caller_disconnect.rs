//! Ends the children of an attended fork, on all nodes, when its caller disconnects. Until then this node keeps the
//! StartChildren streams open, so that no node drops its batch. If this node dies, no child ends. Also stops the starts
//! of a fork when its caller requests that.

use std::sync::Arc;

use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_wire::NodeName;
use tokio::task::JoinSet;

use super::fork::OutcomeStream;
use super::stream::ResponseSender;
use crate::node::Node;

/// A node that runs children of the fork.
pub(super) struct NodeShare {
    pub(super) node: NodeName,
    /// Kept open, so that the node does not drop the batch.
    pub(super) outcomes: Option<OutcomeStream>,
}

/// Waits until the caller disconnects. Then all nodes end the children of the batch.
pub(super) async fn end_on_disconnect(
    node: &Arc<Node>,
    batch: u64,
    shares: Vec<NodeShare>,
    sink: &ResponseSender<v1::ForkOutcome>,
) {
    sink.closed().await;
    // While this node stops, it closes all connections itself: the caller may not have disconnected.
    if node.is_stopping() {
        return;
    }
    let mut ending = JoinSet::new();
    for NodeShare { node: owner, outcomes: source } in shares {
        let node = node.clone();
        ending.spawn(async move {
            let request = v1::EndBatchRequest { batch, only_starts: false };
            if let Err(failure) = send_end_batch(&node, &owner, request).await {
                tracing::warn!(%failure, "cannot end the children of a disconnected caller");
            }
            drop(source);
        });
    }
    ending.join_all().await;
}

/// Stops the starts of a batch on all nodes that answer. Nodes that have no part of the fork ignore it.
pub(super) async fn stop_fork(node: &Arc<Node>, batch: u64) {
    let mut requests = JoinSet::new();
    for view in node.peers.views() {
        let node = node.clone();
        requests.spawn(async move {
            let request = v1::EndBatchRequest { batch, only_starts: true };
            if let Err(failure) = send_end_batch(&node, &view.member.name, request).await {
                tracing::debug!(%failure, "cannot stop the starts of a fork");
            }
        });
    }
    requests.join_all().await;
}

async fn send_end_batch(local_node: &Node, node: &NodeName, request: v1::EndBatchRequest) -> Result<(), Failure> {
    if *node == local_node.name {
        end_local_batch(local_node, &request);
        return Ok(());
    }
    let object = format!("node `{node}`");
    let mut peer = local_node.peers.peer(node, &object)?;
    let answer = peer.end_batch(request_with_timeout(QUERY_TIMEOUT, request)).await;
    answer.map(drop).map_err(|status| Failure::from_status(&object, &status))
}

/// Ends the children of a batch on this node, or only stops its starts.
pub(super) fn end_local_batch(node: &Node, request: &v1::EndBatchRequest) {
    match request.only_starts {
        true => node.attended.stop_starts(request.batch),
        false => node.attended.end_children(request.batch),
    }
}
