//! Copies one log along its path: reads records that the client or the predecessor has written, validates them, sends them
//! to the successor, and acknowledges them when all later members have them.
//!
//! Each log has a thread for this work. If the log is idle and the work is short, the thread of a request does it instead:
//! each switch between threads delays a write by about ten microseconds.

mod failed_successor;

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

use super::publishing;
use super::received_log::PendingAppend;
use super::successor::SuccessorHealth;
use super::volume::{LogProgress, ReplicaState, ReplicatedVolume, WaitingThread};
use crate::chain::calls::{AppendAnswer, AppendLog, AppendedLog, LogBytes, OpenLog, answer_call};
use crate::chain::{
    ChainError, ChainLink, ChainLog, ChunkBuffers, LogCompressor, LogRestart, PathPosition, PathVersion, TreeSpace,
};
use crate::log::{LogFile, LogHeader, LogPoint};
use crate::process::open_tree::FileIdentity;
use crate::publish::{Durability, PublishedMark, is_damaged_mark};
use crate::replay::{LogReplay, ReplayEnd};

/// Longest time between two looks for new records of this node's client: a hint may be lost with a connection.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of queries for the successor's published position, while a thread waits for that position.
const URGENT_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// As `URGENT_POLL_INTERVAL`, while no thread waits: the client's log still has room.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Wait before a failed flush of the log is repeated.
const FLUSH_RETRY_WAIT: Duration = Duration::from_millis(100);
/// Longest sleep of the thread of a log. A safeguard: changes of the state wake the thread earlier.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Maximum number of new bytes that the thread of a request copies. Validating more bytes takes longer than waking the log's
/// own thread.
const SHORT_BYTES_MAX: u64 = 256 << 10;

/// The copier of one log. Used by one thread at a time.
pub(super) struct LogCopier {
    volume: Arc<ReplicatedVolume>,
    client: u16,
    log: LogFile,
    file: File,
    replay: LogReplay,
    link: Option<ChainLink>,
    compressor: LogCompressor,
    expansion_buffers: ChunkBuffers,
    next_look: Instant,
    polled_at: Instant,
    successor: SuccessorHealth,
}

/// The work that is due for a log.
struct CopierTask {
    record: Arc<VolumeRecord>,
    path: PathVersion,
    position: PathPosition,
    /// The path begins at this node.
    is_first: bool,
    source: LogSource,
    /// Number of looks that were requested before this task.
    looks: u64,
    /// Number of the last space report that was requested before this task.
    space_request: u64,
    /// The highest point of the client's unanswered `Commit` messages.
    commit_requested: Option<LogPoint>,
    restart: Option<LogRestart>,
    must_send: bool,
    /// Number of bytes to validate and to send; `u64::MAX` if unknown.
    new_bytes: u64,
}

/// The source of new records of the log.
enum LogSource {
    /// The client of this node appends to the log.
    Client,
    /// The predecessor has written the log up to `end`.
    Predecessor { end: LogPoint },
}

/// Opens the log of a client and starts its thread. Creates the log if it does not exist. Does nothing if the log is open.
pub(super) fn ensure_open(volume: &Arc<ReplicatedVolume>, client: u16) -> io::Result<()> {
    let _one_at_a_time = volume.opening_log.lock().unwrap_or_else(PoisonError::into_inner);
    let record = {
        let state = volume.lock();
        if state.is_closed {
            return Err(io::Error::other("the volume is closed"));
        }
        if state.logs.contains_key(&client) {
            return Ok(());
        }
        Arc::clone(&state.record)
    };
    // Read the mark before the log is created: after a crash or an error, the next attempt must still find the log missing.
    let mark = read_mark(volume, client)?;
    volume.directory.ensure_log(&LogHeader { volume: record.id, client, ring_bytes: record.log_bytes })?;
    let log = volume.directory.open_log(client).map_err(io::Error::other)?;
    let file = log.try_clone_file()?;
    let identity = FileIdentity::of(&file.metadata()?);
    let mut replay = LogReplay::new(log.header().ring_bytes, mark.point, mark.epoch);
    // A term ends after all its records are published. So unpublished records count only if they have the present term.
    // Others were written by a client that had lost its term, and were never acknowledged.
    if record.writer == Some(client) {
        replay.require_epoch(record.term);
        read_to_end(&mut replay, &log);
    }
    let (stored, now) = (replay.next_point(), Instant::now());
    let copier = Arc::new(Mutex::new(LogCopier {
        volume: Arc::clone(volume),
        client,
        log,
        file,
        replay,
        link: None,
        compressor: LogCompressor::new(volume.node.compression),
        expansion_buffers: ChunkBuffers::default(),
        next_look: now,
        polled_at: now,
        successor: SuccessorHealth::new(now),
    }));
    let progress = LogProgress::open(ChainLog::open(mark, stored), identity, Arc::clone(&copier));
    volume.lock().logs.insert(client, progress);
    let volume = Arc::clone(volume);
    thread::Builder::new().name(format!("log-{client}")).spawn(move || run(&volume, client, &copier))?;
    Ok(())
}

