//! Routes a request to the node that its object's id names, or to all nodes.

use std::fmt::Display;

use farfork_api::client::{Client, node_client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::CLUSTER_QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_wire::{ChildId, NodeName, SeedId};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};

use crate::node::Node;

/// Where a request is dealt with.
pub(super) enum RequestTarget {
    /// By this node.
    Local,
    /// By the node behind this client.
    Remote(Client),
}

/// Where what `node` owns is dealt with.
///
/// # Errors
/// There is no such node, or it is silent.
pub(super) fn resolve_target(
    local_node: &Node,
    node: &NodeName,
    object: impl Display,
) -> Result<RequestTarget, Failure> {
    if *node == local_node.name {
        return Ok(RequestTarget::Local);
    }
    Ok(RequestTarget::Remote(local_node.peers.client(node, object)?))
}

/// The id of a child as a user wrote it.
///
/// # Errors
/// It is none.
pub(super) fn parse_child_id(text: &str) -> Result<ChildId, Failure> {
    text.parse().map_err(|error| {
        Failure::new(Code::InvalidArgument, format!("child `{text}`"), error)
            .with_next_step("list children with `farfork ps`")
    })
}

/// What another node said about an object, so that it can be passed on.
pub(super) fn forwarded_failure(object: impl Display) -> impl FnOnce(Status) -> Failure {
    move |status| Failure::from_status(object, &status)
}

/// Where a child's requests are dealt with.
///
/// # Errors
/// As [`resolve_target`].
pub(super) fn child_target(local_node: &Node, id: &ChildId) -> Result<RequestTarget, Failure> {
    resolve_target(local_node, id.node(), format!("child {id}"))
}

/// Where a seed's requests are dealt with.
///
/// # Errors
/// As [`resolve_target`].
pub(super) fn seed_target(local_node: &Node, id: &SeedId) -> Result<RequestTarget, Failure> {
    resolve_target(local_node, id.node(), format!("seed {id}"))
}

/// Asks every other node that is alive for what it has itself. Gives their answers, and why others gave none in time.
pub(super) async fn query_other_nodes<Answer, Answering>(
    local_node: &Node,
    ask: impl Fn(Client, Request<v1::ListRequest>) -> Answering,
) -> (Vec<Answer>, Vec<Failure>)
where
    Answer: Send + 'static,
    Answering: Future<Output = Result<Response<Answer>, Status>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for member in local_node.peers.others_alive() {
        let question =
            request_with_timeout(CLUSTER_QUERY_TIMEOUT, v1::ListRequest { this_node_only: true, living_only: false });
        let answering = ask(node_client(local_node.peers.channel(member.address)), question);
        let object = format!("node {}", member.name);
        tasks.spawn(async move {
            // The request's own limit begins when there is a connection, which who stands still does not make.
            let answer = timeout(CLUSTER_QUERY_TIMEOUT, answering).await;
            let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer came in time")));
            answer.map(Response::into_inner).map_err(forwarded_failure(object))
        });
    }
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    for answer in tasks.join_all().await {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(failure) => failures.push(failure),
        }
    }
    (answers, failures)
}
