//! Starts children on this node, several at once up to a limit. Each child has its own outcome.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_api::failure::{Failure, NEVER_STARTED_CAUSE};
use farfork_api::limits::{CONCURRENT_STARTS_MAX, EVICTED_PER_START_MAX, PRESTARTED_PER_SEED_MAX, STREAM_MESSAGES_MAX};
use farfork_api::v1;
use farfork_api::v1::fork_outcome::Result as Outcome;
use farfork_fork::pager::PagingMode;
use farfork_fork::phase;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::stream::{ResponseReceiver, ResponseSender};
use super::{exit_watch, zygote};
use crate::attended::AttendedBatch;
use crate::children::Child;
use crate::engine::{ChildAssignment, SeedAccess, StartOptions, ZygoteTrigger};
use crate::metrics::MeasuredOperation;
use crate::network::FanOutNetwork;
use crate::node::Node;
use crate::pending_starts::PendingStart;
use crate::phases::{self, PhaseRecording};
use crate::speculation::ForkPattern;

/// Longest wait for the zygote of a fan-out whose first child is on another node. After that, one child is started
/// without a zygote. On an idle machine, a zygote takes about 20 ms.
const REMOTE_ZYGOTE_TIMEOUT: Duration = Duration::from_millis(250);

/// Delay before further children are prestarted: a short-lived child ends within this time.
const PRESTART_DELAY: Duration = Duration::from_millis(5);

/// The children of one request: their common options, and a queue of the children that are not started yet.
#[derive(Debug)]
struct StartBatch {
    node: Arc<Node>,
    source: SeedAccess,
    options: StartOptions,
    fan_out: FanOutNetwork,
    shared_payload: Option<Vec<u8>>,
    profile: bool,
    received_at: Instant,
    sink: ResponseSender<v1::ForkOutcome>,
    /// Whether there are more children than start at once.
    is_fan_out: bool,
    /// The batch of attended children; `None` if the fork is not attended.
    attended: Option<Arc<AttendedBatch>>,
    /// If the fork is not attended: a batch without children, by which the caller can stop further starts.
    unattended: Option<Arc<AttendedBatch>>,
    /// Whether a Tend stream will watch each child.
    is_exit_watched: bool,
    /// Held until all children are listed or have failed.
    _pending_start: PendingStart,
    queue: Mutex<VecDeque<v1::ChildSpec>>,
}

/// The permit and the timing of one child's start.
struct StartTurn {
    permit: OwnedSemaphorePermit,
    recording: PhaseRecording,
    waited: Duration,
    requested: Instant,
}

/// Starts the children, and reports their outcomes as they occur. A child whose outcome cannot be delivered is killed.
pub(super) fn start_children(
    node: &Arc<Node>,
    request: v1::StartChildrenRequest,
) -> Result<ResponseReceiver<v1::ForkOutcome>, Failure> {
    if let Some(reason) = node.pager.not_ready_reason() {
        let step = "fork to another node, or see `farfork nodes` and pager.log in the node's run directory";
        let refused =
            Failure::new(Code::Unavailable, format!("node `{}`", node.name), format!("it takes no children: {reason}"));
        return Err(refused.with_next_step(step));
    }
    let v1::StartChildrenRequest { seed, children, options, shared_payload, profile, batch, exit_watched, stop_batch } =
        request;
    let missing = || Failure::new(Code::InvalidArgument, "start children", "the request names no seed");
    let (sink, outcomes) = mpsc::channel(STREAM_MESSAGES_MAX);
    let count = children.len();
    let is_fan_out = count > CONCURRENT_STARTS_MAX;
    let source = SeedAccess::try_from(seed.ok_or_else(missing)?)?;
    let options = StartOptions::try_from(options.unwrap_or_default())?;
    let attended = (batch != 0).then(|| node.attended.register(batch));
    if let Some(attended) = attended.clone() {
        let sink = sink.clone();
        tokio::spawn(async move {
            sink.closed().await;
            drop(attended);
        });
    }
    let batch = Arc::new(StartBatch {
        node: node.clone(),
        _pending_start: node.pending_starts.begin(source.key.seed.clone()),
        source,
        options,
        attended,
        unattended: (stop_batch != 0).then(|| node.attended.register(stop_batch)),
        is_exit_watched: exit_watched,
        fan_out: FanOutNetwork::default(),
        shared_payload,
        profile,
        received_at: Instant::now(),
        sink,
        is_fan_out,
        queue: Mutex::new(children.into()),
    });
    if node.engine.can_copy_zygote(&batch.options) {
        node.fork_history.record_local_fork(&batch.source.key.seed, batch.fork_pattern(), count);
    }
    if is_fan_out {
        tokio::spawn(start_fan_out(batch, count));
    } else {
        spawn_starters(&batch, count);
    }
    Ok(outcomes)
}