/// Returns the mark up to which a log is published. If the mark is damaged, or the log is missing, this node may lack
/// records. It then leaves the chain, and later copies a tree with its marks. The last live replica stays: it has no other
/// one to copy from.
fn read_mark(volume: &ReplicatedVolume, client: u16) -> io::Result<PublishedMark> {
    let shared = volume.directory.open_shared()?;
    shared.create_mark(client)?;
    match shared.open_mark(client) {
        Err(error) if is_damaged_mark(&error) => {
            tracing::error!(%error, volume = %volume.key.name, client, "a mark is damaged: the node leaves the chain");
            if volume.leave_chain().map_err(io::Error::other)? { shared.replace_mark(client) } else { Err(error) }
        }
        opened => {
            let mark = opened?.mark();
            if mark.point > LogPoint::START && !volume.directory.log_path(client).exists() {
                tracing::error!(volume = %volume.key.name, client, "a log is missing: the node leaves the chain");
                volume.leave_chain().map_err(io::Error::other)?;
            }
            Ok(mark)
        }
    }
}

fn read_to_end(replay: &mut LogReplay, log: &LogFile) -> ReplayEnd {
    loop {
        if let Err(end) = replay.read_record(log) {
            return end;
        }
    }
}

/// Copies a log until the volume is closed.
fn run(volume: &ReplicatedVolume, client: u16, copier: &Mutex<LogCopier>) {
    loop {
        let mut working = copier.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = volume.lock();
        if state.is_closed {
            // Breaks a reference cycle: the copier refers to the volume.
            state.log(client).copier = None;
            return;
        }
        let mut wake_at = Instant::now() + SLEEP_MAX;
        if let Some(task) = working.task_of(&mut state, &mut wake_at) {
            drop(state);
            working.execute(&task);
            continue;
        }
        state.log(client).copier_wakes_at = wake_at;
        // The state is still locked: a later change wakes this thread, or another thread handles the change.
        drop(working);
        drop(volume.wait(WaitingThread::Copier(client), state, wake_at));
    }
}

/// Copies a log after a change of its state: short work in the calling thread, other work in the log's own thread. With
/// `may_wait`, the calling thread may also wait for a successor that has not failed.
pub(super) fn copy_now(volume: &ReplicatedVolume, client: u16, may_wait: bool) {
    let copier = volume.lock().log(client).copier.clone();
    let next = copier.and_then(|copier| copier.try_lock().ok()?.execute_short(may_wait));
    if next.is_none_or(|next| next < volume.lock().log(client).copier_wakes_at) {
        volume.notify_thread(WaitingThread::Copier(client));
    }
}

impl LogCopier {
    /// Executes short tasks. Returns the time when the next work is due; none if longer work is due now.
    fn execute_short(&mut self, may_wait: bool) -> Option<Instant> {
        loop {
            let mut next = Instant::now() + SLEEP_MAX;
            let task = self.task_of(&mut self.volume.lock(), &mut next);
            match task {
                None => return Some(next),
                Some(task) if self.is_short(&task, may_wait) => self.execute(&task),
                Some(_) => return None,
            }
        }
    }

    /// Whether the thread of a request may execute a task: few bytes to validate, nothing to flush, and no slow successor.
    fn is_short(&self, task: &CopierTask, may_wait: bool) -> bool {
        let may_send = match &task.position {
            PathPosition::Before(successor) if task.must_send => {
                may_wait && !self.successor.is_failing() && self.is_linked(successor, task.path)
            }
            _ => true,
        };
        let is_small = task.new_bytes <= SHORT_BYTES_MAX && task.restart.is_none();
        may_send && is_small && task.record.durability == Durability::Memory
    }

    fn execute(&mut self, task: &CopierTask) {
        self.take_records(task);
        self.forward(task);
        self.volume.acknowledge(self.client);
    }

