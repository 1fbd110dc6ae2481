//! Routes a request to the node in the id of its object, or to all nodes.

use std::fmt::Display;
use std::sync::Arc;

use farfork_api::client::{Client, node_client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::CLUSTER_QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_wire::{ChildId, IdError, NodeName, SeedId};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::node::Node;

/// The node that handles a request.
pub(super) enum RequestTarget {
    /// This node.
    Local,
    /// Another node, with a client of it.
    Remote(Client),
}

/// Returns the target of requests about objects of `node`.
///
/// # Errors
/// No node has this name, or the node is unreachable.
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

/// Parses a child id that a user has entered.
///
/// # Errors
/// The text is not a child id.
pub(super) fn parse_child_id(text: &str) -> Result<ChildId, Failure> {
    text.parse().map_err(|error: IdError| {
        let refuse = |cause: &dyn Display| Failure::new(Code::InvalidArgument, format!("child `{text}`"), cause);
        match text.parse::<SeedId>() {
            Ok(_) => refuse(&"this is the id of a seed").with_next_step("list its children with `farfork ps`"),
            Err(_) => refuse(&error).with_next_step("list children with `farfork ps`"),
        }
    })
}

/// A stream of messages from another node about an object.
pub(super) struct PeerStream<T> {
    messages: Streaming<T>,
    node: Arc<Node>,
    owner: NodeName,
    object: String,
}

impl<T> PeerStream<T> {
    pub(super) fn new(answer: Response<Streaming<T>>, node: &Arc<Node>, owner: &NodeName, object: &str) -> Self {
        Self { messages: answer.into_inner(), node: node.clone(), owner: owner.clone(), object: object.to_owned() }
    }

    /// Waits for the answer to a request, which begins the stream.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(super) async fn open(
        answering: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
        node: &Arc<Node>,
        owner: &NodeName,
        object: &str,
    ) -> Result<Self, Failure> {
        tokio::select! {
            biased;
            answer = answering => Ok(Self::new(answer.map_err(forwarded_failure(object))?, node, owner, object)),
            failure = node.peers.wait_until_lost(owner, object) => Err(failure),
        }
    }

    /// Returns the next message; `None` at the end.
    ///
    /// # Errors
    /// The owner reports a failure, or does not answer for a time.
    pub(super) async fn next(&mut self) -> Result<Option<T>, Failure> {
        tokio::select! {
            biased;
            message = self.messages.message() => message.map_err(forwarded_failure(&self.object)),
            failure = self.node.peers.wait_until_lost(&self.owner, &self.object) => Err(failure),
        }
    }
}

/// Converts the status from another node to a failure about an object.
pub(super) fn forwarded_failure(object: impl Display) -> impl FnOnce(Status) -> Failure {
    move |status| Failure::from_status(object, &status)
}

/// Returns the target of requests about a child.
///
/// # Errors
/// The errors of [`resolve_target`].
pub(super) fn child_target(local_node: &Node, id: &ChildId) -> Result<RequestTarget, Failure> {
    resolve_target(local_node, id.node(), format!("child {id}"))
}

/// Returns the target of requests about a seed.
///
/// # Errors
/// The errors of [`resolve_target`].
pub(super) fn seed_target(local_node: &Node, id: &SeedId) -> Result<RequestTarget, Failure> {
    resolve_target(local_node, id.node(), format!("seed {id}"))
}

/// Sends a query to every other node that is alive. Returns the replies, and a failure for each node that did not reply
/// in time.
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
            // The request's own timeout starts when the connection is open, and a node that hangs accepts no
            // connection. So this timeout is needed too.
            let answer = timeout(CLUSTER_QUERY_TIMEOUT, answering).await;
            let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("it did not answer in time")));
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
