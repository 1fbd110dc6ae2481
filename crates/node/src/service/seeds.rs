//! Requests about seeds.

use std::sync::Arc;
use std::time::Instant;

use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::{PREPARE_TIMEOUT, QUERY_TIMEOUT};
use farfork_api::v1;
use farfork_api::v1::inspect_response::Object;
use farfork_fork::capture::{self, CheckOptions, DaemonSockets, NamespacePolicy};
use farfork_wire::{ChildId, NodeName, SeedId};
use tonic::Code;
use tracing::Instrument as _;

use super::dependents::{self, SeedDependents};
use super::process_owner::foreign_process_failure;
use super::route::{RequestTarget, forwarded_failure, query_other_nodes, seed_target};
use crate::engine::CaptureInputs;
use crate::metrics::MeasuredOperation;
use crate::node::Node;
use crate::phases::PhaseRecording;
use crate::seeds::{self, PrepareOptions, check_labels, check_name};

pub(super) async fn check(node: &Arc<Node>, request: v1::CheckRequest) -> Result<v1::CheckResponse, Failure> {
    let task_node = node.clone();
    let check = move || {
        let child = task_node.children.find_by_pid(request.pid);
        let namespaces = namespace_policy(request.takes_node_namespaces);
        let options = CheckOptions { is_pager_served: child.is_some(), namespaces };
        let mut checked = task_node.engine.check_process(request.pid, options)?;
        let paused = child.and_then(|child| child.require_unpaused(request.pid).err());
        let is_refused = !checked.refusals.is_empty();
        let failure = paused.or_else(|| is_refused.then(|| foreign_process_failure(&task_node, request.pid)).flatten());
        if let Some(failure) = failure {
            let reason = format!("{}; {}", failure.cause(), failure.next_step());
            checked.refusals = vec![v1::Refusal { object: failure.object().to_owned(), reason }];
        }
        Ok(checked)
    };
    node.run_blocking(check).await
}

pub(super) async fn prepare(node: &Arc<Node>, request: v1::PrepareRequest) -> Result<v1::Seed, Failure> {
    let v1::PrepareRequest {
        pid,
        name,
        freeze,
        ttl_ms,
        profile,
        sealed,
        labels,
        snapshot_files,
        takes_node_namespaces,
    } = request;
    check_labels(&labels)?;
    let (arrived, recording) = (Instant::now(), PhaseRecording::start(profile, &node.name, "prepare"));
    let daemon_sockets = DaemonSockets { copies_files: snapshot_files, ..DaemonSockets::default() };
    let inputs = CaptureInputs { daemon_sockets, ..CaptureInputs::default() };
    let namespaces = namespace_policy(takes_node_namespaces);
    let options = PrepareOptions { name, freeze, ttl_ms, sealed, labels, namespaces, inputs };
    let prepared = prepare_and_wait(node, pid, options).instrument(recording.span()).await;
    let phases = recording.finish();
    node.metrics.record_answer(MeasuredOperation::Prepare, arrived.elapsed());
    let prepared = prepared.map_err(|failure| foreign_process_failure(node, pid).unwrap_or(failure));
    prepared.map(|seed| v1::Seed { phases, ..seed })
}

fn namespace_policy(takes_node_namespaces: bool) -> NamespacePolicy {
    if takes_node_namespaces { NamespacePolicy::UseNode } else { NamespacePolicy::Refuse }
}

/// Makes a seed. If the caller disconnects before the seed is ready, the seed is dropped: its id would be unknown.
pub(crate) async fn prepare_and_wait(node: &Arc<Node>, pid: u32, options: PrepareOptions) -> Result<v1::Seed, Failure> {
    check_name(&options.name)?;
    let answered = seeds::prepare_seed(node, pid, options)?;
    let failed = |code, cause: &str| Failure::new(code, format!("process {pid}"), cause);
    match tokio::time::timeout(capture::DEFAULT_TIMEOUT + capture::TIMEOUT_GRACE, answered).await {
        Ok(Ok(prepared)) => prepared,
        Ok(Err(_)) => {
            Err(failed(Code::Internal, "its prepare ended without an answer").with_next_step("see the node's log"))
        }
        Err(_) => Err(failed(Code::DeadlineExceeded, "its state could not be read from the kernel in time")
            .with_next_step("try again when the machine is less busy")),
    }
}

