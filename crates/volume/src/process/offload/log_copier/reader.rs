//! Reads and validates the records of a log, from the client of this node or from the predecessor.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;

use super::super::received_log::PendingAppend;
use super::super::volume::{LogProgress, ReplicaState, ReplicatedVolume, WaitingThread};
use super::{CopierPart, LogCopier, SHORT_BYTES_MAX, execute_short};
use crate::chain::{ChunkBuffers, LogRestart, PathPosition, PathVersion};
use crate::log::{LogFile, LogPoint};
use crate::publish::Durability;
use crate::replay::{LogReplay, ReplayEnd};

/// Longest time between two looks for new records of this node's client: a hint may be lost with a connection.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Wait before a failed flush of the log is repeated.
const FLUSH_RETRY_WAIT: Duration = Duration::from_millis(100);

/// The reading part of a copier.
pub(super) struct LogReader {
    volume: Arc<ReplicatedVolume>,
    client: u16,
    log: LogFile,
    replay: LogReplay,
    expansion_buffers: ChunkBuffers,
    next_look: Instant,
}

/// New records that are due to be read.
pub(super) struct ReadTask {
    record: Arc<VolumeRecord>,
    path: PathVersion,
    source: LogSource,
    /// Number of looks that were requested before this task.
    looks: u64,
    /// The highest point of the client's unanswered `Commit` messages.
    commit_requested: Option<LogPoint>,
    restart: Option<LogRestart>,
    /// Number of bytes to validate; `u64::MAX` if unknown.
    new_bytes: u64,
}

/// The source of new records of the log.
enum LogSource {
    /// The client of this node appends to the log.
    Client,
    /// The predecessor has written the log up to `end`.
    Predecessor { end: LogPoint },
}

impl CopierPart for LogReader {
    type Task = ReadTask;
    const THREAD: fn(u16) -> WaitingThread = WaitingThread::Reader;

    fn task_of(&self, state: &mut ReplicaState, wake_at: &mut Instant) -> Option<ReadTask> {
        let now = Instant::now();
        let mut is_due = |at: Instant| {
            *wake_at = (*wake_at).min(at.max(now));
            at <= now
        };
        let record = Arc::clone(&state.record);
        let path = PathVersion::of(&record, self.client);
        let is_source = path.is_writing && PathPosition::is_first(&record, self.client, &self.volume.node.name);
        let client = state.client_of(self.client);
        let (has_client, commit_requested) = (client.is_some(), client.and_then(|client| client.commit_requested));
        let log = state.log(self.client);
        let stored = log.chain.stored();
        let must_look = log.looks_requested > log.looks_done || (is_source && has_client && is_due(self.next_look));
        let mut has_appends = false;
        for append in log.appends.iter().filter(|append| append.path == path) {
            has_appends |= append.end > stored || append.answer_at().is_some_and(&mut is_due);
        }
        if !(has_appends || must_look || log.restart.is_some()) {
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
        let new_bytes = end.map_or(u64::MAX, |end| end.position - stored.position);
        let (looks, restart) = (log.looks_requested, log.restart);
        Some(ReadTask { record, path, source, looks, commit_requested, restart, new_bytes })
    }

    /// Few bytes to validate, and nothing to flush.
    fn is_short(&self, task: &ReadTask, _may_wait: bool) -> bool {
        let is_small = task.new_bytes <= SHORT_BYTES_MAX && task.restart.is_none();
        is_small && task.record.durability == Durability::Memory
    }

    fn execute(&mut self, task: &ReadTask) {
        self.take_records(task);
        let now = Instant::now();
        let mut state = self.volume.lock();
        let log = state.log(self.client);
        let stored = log.chain.stored();
        let must_answer = log.appends.iter().any(|append| append.is_answered_early(stored, now));
        drop(state);
        if must_answer {
            self.volume.acknowledge(self.client);
        }
    }

    /// The sender may have work now. This thread does only such that needs no wait.
    fn finish_task(&self, copier: &LogCopier) {
        execute_short(&self.volume, self.client, &copier.sender, false);
    }

    fn wakes_at(log: &mut LogProgress) -> &mut Instant {
        &mut log.reader_wakes_at
    }
}

impl LogReader {
    pub(super) fn new(volume: &Arc<ReplicatedVolume>, client: u16, log: LogFile, replay: LogReplay) -> Self {
        let (volume, expansion_buffers, next_look) = (Arc::clone(volume), ChunkBuffers::default(), Instant::now());
        Self { volume, client, log, replay, expansion_buffers, next_look }
    }

    /// Validates new records. They count as stored after they are flushed, if the volume has `--durability disk`.
    fn take_records(&mut self, task: &ReadTask) {
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
                log.restarts += 1;
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
                append.reply.refuse(&reason);
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
        while let Err(error) = self.log.file().sync_data() {
            tracing::error!(%error, volume = %self.volume.key.name, "the log cannot be flushed, nothing is acknowledged");
            thread::sleep(FLUSH_RETRY_WAIT);
        }
    }
}

/// Reads records up to the first invalid one.
pub(super) fn read_to_end(replay: &mut LogReplay, log: &LogFile) -> ReplayEnd {
    loop {
        if let Err(end) = replay.read_record(log) {
            return end;
        }
    }
}
