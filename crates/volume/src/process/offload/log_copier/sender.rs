//! Sends a log to the successor on its path, piece by piece, and learns from the replies what all later members have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

use super::super::publishing;
use super::super::received_log::PendingAppend;
use super::super::successor::SuccessorHealth;
use super::super::volume::{LogProgress, ReplicaState, ReplicatedVolume, WaitingThread};
use super::{CopierPart, SHORT_BYTES_MAX};
use crate::chain::calls::{AppendLog, LogBytes, OpenLog, StoredLog};
use crate::chain::{ChainError, ChainLink, LogCompressor, PathPosition, PathVersion, TreeSpace};
use crate::log::{LogFile, LogPoint};

/// Interval of queries for the successor's published position, while a thread waits for that position.
const URGENT_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// As `URGENT_POLL_INTERVAL`, while no thread waits: the client's log still has room.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The sending part of a copier.
pub(super) struct LogSender {
    pub(super) volume: Arc<ReplicatedVolume>,
    pub(super) client: u16,
    pub(super) log: LogFile,
    pub(super) link: Option<SenderLink>,
    compressor: LogCompressor,
    polled_at: Instant,
    pub(super) successor: SuccessorHealth,
    /// The path on which the successor lacks records that this node has; none if it lacks none.
    backlog: Option<PathVersion>,
}

/// A connection to the successor, and the number of restarts of the log before it was made. After a restart, the successor
/// may have records that this node has dropped.
pub(super) struct SenderLink {
    chain: ChainLink,
    restarts: u64,
}

/// Records to send to the successor, or requests of the predecessor to answer.
pub(super) struct SendTask {
    pub(super) record: Arc<VolumeRecord>,
    path: PathVersion,
    position: PathPosition,
    /// The path begins at this node.
    is_first: bool,
    /// Number of the last space report that was requested before this task.
    pub(super) space_request: u64,
    /// Number of restarts of the log before this task.
    restarts: u64,
    must_send: bool,
    /// Number of bytes that not all later members have.
    new_bytes: u64,
}

impl CopierPart for LogSender {
    type Task = SendTask;
    const THREAD: fn(u16) -> WaitingThread = WaitingThread::Sender;

    fn task_of(&self, state: &mut ReplicaState, wake_at: &mut Instant) -> Option<SendTask> {
        let now = Instant::now();
        let mut is_due = |at: Instant| {
            *wake_at = (*wake_at).min(at.max(now));
            at <= now
        };
        let (record, own_name) = (Arc::clone(&state.record), &self.volume.node.name);
        let position = PathPosition::of(&record, self.client, own_name);
        let path = PathVersion::of(&record, self.client);
        let is_first = PathPosition::is_first(&record, self.client, own_name);
        let has_space_answer = state.has_space_answer(self.client);
        let log = state.log(self.client);
        if log.restart.is_some() {
            // The end of the log is unknown until the reader has read the log again.
            return None;
        }
        let (stored, committed) = (log.chain.stored(), log.chain.committed());
        let poll_at = self.polled_at + if log.is_urgent() { URGENT_POLL_INTERVAL } else { POLL_INTERVAL };
        let is_last = position == PathPosition::Last;
        let has_answer = |append: &PendingAppend| {
            let is_complete = append.is_complete(committed, &log.later_space);
            append.path != path || (is_last && append.end <= stored) || is_complete
        };
        let (needs_space, space_request) = (log.later_space.is_requested(), log.later_space.last_request());
        let has_appends = log.appends.iter().any(has_answer);
        let (published, published_everywhere) = (log.chain.published().point, log.chain.published_everywhere());
        let lags_elsewhere = published_everywhere < committed;
        let must_send = match &position {
            PathPosition::Before(successor) => {
                // A replica that catches up waits for each log, even for a log without new records.
                let must_open =
                    record.joining.as_ref() == Some(successor) && !self.is_linked(successor, path, log.restarts);
                ((stored > committed || must_open || needs_space) && is_due(self.successor.retry_at()))
                    || (lags_elsewhere && is_due(poll_at.max(self.successor.retry_at())))
            }
            PathPosition::Last => {
                (is_first && (stored > committed || needs_space)) || published_everywhere < published.min(committed)
            }
            PathPosition::Off => !log.appends.is_empty(),
        };
        if !(has_appends || must_send || has_space_answer) {
            return None;
        }
        let new_bytes = stored.position - committed.position;
        let restarts = log.restarts;
        Some(SendTask { record, path, position, is_first, space_request, restarts, must_send, new_bytes })
    }

    /// Nothing to send, or few bytes to a successor that has not failed.
    fn is_short(&self, task: &SendTask, may_wait: bool) -> bool {
        match &task.position {
            PathPosition::Before(successor) if task.must_send => {
                let is_linked = self.is_linked(successor, task.path, task.restarts);
                may_wait && !self.successor.is_failing() && is_linked && task.new_bytes <= SHORT_BYTES_MAX
            }
            _ => true,
        }
    }

    fn execute(&mut self, task: &SendTask) {
        self.forward(task);
        self.volume.acknowledge(self.client);
    }

