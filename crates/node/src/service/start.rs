//! Starts children on this node: several at once, bounded, each with an outcome of its own.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tonic::Code;

use crate::api::v1;
use crate::api::v1::fork_outcome::Result as Outcome;
use crate::children::Child;
use crate::engine::{SeedAccess, StartOptions};
use crate::failure::Failure;
use crate::limits::STREAM_MESSAGES_MAX;
use crate::node::Node;

/// Starts the children; their outcomes come as they come. A child whose outcome nobody takes is ended.
pub(super) fn start_children(
    node: &Arc<Node>,
    request: v1::StartChildrenRequest,
) -> Result<mpsc::Receiver<v1::ForkOutcome>, Failure> {
    let v1::StartChildrenRequest { seed, children, options, shared_payload } = request;
    let missing = || Failure::new(Code::InvalidArgument, "start children", "the request names no seed");
    let source = Arc::new(SeedAccess::try_from(seed.ok_or_else(missing)?)?);
    let options = Arc::new(StartOptions::try_from(options.unwrap_or_default())?);
    let shared_payload = shared_payload.map(Arc::new);
    let (sink, outcomes) = mpsc::channel(STREAM_MESSAGES_MAX);
    let node = node.clone();
    tokio::spawn(async move {
        for spec in children {
            // Waiting here, and not in each child's task, keeps the children's order.
            let Ok(turn) = node.starting.clone().acquire_owned().await else { return };
            if sink.is_closed() {
                return;
            }
            let (node, source, options) = (node.clone(), source.clone(), options.clone());
            let (shared_payload, sink) = (shared_payload.clone(), sink.clone());
            tokio::spawn(async move {
                let payload = spec.payload.or_else(|| shared_payload.as_deref().cloned());
                let started = start_one(&node, source, options, spec.index, payload).await;
                drop(turn);
                conclude(&node, spec.index, started, &sink).await;
                let here = node.clone();
                // Only a panic could fail, and the next child then makes its own.
                let _ = tokio::task::spawn_blocking(move || here.engine.make_ready()).await;
            });
        }
    });
    Ok(outcomes)
}

/// The engine's work blocks: it has a thread of its own, which finishes even when nobody waits any more.
async fn start_one(
    node: &Arc<Node>,
    source: Arc<SeedAccess>,
    options: Arc<StartOptions>,
    index: u32,
    payload: Option<Vec<u8>>,
) -> Result<Arc<Child>, Failure> {
    let requested = Instant::now();
    let here = node.clone();
    let starting = tokio::task::spawn_blocking(move || {
        let newborn = here.engine.start(&source, &options, index, payload.as_deref(), requested)?;
        Ok(here.children.add(newborn))
    });
    starting.await.unwrap_or_else(|panic| {
        let cause = format!("starting a child broke off: {panic}");
        Err(Failure::new(Code::Internal, format!("node `{}`", node.name), cause).with_next_step("see the node's log"))
    })
}

/// Tells the outcome. Where the caller has gone, nobody would ever know of the child: it is ended.
async fn conclude(node: &Node, index: u32, started: Result<Arc<Child>, Failure>, sink: &mpsc::Sender<v1::ForkOutcome>) {
    let result = match &started {
        Ok(child) => Outcome::Child(child.as_ref().into()),
        Err(failure) => Outcome::Error(failure.clone().into()),
    };
    let outcome = v1::ForkOutcome { index, node: node.name.to_string(), result: Some(result) };
    if sink.send(outcome).await.is_err()
        && let Ok(child) = started
    {
        tracing::info!(child = %child.record().id, "ended: who asked for it has gone");
        // It may have ended by itself.
        let _ = child.kill(rustix::process::Signal::KILL.as_raw().unsigned_abs());
    }
    node.children.keep_to_limit();
}