/// Spawns one starter task per child, but at most as many as children may start at once.
fn spawn_starters(batch: &Arc<StartBatch>, count: usize) {
    for _ in 0..count.min(CONCURRENT_STARTS_MAX) {
        tokio::spawn(run_starter(batch.clone(), AfterStart::TakeNext));
    }
}

/// Starts the children of a fan-out when the zygote is filled or has failed. Also continues when the caller has stopped the
/// fork, which reports the children. The first child of the whole fork is started at once, without the zygote. On other
/// nodes, one child is started without the zygote if the zygote takes longer than [`REMOTE_ZYGOTE_TIMEOUT`].
async fn start_fan_out(batch: Arc<StartBatch>, count: usize) {
    let mut zygote = tokio::spawn(zygote::wait_zygote_filled(
        batch.node.clone(),
        batch.source.clone(),
        batch.options.clone(),
        ZygoteTrigger::Requested,
    ));
    let has_first = batch.queue().front().is_some_and(|child| child.index == 0);
    let zygote = async {
        if has_first || timeout(REMOTE_ZYGOTE_TIMEOUT, &mut zygote).await.is_err() {
            tokio::spawn(run_starter(batch.clone(), AfterStart::Stop));
            let _ = zygote.await;
        }
    };
    tokio::select! {
        () = zygote => {}
        () = batch.wait_stopped() => {}
        () = batch.sink.closed() => return,
    }
    spawn_starters(&batch, count);
}

/// The action of a starter after it has started a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterStart {
    Stop,
    /// Starts the next child, if there is one.
    TakeNext,
}

/// Starts children of a batch, one after the other. The engine blocks, so it runs on a separate thread, which finishes
/// the child even if the caller disconnects.
async fn run_starter(mut batch: Arc<StartBatch>, next: AfterStart) {
    loop {
        let Ok(turn) = batch.node.start_permits.clone().acquire_owned().await else { return };
        if batch.sink.is_closed() {
            return;
        }
        let start_turn = batch.begin_start(turn);
        let queued =
            start_turn.recording.span().in_scope(|| tracing::debug_span!(target: phases::TARGET, "resume.thread"));
        let starting = tokio::task::spawn_blocking(move || {
            drop(queued);
            start_while_permitted(batch, start_turn, next)
        });
        // If the start panics, the stream of outcomes ends without this child: the caller then reports it as failed.
        batch = match starting.await {
            Ok(Some(batch)) => batch,
            _ => return,
        };
    }
}

/// Starts children as long as permits are free that no other request waits for: continuing costs less than waking
/// another thread. Returns the batch if children are left.
fn start_while_permitted(
    batch: Arc<StartBatch>,
    mut start_turn: StartTurn,
    next: AfterStart,
) -> Option<Arc<StartBatch>> {
    loop {
        let v1::ChildSpec { index, payload } = batch.queue().pop_front()?;
        let has_payload = payload.is_some() || batch.shared_payload.is_some();
        let StartTurn { permit: turn, recording, waited, requested } = start_turn;
        let started = match batch.is_stopped() {
            true => Err(never_started(format!("a child of seed {}", batch.source.key.seed))),
            false => recording.span().in_scope(|| start_one(&batch, index, payload, requested)),
        };
        drop(turn);
        let mut phases = recording.finish();
        phases::shift_phases(&mut phases, waited);
        send_outcome(&batch, index, started, phases);
        let is_last = batch.queue().is_empty();
        schedule_prestart(&batch, has_payload);
        let prewarm = prewarm_work(&batch);
        if is_last || next == AfterStart::Stop {
            // Drop the batch before the work for the next child: this ends the stream of outcomes, so the caller does
            // not wait for that work.
            drop(batch);
            prewarm.into_iter().for_each(|make_ready| make_ready());
            return None;
        }
        prewarm.map(tokio::task::spawn_blocking);
        // Children of other requests that wait for a permit take precedence.
        match batch.node.start_permits.clone().try_acquire_owned() {
            Ok(_) if batch.sink.is_closed() => return None,
            Ok(turn) => start_turn = batch.begin_start(turn),
            Err(_) => return Some(batch),
        }
    }
}

impl StartBatch {
    fn begin_start(&self, turn: OwnedSemaphorePermit) -> StartTurn {
        let recording = PhaseRecording::start(self.profile, &self.node.name, "resume");
        StartTurn { permit: turn, recording, waited: self.received_at.elapsed(), requested: Instant::now() }
    }

    /// Whether the caller wants no further starts.
    fn is_stopped(&self) -> bool {
        self.stoppable().is_some_and(AttendedBatch::is_stopped)
    }

    /// Waits until the caller wants no further starts.
    async fn wait_stopped(&self) {
        match self.stoppable() {
            Some(batch) => batch.wait_stopped().await,
            None => std::future::pending().await,
        }
    }

    /// The batch by which the caller may stop the starts.
    fn stoppable(&self) -> Option<&AttendedBatch> {
        self.attended.as_ref().or(self.unattended.as_ref()).map(Arc::as_ref)
    }

