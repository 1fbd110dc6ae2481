//! Forwards a log to the successor on its path, piece by piece: what to send, when an attempt has failed, and when the
//! successor must leave the chain. A piece that the successor has validated is not sent again.
//!
//! An attempt, which `start` begins and `SendAction::End` ends:
//! `Open ──▶ Write … Wait … ──▶ Announce ──▶ End`, and after a failure `Probe ──▶ Validate ──▶ Leave ──▶ Remove ──▶ End`

use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

use super::copier_log::{CopierLog, PendingAppend};
use super::is_due;
use super::piece::{
    FIRST_PIECE_BYTES, PIECE_BYTES_MIN, PieceAnnouncement, PieceTransfer, RecordBounds, TransferError, is_inline,
    piece_end,
};
use super::replica_progress::ReplicaRate;
use super::send_action::{SendAction, SendFailure};
use super::successor_health::{SuccessorFailure, SuccessorHealth};
use crate::chain::calls::StoredLog;
use crate::chain::{PathPosition, PathVersion, TreeSpace};
use crate::log::LogPoint;

/// Interval of queries for the successor's published position, while a thread waits for that position.
const URGENT_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// As `URGENT_POLL_INTERVAL`, while no thread waits: the client's log still has room.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The forwarding part of a copier.
#[derive(Debug)]
pub struct LogForwarder {
    node: NodeName,
    client: u16,
    /// Longest wait for one reply or one acknowledgement.
    timeout: Duration,
    polled_at: Instant,
    health: SuccessorHealth,
    /// The path on which the successor lacks records that this node has; none if it lacks none.
    backlog: Option<PathVersion>,
    link: Option<SuccessorLink>,
    attempt: Option<SendAttempt>,
}

/// A successor that has opened the log. After a restart of this node's log, it may have records that this node has dropped.
#[derive(Debug)]
struct SuccessorLink {
    node: NodeName,
    path: PathVersion,
    restarts: u64,
    /// The successor has validated the log up to this point.
    stored: LogPoint,
    piece_bytes: u64,
}

/// Records to forward, or requests of the predecessor to answer.
#[derive(Clone, Debug)]
pub struct ForwardTask {
    /// The record of the volume.
    pub record: Arc<VolumeRecord>,
    /// The path of the log.
    pub path: PathVersion,
    position: PathPosition,
    /// The path begins at this node.
    is_first: bool,
    /// Number of the last space report that was requested before this task.
    space_request: u64,
    /// Number of restarts of the log before this task.
    restarts: u64,
    must_send: bool,
    /// Number of bytes that not all later members have.
    new_bytes: u64,
}

/// The begin of a task.
#[derive(Debug)]
pub enum StartedTask<R> {
    /// `poll_action` returns the actions of an attempt.
    Sending,
    /// This node is the last one, and has marked records as committed.
    Committed,
    /// This node is not on the path, and refuses these requests.
    Refused(Vec<R>),
    /// Only replies are due.
    Idle,
}

/// An attempt to send the next piece to the successor.
#[derive(Debug)]
struct SendAttempt {
    task: ForwardTask,
    successor: NodeName,
    started: Instant,
    /// The log at the begin of the attempt.
    stored: LogPoint,
    is_urgent: bool,
    needs_space: bool,
    /// End of the piece that is announced.
    piece_end: LogPoint,
    failure: Option<SendFailure>,
    phase: SendPhase,
}

#[derive(Debug)]
enum SendPhase {
    /// The next action.
    Due(SendAction),
    /// The link is open, and the piece is not chosen yet.
    Linked,
    Writing(PieceTransfer),
    /// The last action is being executed.
    Executing,
}

impl LogForwarder {
    /// Creates the forwarding part of the copier of a client's log, on a node.
    pub fn new(node: NodeName, client: u16, timeout: Duration, rate: ReplicaRate, now: Instant) -> Self {
        let health = SuccessorHealth::new(rate, now);
        Self { node, client, timeout, polled_at: now, health, backlog: None, link: None, attempt: None }
    }

