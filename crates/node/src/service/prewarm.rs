//! Prewarm: prepares nodes for children of a seed. The node that receives the request finds the seed, and sends a
//! request to each of the nodes.

use std::sync::Arc;

use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::{PREWARM_NODES_MAX, PREWARM_TIMEOUT, QUERY_TIMEOUT};
use farfork_api::v1;
use farfork_api::v1::prewarm_outcome::Result as Outcome;
use farfork_wire::{NodeName, PAGE_SIZE};
use tokio::task::JoinSet;
use tonic::Code;

use super::route::forwarded_failure;
use super::seeds;
use crate::engine::SeedAccess;
use crate::node::Node;

/// Prewarms the nodes concurrently. Returns exactly one outcome for each, in the order of the request.
pub(super) async fn prewarm(node: &Arc<Node>, request: v1::PrewarmRequest) -> Result<v1::PrewarmResponse, Failure> {
    let v1::PrewarmRequest { seed, nodes } = request;
    if !(1..=PREWARM_NODES_MAX).contains(&nodes.len()) {
        let cause = format!("{} nodes: 1 to {PREWARM_NODES_MAX} can be prewarmed at a time", nodes.len());
        return Err(Failure::new(Code::InvalidArgument, format!("seed {seed}"), cause));
    }
    let access = seeds::describe_seed(node, &seed, &[]).await?;
    let mut tasks = JoinSet::new();
    for (index, name) in nodes.iter().enumerate() {
        let (task_node, name, access) = (node.clone(), name.clone(), access.clone());
        tasks.spawn(async move { (index, name.clone(), prewarm_on(&task_node, &name, access).await) });
    }
    let mut outcomes = tasks.join_all().await;
    outcomes.sort_by_key(|(index, ..)| *index);
    let outcomes = outcomes.into_iter().map(|(_, node, answer)| {
        let result = Some(answer.map_or_else(|failure| Outcome::Error(failure.into()), Outcome::Warm));
        v1::PrewarmOutcome { node, result }
    });
    Ok(v1::PrewarmResponse { seed: access.seed, outcomes: outcomes.collect() })
}

async fn prewarm_on(node: &Arc<Node>, name: &str, access: v1::SeedAccess) -> Result<v1::Warm, Failure> {
    let object = format!("node `{name}`");
    let target = NodeName::new(name).map_err(|error| Failure::new(Code::InvalidArgument, &object, error))?;
    if target == node.name {
        return prewarm_local(node, access).await;
    }
    let mut peer = node.peers.peer(&target, &object)?;
    let request = request_with_timeout(PREWARM_TIMEOUT + QUERY_TIMEOUT, access);
    Ok(peer.warm_up(request).await.map_err(forwarded_failure(&object))?.into_inner())
}

/// Prewarms this node.
pub(super) async fn prewarm_local(node: &Arc<Node>, access: v1::SeedAccess) -> Result<v1::Warm, Failure> {
    let access = SeedAccess::try_from(access)?;
    let task_node = node.clone();
    let progress = node.run_blocking(move || task_node.engine.prewarm(&access)).await?;
    Ok(v1::Warm { set_bytes: progress.set_pages * PAGE_SIZE, cached_bytes: progress.cached_pages * PAGE_SIZE })
}