pub(crate) async fn drop_seed(node: &Arc<Node>, request: v1::DropRequest) -> Result<v1::DropResponse, Failure> {
    let id = resolve_seed(node, &request.seed).await?;
    match seed_target(node, &id)? {
        RequestTarget::Local => {
            if !request.force {
                dependents::check_no_dependents(node, &id).await?;
            }
            let task_node = node.clone();
            let seed = id.to_string();
            let drop = move || {
                task_node.seeds.drop_seed(&id)?;
                task_node.engine.evict_seed(&id);
                Ok(())
            };
            node.run_blocking(drop).await?;
            Ok(v1::DropResponse { seed })
        }
        RequestTarget::Remote(mut owner) => {
            let request = v1::DropRequest { seed: id.to_string(), force: request.force };
            let answer = owner.drop(request_with_timeout(QUERY_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(forwarded_failure(format!("seed {id}")))
        }
    }
}

pub(super) async fn inspect(node: &Arc<Node>, text: &str) -> Result<Object, Failure> {
    let id = resolve_seed(node, text).await?;
    match seed_target(node, &id)? {
        RequestTarget::Local => {
            node.seeds.wait_complete(&id).await?;
            let task_node = node.clone();
            let (seed, seed_dependents) = (id.clone(), SeedDependents::collect(node));
            let (detail, seed_dependents) =
                tokio::join!(node.run_blocking(move || task_node.seeds.detail(&seed)), seed_dependents);
            let mut detail = detail?;
            detail.seed.iter_mut().for_each(|seed| seed_dependents.add_to_view(seed));
            Ok(Object::Seed(detail))
        }
        RequestTarget::Remote(mut owner) => {
            // The owner replies when the seed is complete.
            let request = request_with_timeout(PREPARE_TIMEOUT, v1::InspectRequest { id: id.to_string() });
            let answer = owner.inspect(request).await.map_err(forwarded_failure(format!("seed {id}")))?;
            let empty = || Failure::new(Code::Internal, format!("seed {id}"), "its node's answer is empty");
            answer.into_inner().object.ok_or_else(empty)
        }
    }
}

/// Lists the seeds of this node or of all nodes, and the nodes that did not reply in time.
pub(super) async fn list(node: &Node, request: v1::ListRequest) -> v1::ListSeedsResponse {
    let mut seeds = node.seeds.all();
    let mut unanswered = Vec::new();
    if !request.this_node_only {
        let seed_dependents = SeedDependents::collect(node);
        let query = query_other_nodes(node, |mut client, question| async move { client.list_seeds(question).await });
        let ((answers, failures), seed_dependents) = tokio::join!(query, seed_dependents);
        seeds.extend(answers.into_iter().flat_map(|answer: v1::ListSeedsResponse| answer.seeds));
        unanswered.extend(node.unreachable_nodes());
        unanswered.extend(failures.into_iter().map(Into::into));
        seeds.iter_mut().for_each(|seed| seed_dependents.add_to_view(seed));
    }
    seeds.sort_by(|a, b| (b.age_ms, &a.id).cmp(&(a.age_ms, &b.id)));
    v1::ListSeedsResponse { seeds, unanswered }
}

/// Returns the data with which another node can read a seed of this node.
pub(super) async fn describe_local(node: &Node, request: v1::DescribeSeedRequest) -> Result<v1::SeedAccess, Failure> {
    let v1::DescribeSeedRequest { seed, for_nodes } = request;
    let id = seed.parse().map_err(|_| unknown_seed(&seed))?;
    let for_nodes: Vec<NodeName> = for_nodes.iter().filter_map(|name| NodeName::new(name).ok()).collect();
    access_local(node, &id, &for_nodes).await
}

async fn access_local(node: &Node, id: &SeedId, for_nodes: &[NodeName]) -> Result<v1::SeedAccess, Failure> {
    node.seeds.wait_complete(id).await?;
    node.fork_history.record_remote_fork(id, for_nodes.iter().filter(|name| **name != node.name).cloned());
    node.seeds.access(id)
}

/// Returns the data with which `for_nodes` can read a seed of any node.
pub(super) async fn describe_seed(node: &Node, text: &str, for_nodes: &[NodeName]) -> Result<v1::SeedAccess, Failure> {
    let id = resolve_seed(node, text).await?;
    let object = format!("seed {id}");
    if *id.node() == node.name {
        return access_local(node, &id, for_nodes).await;
    }
    let mut owner = node.peers.peer(id.node(), &object)?;
    // The owner replies when the seed is complete.
    let for_nodes = for_nodes.iter().map(NodeName::to_string).collect();
    let request = request_with_timeout(PREPARE_TIMEOUT, v1::DescribeSeedRequest { seed: id.to_string(), for_nodes });
    Ok(owner.describe_seed(request).await.map_err(forwarded_failure(object))?.into_inner())
}

/// Returns the owner of the seed that a user has named.
pub(super) async fn find_owner(node: &Node, text: &str) -> Result<NodeName, Failure> {
    Ok(resolve_seed(node, text).await?.node().clone())
}

/// Returns the id of the seed that a user has named, by id or by name. A name is looked up on this node first, then on
/// all others. Also finds seeds that are incomplete or have failed.
async fn resolve_seed(node: &Node, text: &str) -> Result<SeedId, Failure> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    if let Some(id) = node.seeds.find_by_name(text) {
        return Ok(id);
    }
    let (answers, silent) =
        query_other_nodes(node, |mut client, question| async move { client.list_seeds(question).await }).await;
    let seeds = answers.into_iter().flat_map(|answer: v1::ListSeedsResponse| answer.seeds);
    let is_named = |seed: &v1::Seed| !text.is_empty() && seed.name == text;
    let mut found: Vec<SeedId> = seeds.filter(is_named).filter_map(|seed| seed.id.parse().ok()).collect();
    match (found.pop(), found.is_empty()) {
        (None, _) => Err(unfound_seed(text, silent.iter().map(Failure::object), &node.unreachable_nodes())),
        (Some(id), true) => Ok(id),
        (Some(id), false) => {
            found.push(id);
            let ids: Vec<String> = found.iter().map(SeedId::to_string).collect();
            Err(Failure::new(Code::FailedPrecondition, format!("seed `{text}`"), "several seeds have this name")
                .with_next_step(format!("use one of their ids: {}", ids.join(", "))))
        }
    }
}

/// Returns the failure of a name that no node knows which answers. `silent` names the nodes that do not answer.
fn unfound_seed<'a>(text: &str, silent: impl Iterator<Item = &'a str>, unreachable: &'a [v1::Error]) -> Failure {
    let silent: Vec<&str> = silent.chain(unreachable.iter().map(|error| error.object.as_str())).collect();
    if silent.is_empty() || text.parse::<ChildId>().is_ok() {
        return unknown_seed(text);
    }
    let cause = format!("no node that answers has a seed of this name; without an answer: {}", silent.join(", "));
    Failure::new(Code::NotFound, format!("seed `{text}`"), cause).with_next_step(
        "wait until all nodes answer (`farfork nodes`), or list the seeds of the others: `farfork seeds`",
    )
}

fn unknown_seed(text: &str) -> Failure {
    let refuse = |cause| Failure::new(Code::NotFound, format!("seed `{text}`"), cause);
    if text.parse::<ChildId>().is_ok() {
        let step = format!("end it with `farfork kill {text}`, or make a seed of it with `farfork prepare {text}`");
        return refuse("this is the id of a child").with_next_step(step);
    }
    if text.parse::<u32>().is_ok() {
        let step = format!(
            "list seeds with `farfork seeds`; `farfork prepare {text}` makes a seed of process {text}, and prints its id"
        );
        return refuse("no node has a seed of this name").with_next_step(step);
    }
    refuse("no node has a seed of this id or name")
        .with_next_step("list seeds with `farfork seeds`; unless sealed, they end with their node's daemon")
}