    /// Returns the work that is due now. If there is none, `wake_at` becomes at most the time when some may be due. With
    /// `has_reply`, a reply to this node's client is due.
    pub fn poll_task<R>(
        &self,
        record: &Arc<VolumeRecord>,
        log: &CopierLog<R>,
        has_reply: bool,
        now: Instant,
        wake_at: &mut Instant,
    ) -> Option<ForwardTask> {
        if log.must_restart() {
            // The end of the log is unknown until it was read again.
            return None;
        }
        let position = PathPosition::of(record, self.client, &self.node);
        let path = PathVersion::of(record, self.client);
        let is_first = PathPosition::is_first(record, self.client, &self.node);
        let (stored, committed) = (log.chain.stored(), log.chain.committed());
        let is_last = position == PathPosition::Last;
        let has_answer = |append: &PendingAppend<R>| {
            let is_complete = append.is_complete(committed, &log.later_space);
            append.path() != path || (is_last && append.end() <= stored) || is_complete
        };
        let needs_space = log.later_space.is_requested();
        let (published, published_everywhere) = (log.chain.published().point, log.chain.published_everywhere());
        let must_send = match &position {
            PathPosition::Before(successor) => {
                // A replica that catches up waits for each log, even for a log without new records.
                let is_linked = self.is_linked(successor, path, log.restarts);
                let must_open = record.joining.as_ref() == Some(successor) && !is_linked;
                let (interval, retry_at) =
                    (if log.is_urgent() { URGENT_POLL_INTERVAL } else { POLL_INTERVAL }, self.health.retry_at());
                let poll_at = retry_at.max(self.polled_at + interval);
                ((stored > committed || must_open || needs_space) && is_due(retry_at, now, wake_at))
                    || (published_everywhere < committed && is_due(poll_at, now, wake_at))
            }
            PathPosition::Last => {
                (is_first && (stored > committed || needs_space)) || published_everywhere < published.min(committed)
            }
            PathPosition::Off => !log.appends.is_empty(),
        };
        if !(must_send || has_reply || log.appends.iter().any(has_answer)) {
            return None;
        }
        let new_bytes = stored.position - committed.position;
        let (record, space_request, restarts) = (Arc::clone(record), log.later_space.last_request(), log.restarts);
        Some(ForwardTask { record, path, position, is_first, space_request, restarts, must_send, new_bytes })
    }

    /// Whether a task makes no call, or sends at most `bytes_max` bytes to a successor that has not failed.
    pub fn is_short(&self, task: &ForwardTask, may_wait: bool, bytes_max: u64) -> bool {
        match &task.position {
            PathPosition::Before(successor) if task.must_send => {
                let is_linked = self.is_linked(successor, task.path, task.restarts);
                may_wait && !self.is_failing() && is_linked && task.new_bytes <= bytes_max
            }
            _ => true,
        }
    }

    /// Whether the last attempt has failed.
    pub fn is_failing(&self) -> bool {
        self.health.is_failing()
    }

