//! Ends the children of an attended fork, on all nodes, when its caller disconnects. Until then this node keeps the
//! StartChildren streams open, so that no node drops its batch. If this node dies, no child ends.

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
            if let Err(failure) = end_batch_on(&node, &owner, batch).await {
                tracing::warn!(%failure, "cannot end the children of a disconnected caller");
            }
            drop(source);
        });
    }
    ending.join_all().await;
}

async fn end_batch_on(local_node: &Node, node: &NodeName, batch: u64) -> Result<(), Failure> {
    if *node == local_node.name {
        local_node.attended.end_children(batch);
        return Ok(());
    }
    let object = format!("node `{node}`");
    let mut peer = local_node.peers.peer(node, &object)?;
    let answer = peer.end_batch(request_with_timeout(QUERY_TIMEOUT, v1::EndBatchRequest { batch })).await;
    answer.map(drop).map_err(|status| Failure::from_status(&object, &status))
}
