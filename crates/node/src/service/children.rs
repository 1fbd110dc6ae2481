//! Requests about children that are answered at once.

use std::sync::Arc;

use farfork_sys::process::{self, Status};
use farfork_wire::ChildId;

use super::route::{Place, ask_others, child_id, passed_on, place_of_child};
use crate::affinity;
use crate::api::v1;
use crate::api::v1::inspect_response::Object;
use crate::children::Child;
use crate::client::within;
use crate::failure::Failure;
use crate::limits::QUERY_TIMEOUT;
use crate::node::Node;

pub(crate) async fn kill(node: &Node, request: v1::KillRequest) -> Result<v1::KillResponse, Failure> {
    let id = child_id(&request.child)?;
    match place_of_child(node, &id)? {
        Place::Here => node.children.get(&id)?.kill(request.signal).map(|()| v1::KillResponse {}),
        Place::There(mut owner) => {
            let answer = owner.kill(within(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(passed_on(format!("child {id}")))
        }
    }
}

pub(super) async fn pause(node: &Arc<Node>, request: v1::PauseRequest) -> Result<v1::Child, Failure> {
    let id = child_id(&request.child)?;
    match place_of_child(node, &id)? {
        Place::Here => {
            let child = node.children.get(&id)?;
            node.blocking(move || child.pause().map(|()| child.as_ref().into())).await
        }
        Place::There(mut owner) => {
            let answer = owner.pause(within(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(passed_on(format!("child {id}")))
        }
    }
}

pub(super) async fn unpause(node: &Arc<Node>, request: v1::UnpauseRequest) -> Result<v1::Child, Failure> {
    let id = child_id(&request.child)?;
    match place_of_child(node, &id)? {
        Place::Here => {
            let child = node.children.get(&id)?;
            node.blocking(move || child.unpause().map(|()| child.as_ref().into())).await
        }
        Place::There(mut owner) => {
            let answer = owner.unpause(within(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(passed_on(format!("child {id}")))
        }
    }
}

pub(crate) async fn remove(node: &Node, request: v1::RemoveRequest) -> Result<v1::RemoveResponse, Failure> {
    let id = child_id(&request.child)?;
    match place_of_child(node, &id)? {
        Place::Here => node.children.remove(&id).await.map(|()| v1::RemoveResponse {}),
        Place::There(mut owner) => {
            let answer = owner.remove(within(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(passed_on(format!("child {id}")))
        }
    }
}

pub(super) async fn inspect(node: &Node, id: ChildId) -> Result<Object, Failure> {
    match place_of_child(node, &id)? {
        Place::Here => inspect_here(node, &id).await,
        Place::There(mut owner) => {
            let request = within(QUERY_TIMEOUT, v1::InspectRequest { id: id.to_string() });
            let answer = owner.inspect(request).await.map_err(passed_on(format!("child {id}")))?;
            let empty = || Failure::new(tonic::Code::Internal, format!("child {id}"), "its node's answer is empty");
            answer.into_inner().object.ok_or_else(empty)
        }
    }
}

async fn inspect_here(node: &Node, id: &ChildId) -> Result<Object, Failure> {
    let child = node.children.get(id)?;
    let counts = match child.ended() {
        Some(ended) => ended.pager,
        None => node.pager_counts(id).await,
    };
    let directory = child.directory().display().to_string();
    let view = v1::Child::from(child.as_ref());
    let (memory, affinity) = node.blocking(move || Ok((child.memory(counts.as_ref()), affinity(&child)))).await?;
    Ok(Object::Child(v1::ChildDetail {
        child: Some(view),
        pager: counts.map(v1::PagerStats::from),
        directory,
        memory: Some(memory),
        affinity,
    }))
}

/// Where its threads may run; a thread that ends meanwhile is left out.
fn affinity(child: &Child) -> Vec<String> {
    let tids = child.host_pid().ok().and_then(|pid| process::threads(pid).ok()).unwrap_or_default();
    let sets: Vec<Vec<u32>> = tids.into_iter().filter_map(|tid| Some(Status::read(tid).ok()?.cpus)).collect();
    affinity::distinct(sets.iter().map(Vec::as_slice))
}

/// The children of this node or of all; a node that does not answer in time is named instead.
pub(super) async fn list(node: &Node, request: v1::ListRequest) -> v1::ListChildrenResponse {
    // Before the children: one that is listed meanwhile is in both.
    let starting = node.starts.seeds();
    let own = if request.living_only { node.children.all_living() } else { node.children.all() };
    let mut children: Vec<v1::Child> = own.iter().map(|child| child.as_ref().into()).collect();
    let mut unanswered = Vec::new();
    if !request.this_node_only {
        let (answers, failures) =
            ask_others(node, |mut asked, question| async move { asked.list_children(question).await }).await;
        children.extend(answers.into_iter().flat_map(|answer: v1::ListChildrenResponse| answer.children));
        unanswered.extend(node.unreachable());
        unanswered.extend(failures.into_iter().map(Into::into));
    }
    children.sort_by(|a, b| (a.started_unix_ms, &a.id).cmp(&(b.started_unix_ms, &b.id)));
    v1::ListChildrenResponse { children, unanswered, starting }
}