    /// Whether the successor has opened the log.
    pub fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// Whether the successor has opened the log on this path, and the log was not restarted since.
    fn is_linked(&self, successor: &NodeName, path: PathVersion, restarts: u64) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.restarts == restarts && link.node == *successor && link.path == path)
    }

    /// Begins a task. The last node of the path only marks records as committed.
    pub fn start<R>(&mut self, task: &ForwardTask, log: &mut CopierLog<R>, now: Instant) -> StartedTask<R> {
        let successor = match &task.position {
            PathPosition::Before(successor) if task.must_send => successor.clone(),
            PathPosition::Before(_) => return StartedTask::Idle,
            PathPosition::Last => {
                self.drop_successor();
                // Only the first node of the path knows the end of the log. Another node may have records from an earlier
                // path, so only announced records count.
                let announced = log.announced_end(task.path).unwrap_or(LogPoint::START);
                let committed = if task.is_first { log.chain.stored() } else { announced };
                let (published, space) = (log.chain.published().point, Some(TreeSpace::UNLIMITED));
                commit(task, StoredLog { committed, published, space, is_complete: true }, log);
                return StartedTask::Committed;
            }
            PathPosition::Off => {
                self.drop_successor();
                return StartedTask::Refused(log.take_all_appends());
            }
        };
        self.health.begin(&successor, now);
        if self.backlog != Some(task.path) {
            self.backlog = Some(task.path);
            self.health.progress.restart(0, now);
        }
        let (stored, published) = (log.chain.stored(), log.chain.published());
        let is_linked = self.is_linked(&successor, task.path, task.restarts);
        let open = SendAction::Open { published, stored, timeout: self.timeout };
        self.attempt = Some(SendAttempt {
            task: task.clone(),
            successor,
            started: now,
            stored,
            is_urgent: log.is_urgent(),
            needs_space: log.later_space.is_requested(),
            piece_end: LogPoint::START,
            failure: None,
            phase: if is_linked { SendPhase::Linked } else { SendPhase::Due(open) },
        });
        StartedTask::Sending
    }

    fn drop_successor(&mut self) {
        (self.link, self.backlog) = (None, None);
        self.health.reset();
    }

    /// The successor of the present attempt.
    pub fn successor(&self) -> Option<&NodeName> {
        self.attempt.as_ref().map(|attempt| &attempt.successor)
    }

    /// The task of the present attempt.
    pub fn task(&self) -> Option<&ForwardTask> {
        self.attempt.as_ref().map(|attempt| &attempt.task)
    }

    /// Returns the next action of the attempt.
    pub fn poll_action(&mut self, bounds: &impl RecordBounds, now: Instant) -> SendAction {
        let Some(attempt) = &mut self.attempt else { return SendAction::End };
        if let (SendPhase::Linked, Some(link)) = (&attempt.phase, &self.link) {
            let (from, log_end) = (link.stored, link.stored.max(attempt.stored));
            attempt.piece_end = piece_end(bounds, from, log_end, link.piece_bytes);
            attempt.phase = if is_inline(attempt.piece_end.position - from.position, link.piece_bytes) {
                SendPhase::Due(attempt.announce(Some(from), self.timeout))
            } else {
                SendPhase::Writing(PieceTransfer::new(from, attempt.piece_end, link.piece_bytes, now))
            };
        }
        if let (SendPhase::Writing(transfer), Some(link)) = (&mut attempt.phase, &mut self.link) {
            if let Some((from, to)) = transfer.next_write(bounds.ring_bytes()) {
                let timeout = PieceTransfer::write_timeout(&self.health.progress);
                return SendAction::Write { from, to, timeout };
            }
            if !transfer.is_written() {
                return SendAction::Wait(transfer.silent_at(self.timeout));
            }
            link.piece_bytes = transfer.next_piece_bytes(now);
            attempt.phase = SendPhase::Due(attempt.announce(None, self.timeout));
        }
        match std::mem::replace(&mut attempt.phase, SendPhase::Executing) {
            SendPhase::Due(SendAction::End) => {
                self.attempt = None;
                SendAction::End
            }
            SendPhase::Due(SendAction::ReadRecord) => {
                attempt.phase = SendPhase::Due(SendAction::End);
                SendAction::ReadRecord
            }
            SendPhase::Due(action) => action,
            SendPhase::Linked | SendPhase::Writing(_) | SendPhase::Executing => SendAction::Pending,
        }
    }

    /// The successor has opened the log, which it has validated up to `stored`.
    pub fn handle_opened(&mut self, stored: LogPoint) {
        let Some(attempt) = &mut self.attempt else { return };
        // After a failure, the link counts as slow until its rate is known.
        let piece_bytes = if self.health.is_failing() { PIECE_BYTES_MIN } else { FIRST_PIECE_BYTES };
        let (node, task) = (attempt.successor.clone(), &attempt.task);
        self.link = Some(SuccessorLink { node, path: task.path, restarts: task.restarts, stored, piece_bytes });
        attempt.phase = SendPhase::Linked;
    }

    /// The successor has acknowledged a write up to a position.
    pub fn handle_written(&mut self, position: u64, now: Instant) {
        if let Some(SendPhase::Writing(transfer)) = self.attempt.as_mut().map(|attempt| &mut attempt.phase) {
            transfer.handle_written(now);
            self.health.progress.advance(position, now);
        }
    }

    /// Excludes time that this node has used itself during a write, such as for compression.
    pub fn exclude(&mut self, time: Duration) {
        if let Some(SendPhase::Writing(transfer)) = self.attempt.as_mut().map(|attempt| &mut attempt.phase) {
            transfer.exclude(time);
            self.health.progress.exclude(time);
        }
    }

    /// Checks the successor while writes are in flight. If this process was paused, acknowledgements have arrived, so the
    /// caller reports them first.
    ///
    /// # Errors
    /// When the successor is silent or too slow. The caller then calls `handle_failure`.
    pub fn handle_timer(&mut self, now: Instant) -> Result<(), TransferError> {
        match self.attempt.as_ref().map(|attempt| &attempt.phase) {
            Some(SendPhase::Writing(transfer)) => transfer.check(&self.health.progress, self.timeout, now),
            _ => Ok(()),
        }
    }

    /// The successor has validated the piece. `later` is the progress of the successor and all later members.
    pub fn handle_stored<R>(&mut self, mut later: StoredLog, log: &mut CopierLog<R>, now: Instant) {
        let Some(attempt) = &mut self.attempt else { return };
        let Some(link) = &mut self.link else { return };
        link.stored = attempt.piece_end;
        self.health.progress.advance(link.stored.position, now);
        if link.stored >= attempt.stored {
            self.backlog = None;
        }
        self.health.reset();
        self.polled_at = now;
        // Writers do not wait for space of a replica that catches up.
        if !attempt.task.record.chain.contains(&attempt.successor) {
            later.space = later.space.map(|_| TreeSpace::UNLIMITED);
        }
        commit(&attempt.task, later, log);
        attempt.phase = SendPhase::Due(SendAction::End);
    }

    /// The successor has not taken the log. The next attempt continues at the end of the part that it has validated.
    pub fn handle_failure<R>(&mut self, failure: SendFailure, log: &mut CopierLog<R>, now: Instant) {
        self.link = None;
        let Some(attempt) = &mut self.attempt else { return };
        // An attempt may have sent bytes for long before the successor became silent.
        attempt.started = attempt.started.max(self.health.progress.advanced_at());
        attempt.failure = Some(failure);
        let kind = match failure {
            SendFailure::Unanswered => {
                attempt.phase = SendPhase::Due(SendAction::Probe);
                return;
            }
            SendFailure::OtherPath => SuccessorFailure::OtherPath,
            SendFailure::DiskFull if attempt.task.record.chain.contains(&attempt.successor) => {
                log.later_space.report(TreeSpace::Full, attempt.task.space_request);
                SuccessorFailure::DiskFull
            }
            SendFailure::DiskFull | SendFailure::PublishedAhead | SendFailure::Refused => SuccessorFailure::Refusing,
            // It says nothing about the successor.
            SendFailure::Catalog => SuccessorFailure::Unknown,
        };
        self.count_failure(kind, Vec::new(), now);
    }

    /// The silent nodes of the chain were found. There are none if the successor is alive.
    pub fn handle_probed(&mut self, silent: Vec<NodeName>, now: Instant) {
        // A node that waits for its own successor is alive.
        let kind = if silent.is_empty() { SuccessorFailure::Waiting } else { SuccessorFailure::Silent };
        self.count_failure(kind, silent, now);
    }

    fn count_failure(&mut self, kind: SuccessorFailure, silent: Vec<NodeName>, now: Instant) {
        let Some(attempt) = &mut self.attempt else { return };
        let action = if self.health.fail(kind, attempt.started, now) {
            match attempt.failure {
                Some(SendFailure::PublishedAhead) => SendAction::Leave,
                Some(SendFailure::Refused) => SendAction::Validate,
                _ => SendAction::Remove(silent),
            }
        } else if kind == SuccessorFailure::Silent {
            SendAction::End
        } else {
            // A successor that is alive may have a later record of the volume.
            SendAction::ReadRecord
        };
        attempt.phase = SendPhase::Due(action);
    }

    /// The unpublished part of this node's log is valid, or damaged. Of the two nodes, the damaged one leaves the chain.
    pub fn handle_validated(&mut self, is_valid: bool) {
        self.set_due(if is_valid { SendAction::Remove(Vec::new()) } else { SendAction::Leave });
    }

    /// This node has tried to leave the chain. The last live replica stays: its successor is a replica that catches up, which
    /// is then removed. None after an error.
    pub fn handle_left(&mut self, has_left: Option<bool>) {
        if has_left == Some(true) {
            self.health.reset();
        }
        self.set_due(if has_left == Some(false) { SendAction::Remove(Vec::new()) } else { SendAction::End });
    }

    /// The successor has left the chain; or the chain could not be changed.
    pub fn handle_removed(&mut self, is_removed: bool) {
        if is_removed {
            self.health.reset();
        }
        self.set_due(SendAction::End);
    }

    fn set_due(&mut self, action: SendAction) {
        if let Some(attempt) = &mut self.attempt {
            attempt.phase = SendPhase::Due(action);
        }
    }
}

impl SendAttempt {
    /// Announces the piece. The end is also announced for a log that ends before the successor's log: the reply has the
    /// progress of the later members.
    fn announce(&self, inline_from: Option<LogPoint>, timeout: Duration) -> SendAction {
        let has_more = self.piece_end < self.stored;
        let end = if has_more { self.piece_end } else { self.stored };
        let (is_urgent, needs_space, wait) = (self.is_urgent, self.needs_space, timeout / 2);
        SendAction::Announce(PieceAnnouncement { inline_from, end, has_more, is_urgent, needs_space, wait, timeout })
    }
}

/// Stores what all later members have, unless they may have records that this node has dropped meanwhile.
fn commit<R>(task: &ForwardTask, later: StoredLog, log: &mut CopierLog<R>) {
    if log.restarts != task.restarts {
        return;
    }
    log.handle_progress(later, task.space_request);
}