    /// Returns the work that is due now. If there is none, `wake_at` becomes the time when some may be due.
    fn task_of(&self, state: &mut ReplicaState, wake_at: &mut Instant) -> Option<CopierTask> {
        let now = Instant::now();
        let mut is_due = |at: Instant| {
            *wake_at = (*wake_at).min(at.max(now));
            at <= now
        };
        let (record, own_name) = (Arc::clone(&state.record), &self.volume.node.name);
        let position = PathPosition::of(&record, self.client, own_name);
        let path = PathVersion::of(&record, self.client);
        let is_first = PathPosition::is_first(&record, self.client, own_name);
        let is_source = path.is_writing && is_first;
        let client = state.client_of(self.client);
        let (has_client, commit_requested) = (client.is_some(), client.and_then(|client| client.commit_requested));
        let has_space_answer = state.has_space_answer(self.client);
        let log = state.log(self.client);
        let (stored, committed) = (log.chain.stored(), log.chain.committed());
        let poll_at = self.polled_at + if log.is_urgent() { URGENT_POLL_INTERVAL } else { POLL_INTERVAL };
        let is_last = position == PathPosition::Last;
        let has_answer = |append: &PendingAppend| {
            let is_complete = append.is_complete(committed, &log.later_space);
            is_last || append.path != path || append.end > stored || is_complete
        };
        let (needs_space, space_request) = (log.later_space.is_requested(), log.later_space.last_request());
        let has_appends = log.appends.iter().any(has_answer);
        let must_look = log.looks_requested > log.looks_done || (is_source && has_client && is_due(self.next_look));
        let (published, published_everywhere) = (log.chain.published().point, log.chain.published_everywhere());
        let lags_elsewhere = published_everywhere < committed;
        let must_send = match &position {
            PathPosition::Before(successor) => {
                // A replica that catches up waits for each log, even for a log without new records.
                let must_open = record.joining.as_ref() == Some(successor) && !self.is_linked(successor, path);
                ((stored > committed || must_open || needs_space) && is_due(self.successor.retry_at()))
                    || (lags_elsewhere && is_due(poll_at.max(self.successor.retry_at())))
            }
            PathPosition::Last => {
                (is_first && (stored > committed || needs_space)) || published_everywhere < published.min(committed)
            }
            PathPosition::Off => !log.appends.is_empty(),
        };
        if !(has_appends || must_look || must_send || has_space_answer || log.restart.is_some()) {
            return None;
        }
        let (source, end) = if is_source {
            (LogSource::Client, commit_requested.map(|requested| requested.max(stored)))
        } else {
            let announced = log.appends.iter().filter(|append| append.path == path).map(|append| append.end).max();
            // After a restart, the log may have further valid records, of a term that has ended. These were never
            // acknowledged.
            let known_end = log.restart.map_or(stored, |restart| restart.end);
            let end = announced.unwrap_or(known_end);
            (LogSource::Predecessor { end }, Some(end.max(stored)))
        };
        let new_bytes = end.map_or(u64::MAX, |end| end.position - committed.position.min(end.position));
        let (looks, restart) = (log.looks_requested, log.restart);
        Some(CopierTask {
            record,
            path,
            position,
            is_first,
            source,
            looks,
            space_request,
            commit_requested,
            restart,
            must_send,
            new_bytes,
        })
    }

    /// Whether `link` connects to this successor for this path.
    fn is_linked(&self, successor: &NodeName, path: PathVersion) -> bool {
        self.link.as_ref().is_some_and(|link| link.node() == successor && link.path() == path)
    }

    /// Validates new records. They count as stored after they are flushed, if the volume has `--durability disk`.
    fn take_records(&mut self, task: &CopierTask) {
        let before = self.replay.next_point();
        if let Some(LogRestart { mark, end }) = task.restart {
            self.replay = LogReplay::new(self.log.header().ring_bytes, mark.point, mark.epoch);
            self.require_term(&task.record);
            self.read_to(end);
        }
        self.require_term(&task.record);
        let end = match task.source {
            LogSource::Client => {
                self.next_look = Instant::now() + LOOK_INTERVAL;
                read_to_end(&mut self.replay, &self.log)
            }
            LogSource::Predecessor { end } => {
                let expansions = self.volume.lock().log(self.client).take_expansions(task.path);
                expansions.iter().for_each(|expansion| expansion.execute(&self.volume, &mut self.expansion_buffers));
                self.read_to(end)
            }
        };
        if self.replay.next_point() != before && task.record.durability == Durability::Disk {
            self.flush();
        }
        let mut state = self.volume.lock();
        let is_current = PathVersion::of(&state.record, self.client) == task.path;
        let log = state.log(self.client);
        let stored = self.replay.next_point();
        if !is_current && matches!(task.source, LogSource::Predecessor { .. }) {
            // The path has changed since the task was made, so the records do not count: their term may have ended, and the
            // next term may have begun without them.
            let (mark, end) = (log.chain.published(), log.chain.stored());
            log.restart.get_or_insert(LogRestart { mark, end });
            return;
        }
        match task.restart {
            Some(restart) => {
                log.restart.take_if(|latest| *latest == restart);
                log.chain.restart(restart, stored);
            }
            None => log.chain.store(stored),
        }
        log.update_window();
        log.looks_done = log.looks_done.max(task.looks);
        if let LogSource::Predecessor { end: requested } = task.source {
            let is_invalid = |append: &mut PendingAppend| append.end > stored && append.end <= requested;
            for append in log.appends.extract_if(.., is_invalid) {
                let reason = format!("the log is not valid after position {}: {end}", stored.position);
                answer_call::<AppendLog>(append.reply, Err(reason));
            }
        }
        drop(state);
        self.volume.notify_thread(WaitingThread::Request);
        if matches!(task.source, LogSource::Client) && task.commit_requested.is_some_and(|logged| logged > stored) {
            // No record after the valid part was acknowledged. The next client begins at the end of the valid part.
            self.volume.end_client(&format!("its log is not valid after position {}: {end}", stored.position));
        }
    }