    /// Returns the pattern with which children of the next seed are expected to be requested. Omits the time limit,
    /// which may differ.
    fn fork_pattern(&self) -> ForkPattern {
        let options = StartOptions { timeout: None, ..self.options.clone() };
        let has_payload = self.shared_payload.is_some() || self.queue().iter().any(|child| child.payload.is_some());
        ForkPattern { options, has_payload, is_fan_out: self.is_fan_out }
    }

    /// Ignores poisoning: every change is complete under its lock.
    fn queue(&self) -> MutexGuard<'_, VecDeque<v1::ChildSpec>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of a child whose start had not begun when the caller stopped the fork.
fn never_started(object: String) -> Failure {
    Failure::new(Code::Cancelled, object, NEVER_STARTED_CAUSE).with_next_step("fork it again")
}

fn start_one(
    batch: &StartBatch,
    index: u32,
    payload: Option<Vec<u8>>,
    requested: Instant,
) -> Result<Arc<Child>, Failure> {
    let StartBatch { node, source, options, fan_out, shared_payload, is_fan_out, .. } = batch;
    let child_assignment = ChildAssignment { index, payload: payload.as_deref().or(shared_payload.as_deref()) };
    let object = format!("a child of seed {} on node {}", source.key.seed, node.name);
    let memory_reservation =
        node.child_budget.reserve(&object, options.limits.memory_bytes_max, || node.children.sum_memory_limits())?;
    let started_child = node.engine.start(source, options, fan_out, *is_fan_out, child_assignment, requested)?;
    drop(memory_reservation);
    let child = phase!("resume.watch", node.children.add(started_child));
    if let Some(attended) = &batch.attended
        && let Ok(held_child) = node.children.hold(&child.record().id)
    {
        attended.add(held_child);
    }
    if batch.is_exit_watched {
        exit_watch::kill_unless_watched(&child);
    }
    Ok(child)
}

/// Returns the work that prepares the next child, if there is any.
fn prewarm_work(batch: &StartBatch) -> Option<impl FnOnce() + Send + use<>> {
    let StartBatch { node, source, options, .. } = batch;
    let is_idle = node.start_permits.available_permits() == CONCURRENT_STARTS_MAX;
    node.engine.has_prewarm_work(&source.key.seed, is_idle).then(|| {
        let (node, source, options) = (node.clone(), source.clone(), options.clone());
        move || node.engine.prewarm_next_child(&source, &options)
    })
}

/// Prestarts children if they are forked one by one and more are expected. Waits for [`PRESTART_DELAY`] first, so that
/// the last child has the CPUs.
fn schedule_prestart(batch: &StartBatch, has_payload: bool) {
    if batch.is_fan_out || batch.node.start_permits.available_permits() < CONCURRENT_STARTS_MAX {
        return;
    }
    let StartBatch { node, source, options, .. } = batch;
    let most = node.fork_history.remaining_forks(&source.key.seed).unwrap_or(PRESTARTED_PER_SEED_MAX);
    if most == 0 {
        return;
    }
    let (node, source, options) = (node.clone(), source.clone(), options.clone());
    tokio::spawn(async move {
        sleep(PRESTART_DELAY).await;
        let _ =
            tokio::task::spawn_blocking(move || node.engine.prestart_children(&source, &options, has_payload, most))
                .await;
    });
}

/// Reports the outcome. If the caller has disconnected, kills the child: its id would be unknown.
fn send_outcome(batch: &StartBatch, index: u32, started: Result<Arc<Child>, Failure>, phases: Vec<v1::Phase>) {
    let node = &batch.node;
    let result = match &started {
        Ok(child) => {
            node.metrics.record_resume(child.record().resume_us);
            let is_complete = batch.options.strategy.mode == PagingMode::Eager;
            Outcome::Child(if is_complete { child.as_ref().into() } else { child.to_started_view() })
        }
        Err(failure) => {
            if failure.cause() != NEVER_STARTED_CAUSE {
                node.metrics.record_failure(MeasuredOperation::Resume, failure);
            }
            Outcome::Error(failure.clone().into())
        }
    };
    let outcome = v1::ForkOutcome { index, node: node.name.to_string(), result: Some(result), phases };
    match batch.sink.try_send(Ok(outcome)) {
        Ok(()) => {}
        Err(TrySendError::Full(outcome)) => {
            let sink = batch.sink.clone();
            tokio::spawn(async move {
                if sink.send(outcome).await.is_err() {
                    kill_unclaimed(started);
                }
            });
        }
        Err(TrySendError::Closed(_)) => kill_unclaimed(started),
    }
    node.children.evict_ended(EVICTED_PER_START_MAX);
}

/// Kills a child whose outcome could not be delivered.
fn kill_unclaimed(started: Result<Arc<Child>, Failure>) {
    if let Ok(child) = started {
        tracing::info!(child = %child.record().id, "killed: the requester has disconnected");
        // The child may have ended on its own.
        let _ = child.kill(rustix::process::Signal::KILL.as_raw().unsigned_abs());
    }
}
