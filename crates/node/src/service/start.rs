//! Starts children on this node: several at once, bounded, each with an outcome of its own.

use std::sync::Arc;
use std::time::Instant;

use farfork_fork::pager::Paging;
use farfork_fork::phase;
use tokio::sync::mpsc;
use tonic::Code;
use tracing::{Instrument as _, Span};

use super::zygote;
use crate::api::v1;
use crate::api::v1::fork_outcome::Result as Outcome;
use crate::children::Child;
use crate::engine::{SeedAccess, StartOptions};
use crate::failure::Failure;
use crate::limits::{STARTING_MAX, STREAM_MESSAGES_MAX};
use crate::metrics::Work;
use crate::network::FanOut;
use crate::node::Node;
use crate::phases::{self, Recording};

/// What the children of a request have in common.
#[derive(Debug)]
struct Batch {
    node: Arc<Node>,
    source: SeedAccess,
    options: StartOptions,
    fan_out: FanOut,
    shared_payload: Option<Vec<u8>>,
    profile: bool,
    arrived: Instant,
    sink: mpsc::Sender<v1::ForkOutcome>,
}

/// Starts the children; their outcomes come as they come. A child whose outcome nobody takes is ended.
pub(super) fn start_children(
    node: &Arc<Node>,
    request: v1::StartChildrenRequest,
) -> Result<mpsc::Receiver<v1::ForkOutcome>, Failure> {
    let v1::StartChildrenRequest { seed, children, options, shared_payload, profile } = request;
    let missing = || Failure::new(Code::InvalidArgument, "start children", "the request names no seed");
    let (sink, outcomes) = mpsc::channel(STREAM_MESSAGES_MAX);
    let batch = Arc::new(Batch {
        node: node.clone(),
        source: SeedAccess::try_from(seed.ok_or_else(missing)?)?,
        options: StartOptions::try_from(options.unwrap_or_default())?,
        fan_out: FanOut::default(),
        shared_payload,
        profile,
        arrived: Instant::now(),
        sink,
    });
    let is_fan_out = children.len() > STARTING_MAX;
    let stands = || tokio::spawn(zygote::stands(node.clone(), batch.source.clone(), batch.options.clone()));
    let mut zygote = is_fan_out.then(stands);
    tokio::spawn(async move {
        for (number, spec) in children.into_iter().enumerate() {
            // The first child needs no zygote, and waits for none.
            if let Some(zygote) = zygote.take_if(|_| number > 0) {
                tokio::select! {
                    // Whatever became of it.
                    _ = zygote => {}
                    () = batch.sink.closed() => return,
                }
            }
            // Waiting here, and not in each child's task, keeps the children's order.
            let Ok(turn) = batch.node.starting.clone().acquire_owned().await else { return };
            if batch.sink.is_closed() {
                return;
            }
            let batch = batch.clone();
            tokio::spawn(async move {
                let recording = Recording::start(batch.profile, &batch.node.name, "resume");
                let waited = batch.arrived.elapsed();
                let started = start_one(&batch, spec.index, spec.payload).instrument(recording.span()).await;
                drop(turn);
                let mut phases = recording.finish();
                phases::delay(&mut phases, waited);
                conclude(&batch, spec.index, started, phases).await;
                let (here, source, options) = (batch.node.clone(), batch.source.clone(), batch.options.clone());
                // The last one ends the stream of outcomes: nobody waits for what is only for the next child.
                drop(batch);
                let is_idle = here.starting.available_permits() == STARTING_MAX;
                if here.engine.has_to_make_ready(&source.key.seed, is_idle) {
                    // Only a panic could fail, and the next child then makes its own.
                    let _ = tokio::task::spawn_blocking(move || here.engine.make_ready_for(&source, &options)).await;
                }
            });
        }
    });
    Ok(outcomes)
}

/// The engine's work blocks: it has a thread of its own, which finishes even when nobody waits any more.
async fn start_one(batch: &Arc<Batch>, index: u32, payload: Option<Vec<u8>>) -> Result<Arc<Child>, Failure> {
    let requested = Instant::now();
    let (here, phase) = (batch.clone(), Span::current());
    let queued = tracing::debug_span!(target: phases::TARGET, "resume.thread");
    let starting = tokio::task::spawn_blocking(move || {
        drop(queued);
        let _entered = phase.enter();
        let Batch { node, source, options, fan_out, shared_payload, .. } = &*here;
        let payload = payload.as_deref().or(shared_payload.as_deref());
        let object = format!("a child of seed {} on node {}", source.key.seed, node.name);
        let room =
            node.child_budget.admit(&object, options.limits.memory_bytes_max, || node.children.limits_bytes())?;
        let newborn = node.engine.start(source, (options, fan_out), index, payload, requested)?;
        drop(room);
        let child = phase!("resume.watch", node.children.add(newborn));
        Ok((child, tracing::debug_span!(target: phases::TARGET, "resume.return")))
    });
    let started = starting.await.unwrap_or_else(|panic| {
        let cause = format!("starting a child broke off: {panic}");
        let object = format!("node `{}`", batch.node.name);
        Err(Failure::new(Code::Internal, object, cause).with_next_step("see the node's log"))
    });
    started.map(|(child, _returned)| child)
}

/// Tells the outcome. Where the caller has gone, nobody would ever know of the child: it is ended.
async fn conclude(batch: &Batch, index: u32, started: Result<Arc<Child>, Failure>, phases: Vec<v1::Phase>) {
    let node = &batch.node;
    let result = match &started {
        Ok(child) => {
            node.metrics.resumed(child.record().resume_us);
            let is_complete = batch.options.strategy.paging == Paging::Eager;
            Outcome::Child(if is_complete { child.as_ref().into() } else { child.as_started() })
        }
        Err(failure) => {
            node.metrics.failed(Work::Resume, failure);
            Outcome::Error(failure.clone().into())
        }
    };
    let outcome = v1::ForkOutcome { index, node: node.name.to_string(), result: Some(result), phases };
    if batch.sink.send(outcome).await.is_err()
        && let Ok(child) = started
    {
        tracing::info!(child = %child.record().id, "ended: who asked for it has gone");
        // It may have ended by itself.
        let _ = child.kill(rustix::process::Signal::KILL.as_raw().unsigned_abs());
    }
    node.children.keep_to_limit();
}