    fn wakes_at(log: &mut LogProgress) -> &mut Instant {
        &mut log.sender_wakes_at
    }
}

impl LogSender {
    pub(super) fn new(volume: &Arc<ReplicatedVolume>, client: u16, log: LogFile) -> Self {
        let now = Instant::now();
        Self {
            volume: Arc::clone(volume),
            client,
            log,
            link: None,
            compressor: LogCompressor::new(volume.node.compression),
            polled_at: now,
            successor: SuccessorHealth::new(volume.node.replica_rate, now),
            backlog: None,
        }
    }

    /// Whether `link` connects to this successor for this path, and the log was not restarted since.
    fn is_linked(&self, successor: &NodeName, path: PathVersion, restarts: u64) -> bool {
        let is_present = |link: &SenderLink| {
            link.restarts == restarts && link.chain.node() == successor && link.chain.path() == path
        };
        self.link.as_ref().is_some_and(is_present)
    }

    /// Sends new records to the successor. The last node of the path only marks them as committed.
    fn forward(&mut self, task: &SendTask) {
        let successor = match &task.position {
            PathPosition::Before(successor) if task.must_send => successor,
            PathPosition::Before(_) => return,
            PathPosition::Last => {
                self.drop_successor();
                let mut state = self.volume.lock();
                let log = state.log(self.client);
                let announced = log.appends.iter().filter(|append| append.path == task.path).map(|append| append.end);
                // Only the first node of the path knows the end of the log. Another node may have records from an earlier
                // path, so only announced records count.
                let end = if task.is_first { log.chain.stored() } else { announced.max().unwrap_or(LogPoint::START) };
                let published = log.chain.published().point;
                drop(state);
                let space = Some(TreeSpace::UNLIMITED);
                return self.set_committed(StoredLog { committed: end, published, space }, task);
            }
            PathPosition::Off => {
                self.drop_successor();
                return self.refuse_appends();
            }
        };
        let started = Instant::now();
        match self.send_piece(task, successor) {
            Ok(mut later) => {
                self.successor.reset();
                self.polled_at = Instant::now();
                // Writers do not wait for space of a replica that catches up.
                if !task.record.chain.contains(successor) {
                    later.space = later.space.map(|_| TreeSpace::UNLIMITED);
                }
                self.set_committed(later, task);
            }
            Err(error) => self.handle_failure(task, successor, started, &error),
        }
    }

    fn drop_successor(&mut self) {
        self.link = None;
        self.backlog = None;
        self.successor.reset();
    }

    /// Sends the next piece of the log to the successor. Returns the progress of the successor and all later members.
    fn send_piece(&mut self, task: &SendTask, successor: &NodeName) -> Result<StoredLog, ChainError> {
        let (stored, published, is_urgent, needs_space) = {
            let mut state = self.volume.lock();
            let log = state.log(self.client);
            (log.chain.stored(), log.chain.published(), log.is_urgent(), log.later_space.is_requested())
        };
        let (volume, revision, client, path) = (self.volume.key.clone(), task.record.revision, self.client, task.path);
        let now = Instant::now();
        self.successor.begin(successor, now);
        if self.backlog != Some(path) {
            self.backlog = Some(path);
            self.successor.progress.restart(0, now);
        }
        if !self.is_linked(successor, path, task.restarts) {
            let request = OpenLog { volume: volume.clone(), revision, path, client, published, stored };
            let (node, has_failed) = (&self.volume.node, self.successor.is_failing());
            let chain = ChainLink::open(&node.peers, successor, &request, node.attempt_timeout(), has_failed)?;
            self.link = Some(SenderLink { chain, restarts: task.restarts });
        }
        let link = &mut self.link.as_mut().expect("it was opened above").chain;
        let bytes = LogBytes::default();
        let chunks = Vec::new();
        let request = AppendLog { volume, revision, path, client, end: stored, is_urgent, needs_space, bytes, chunks };
        let progress = &mut self.successor.progress;
        let later = link.send_piece(&self.log, request, &mut self.compressor, progress)?;
        if link.stored() >= stored {
            self.backlog = None;
        }
        Ok(later)
    }

    fn refuse_appends(&self) {
        let appends = std::mem::take(&mut self.volume.lock().log(self.client).appends);
        for append in appends {
            append.reply.refuse_path();
        }
    }

    /// Stores what all later members have. Wakes the publisher, unless it waits for more records.
    fn set_committed(&mut self, later: StoredLog, task: &SendTask) {
        let mut state = self.volume.lock();
        let is_folding = state.is_folding;
        let log = state.log(self.client);
        if log.restarts != task.restarts {
            // The later members may have records that this node has dropped meanwhile.
            return;
        }
        log.chain.commit(later.committed, later.published);
        log.forwarded += self.compressor.take_forwarded();
        if let Some(space) = later.space {
            log.later_space.report(space, task.space_request);
        }
        let must_publish = !is_folding || publishing::is_due(log);
        drop(state);
        if must_publish {
            self.volume.notify_thread(WaitingThread::Publisher);
        }
        self.volume.notify_thread(WaitingThread::Request);
    }
}
