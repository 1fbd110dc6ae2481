//! Inspect: reports the details of one object: a child, a seed or a node. The form of an id shows its kind. A name is
//! looked up among the nodes first, then among the seeds.

use std::sync::Arc;

use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_api::v1::inspect_response::Object;
use farfork_cluster::membership::MemberView;
use farfork_wire::{NodeName, SeedId};
use tonic::Code;

use super::route::{RequestTarget, forwarded_failure, resolve_target};
use super::{children, seeds};
use crate::children::cache_use;
use crate::node::Node;

pub(super) async fn inspect(node: &Arc<Node>, text: &str) -> Result<Object, Failure> {
    if let Ok(child) = text.parse() {
        return children::inspect(node, child).await;
    }
    if text.parse::<SeedId>().is_ok() {
        return seeds::inspect(node, text).await;
    }
    if let Ok(name) = NodeName::new(text)
        && let Ok(view) = node.peers.find(&name, format!("node {name}"))
    {
        return inspect_node(node, view).await.map(Object::Node);
    }
    seeds::inspect(node, text)
        .await
        .map_err(|failure| if failure.code() == Code::NotFound { unknown_object(text) } else { failure })
}

fn unknown_object(text: &str) -> Failure {
    Failure::new(Code::NotFound, format!("`{text}`"), "no seed, child or node has this id or name")
        .with_next_step("list them with `farfork seeds`, `farfork ps` and `farfork nodes`")
}

async fn inspect_node(node: &Arc<Node>, view: MemberView) -> Result<v1::NodeDetail, Failure> {
    let (name, object) = (view.member.name.clone(), format!("node {}", view.member.name));
    let (cache, zygotes, memory) = match resolve_target(node, &name, &object)? {
        RequestTarget::Local => {
            let pager = node.pager.clone();
            let cache = node.run_blocking(move || Ok(pager.cache_stats().map(cache_use))).await?;
            (cache, Some(node.engine.zygote_cache().counts()), Some(memory_budget(node)))
        }
        RequestTarget::Remote(mut there) => {
            let request = request_with_timeout(QUERY_TIMEOUT, v1::InspectRequest { id: name.to_string() });
            match there.inspect(request).await.map_err(forwarded_failure(&object))?.into_inner().object {
                Some(Object::Node(detail)) => (detail.cache, detail.zygotes, detail.memory),
                _ => return Err(Failure::new(Code::Internal, object, "its answer describes another object")),
            }
        }
    };
    Ok(v1::NodeDetail { node: Some(view.into()), cache, zygotes, memory })
}

/// Returns the memory that this node has committed to seeds and children, with the limits.
fn memory_budget(node: &Node) -> v1::MemoryBudget {
    let (seeds_bytes, seeds_bytes_max) = node.seeds.charged_bytes();
    v1::MemoryBudget {
        seeds_bytes,
        seeds_bytes_max: seeds_bytes_max.unwrap_or(0),
        children_bytes: node.children.sum_memory_limits(),
        children_bytes_max: node.child_budget.bytes_max().unwrap_or(0),
    }
}
