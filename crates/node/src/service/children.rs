//! Requests about children that need no stream and no long wait.

use std::sync::Arc;

use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_api::v1::inspect_response::Object;
use farfork_sys::process::{self, ProcStatus};
use farfork_wire::ChildId;

use super::route::{RequestTarget, child_target, forwarded_failure, parse_child_id, query_other_nodes};
use crate::affinity;
use crate::auth::Caller;
use crate::children::{Child, pager_stats};
use crate::clock::Timestamp;
use crate::node::Node;

pub(crate) async fn kill(node: &Node, request: v1::KillRequest) -> Result<v1::KillResponse, Failure> {
    let id = parse_child_id(&request.child)?;
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let child = node.children.get(&id)?;
            let killed = if request.by_program { child.kill_for_program() } else { child.kill(request.signal) };
            killed.map(|()| v1::KillResponse {})
        }
        RequestTarget::Remote(mut owner) => {
            let answer = owner.kill(request_with_timeout(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(forwarded_failure(format!("child {id}")))
        }
    }
}

pub(super) async fn pause(node: &Arc<Node>, request: v1::PauseRequest) -> Result<v1::Child, Failure> {
    let id = parse_child_id(&request.child)?;
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let child = node.children.get(&id)?;
            node.run_blocking(move || child.pause().map(|()| child.as_ref().into())).await
        }
        RequestTarget::Remote(mut owner) => {
            let answer = owner.pause(request_with_timeout(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(forwarded_failure(format!("child {id}")))
        }
    }
}

pub(super) async fn unpause(node: &Arc<Node>, request: v1::UnpauseRequest) -> Result<v1::Child, Failure> {
    let id = parse_child_id(&request.child)?;
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let child = node.children.get(&id)?;
            node.run_blocking(move || child.unpause().map(|()| child.as_ref().into())).await
        }
        RequestTarget::Remote(mut owner) => {
            let answer = owner.unpause(request_with_timeout(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(forwarded_failure(format!("child {id}")))
        }
    }
}

/// Opens the freezer of a local child. Refuses a child of another node: a client cannot write to a control group on
/// another machine.
pub(super) fn open_freezer(
    node: &Node,
    caller: Option<&Caller>,
    request: &v1::OpenFreezerRequest,
) -> Result<v1::Freezer, Failure> {
    let id = parse_child_id(&request.child)?;
    let refuse = |cause: &str| {
        let failure = Failure::new(tonic::Code::FailedPrecondition, format!("child {id}"), cause);
        Err(failure.with_next_step("pause it by requests (Pause, Unpause), which work from anywhere"))
    };
    if caller != Some(&Caller::Socket) {
        return refuse("its freezer is opened at the Unix socket of its node only");
    }
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let child = node.children.get(&id)?;
            let cgroup = child.open_freezer()?.display().to_string();
            Ok(v1::Freezer { cgroup, process: child.record().process.clone() })
        }
        RequestTarget::Remote(_) => refuse("it is on another node"),
    }
}

pub(crate) async fn remove(node: &Node, request: v1::RemoveRequest) -> Result<v1::RemoveResponse, Failure> {
    let id = parse_child_id(&request.child)?;
    match child_target(node, &id)? {
        RequestTarget::Local => node.children.remove(&id).await.map(|()| v1::RemoveResponse {}),
        RequestTarget::Remote(mut owner) => {
            let answer = owner.remove(request_with_timeout(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(forwarded_failure(format!("child {id}")))
        }
    }
}

pub(super) async fn inspect(node: &Node, id: ChildId) -> Result<Object, Failure> {
    match child_target(node, &id)? {
        RequestTarget::Local => inspect_local(node, &id).await,
        RequestTarget::Remote(mut owner) => {
            let request = request_with_timeout(QUERY_TIMEOUT, v1::InspectRequest { id: id.to_string() });
            let answer = owner.inspect(request).await.map_err(forwarded_failure(format!("child {id}")))?;
            let empty = || Failure::new(tonic::Code::Internal, format!("child {id}"), "its node's answer is empty");
            answer.into_inner().object.ok_or_else(empty)
        }
    }
}

async fn inspect_local(node: &Node, id: &ChildId) -> Result<Object, Failure> {
    let child = node.children.get(id)?;
    let counts = match child.exit_record() {
        Some(ended) => ended.pager,
        None => node.pager_counters(id).await,
    };
    let directory = child.directory().display().to_string();
    let view = v1::Child::from(child.as_ref());
    let (memory, affinity) =
        node.run_blocking(move || Ok((child.memory_use(counts.as_ref()), thread_affinities(&child)))).await?;
    Ok(Object::Child(v1::ChildDetail {
        child: Some(view),
        pager: counts.map(pager_stats),
        directory,
        memory: Some(memory),
        affinity,
    }))
}

/// Reads the CPU affinities of the child's threads. Omits threads that have ended.
fn thread_affinities(child: &Child) -> Vec<String> {
    let tids = child.host_pid().ok().and_then(|pid| process::thread_ids(pid).ok()).unwrap_or_default();
    let sets: Vec<Vec<u32>> = tids.into_iter().filter_map(|tid| Some(ProcStatus::read(tid).ok()?.cpus)).collect();
    affinity::format_distinct_sets(sets.iter().map(Vec::as_slice))
}

/// Lists the children of this node or of all nodes, and the nodes that did not reply in time.
pub(super) async fn list(node: &Node, request: v1::ListRequest) -> v1::ListChildrenResponse {
    // Read the pending starts before the children: a child that is listed in between is then in both lists, not in
    // neither.
    let starting = node.pending_starts.seeds();
    let own = if request.living_only { node.children.all_alive() } else { node.children.all() };
    // One timestamp for all, so that their ages have the order of their starts.
    let now = Timestamp::now();
    let view = |child: &Child| v1::Child { age_ms: child.record().started().age_ms_at(now), ..child.into() };
    let mut children: Vec<v1::Child> = own.iter().map(|child| view(child)).collect();
    let mut unanswered = Vec::new();
    if !request.this_node_only {
        let (answers, failures) =
            query_other_nodes(node, |mut client, question| async move { client.list_children(question).await }).await;
        children.extend(answers.into_iter().flat_map(|answer: v1::ListChildrenResponse| answer.children));
        unanswered.extend(node.unreachable_nodes());
        unanswered.extend(failures.into_iter().map(Into::into));
    }
    children.sort_by(|a, b| (b.age_ms, &a.id).cmp(&(a.age_ms, &b.id)));
    v1::ListChildrenResponse { children, unanswered, starting }
}