    /// Makes the replay stop before records that a client has appended after the end of its term.
    fn require_term(&mut self, record: &VolumeRecord) {
        if record.writer == Some(self.client) {
            self.replay.require_epoch(record.term);
        }
    }

    fn read_to(&mut self, end: LogPoint) -> ReplayEnd {
        self.replay.read_to(&self.log, end).err().unwrap_or(ReplayEnd::NoRecord)
    }

    fn flush(&self) {
        while let Err(error) = self.file.sync_data() {
            tracing::error!(%error, volume = %self.volume.key.name, "the log cannot be flushed, nothing is acknowledged");
            thread::sleep(FLUSH_RETRY_WAIT);
        }
    }

    /// Sends new records to the successor. The last node of the path only marks them as committed.
    fn forward(&mut self, task: &CopierTask) {
        let successor = match &task.position {
            PathPosition::Before(successor) if task.must_send => successor,
            PathPosition::Before(_) => return,
            PathPosition::Last => {
                self.link = None;
                self.successor.reset();
                let mut state = self.volume.lock();
                let log = state.log(self.client);
                let announced = log.appends.iter().filter(|append| append.path == task.path).map(|append| append.end);
                // Only the first node of the path knows the end of the log. Another node may have records from an earlier
                // path, so only announced records count.
                let end = if task.is_first { log.chain.stored() } else { announced.max().unwrap_or(LogPoint::START) };
                let published = log.chain.published().point;
                drop(state);
                return self.set_committed(end, AppendedLog { published, space: TreeSpace::UNLIMITED }, task);
            }
            PathPosition::Off => {
                self.link = None;
                self.successor.reset();
                return self.refuse_appends();
            }
        };
        let started = Instant::now();
        match self.append(task, successor) {
            // Writers do not wait for space of a replica that catches up.
            Ok((end, mut appended)) => {
                self.successor.reset();
                self.polled_at = Instant::now();
                if !task.record.chain.contains(successor) {
                    appended.space = TreeSpace::UNLIMITED;
                }
                self.set_committed(end, appended, task);
            }
            Err(error) => self.handle_failure(task, successor, started, &error),
        }
    }

    /// Sends the log to the successor. Returns the point up to which all later nodes have the log, and their reply.
    fn append(&mut self, task: &CopierTask, successor: &NodeName) -> Result<(LogPoint, AppendedLog), ChainError> {
        let (stored, published, is_urgent, needs_space) = {
            let mut state = self.volume.lock();
            let log = state.log(self.client);
            (log.chain.stored(), log.chain.published(), log.is_urgent(), log.later_space.is_requested())
        };
        let (volume, revision, client, path) = (self.volume.key.clone(), task.record.revision, self.client, task.path);
        if !self.is_linked(successor, path) {
            let request = OpenLog { volume: volume.clone(), revision, path, client, published, stored };
            let node = &self.volume.node;
            self.link = Some(ChainLink::open(&node.peers, successor, &request, node.attempt_timeout())?);
        }
        let link = self.link.as_mut().expect("it was opened above");
        let bytes = LogBytes::default();
        let chunks = Vec::new();
        let request = AppendLog { volume, revision, path, client, end: stored, is_urgent, needs_space, bytes, chunks };
        Ok((stored, link.append(&self.log, request, &mut self.compressor)?))
    }

    fn refuse_appends(&self) {
        let appends = std::mem::take(&mut self.volume.lock().log(self.client).appends);
        for append in appends {
            answer_call::<AppendLog>(append.reply, Ok(AppendAnswer::OtherPath));
        }
    }

    /// Stores that all later members have the log up to `end`. Wakes the publisher, unless it waits for more records.
    fn set_committed(&mut self, end: LogPoint, appended: AppendedLog, task: &CopierTask) {
        let mut state = self.volume.lock();
        let is_folding = state.is_folding;
        let log = state.log(self.client);
        log.chain.commit(end, appended.published);
        log.forwarded += self.compressor.take_forwarded();
        log.later_space.report(appended.space, task.space_request);
        let must_publish = !is_folding || publishing::is_due(log);
        drop(state);
        if must_publish {
            self.volume.notify_thread(WaitingThread::Publisher);
        }
        self.volume.notify_thread(WaitingThread::Request);
    }
}
