//! Decides when records of a log are read and validated, and up to which point: records of this node's client, or announced
//! records of the predecessor. The caller reads the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

use super::copier_log::{CopierLog, PendingAppend};
use super::is_due;
use crate::chain::{LogRestart, PathPosition, PathVersion};
use crate::log::LogPoint;

/// Longest time between two looks for new records of this node's client: a hint may be lost with a connection.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The reading part of a copier.
#[derive(Debug)]
pub struct LogValidator {
    node: NodeName,
    client: u16,
    next_look: Instant,
}

/// The client of this node that writes the log.
#[derive(Clone, Copy, Debug)]
pub struct LogClient {
    /// The highest point of its unanswered `Commit` messages.
    pub commit_requested: Option<LogPoint>,
}

/// Records that are due to be read.
#[derive(Debug)]
pub struct ReadTask {
    /// The record of the volume.
    pub record: Arc<VolumeRecord>,
    /// The path for which records count.
    pub path: PathVersion,
    /// The source of the records.
    pub source: LogSource,
    /// The range to read again first, if any.
    pub restart: Option<LogRestart>,
    /// Number of bytes to validate; `u64::MAX` if unknown.
    pub new_bytes: u64,
    /// Number of looks that were requested before this task.
    looks: u64,
    commit_requested: Option<LogPoint>,
}

/// The source of new records of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSource {
    /// The client of this node appends to the log.
    Client,
    /// The predecessor has written the log up to `end`.
    Predecessor {
        /// End of the records to read.
        end: LogPoint,
    },
}

/// The result of reading records.
#[derive(Debug)]
pub enum ReadResult<R> {
    /// The path has changed since the task was made, so the records do not count.
    OtherPath,
    /// The log is valid up to its new end.
    Stored {
        /// Requests for records that are not valid.
        refused: Vec<R>,
        /// The client waits for records that are not valid.
        is_client_invalid: bool,
    },
}

impl LogValidator {
    /// Creates the reading part of the copier of a client's log, on a node.
    pub fn new(node: NodeName, client: u16, now: Instant) -> Self {
        Self { node, client, next_look: now }
    }

    /// Returns the records that are due to be read now. If there are none, `wake_at` becomes at most the time when some may
    /// be due. `client` is the attached client of this node, if it writes this log.
    pub fn poll_task<R>(
        &self,
        record: &Arc<VolumeRecord>,
        client: Option<LogClient>,
        log: &CopierLog<R>,
        now: Instant,
        wake_at: &mut Instant,
    ) -> Option<ReadTask> {
        let path = PathVersion::of(record, self.client);
        let is_source = path.is_writing && PathPosition::is_first(record, self.client, &self.node);
        let stored = log.chain.stored();
        let must_look = !log.has_looked(log.looks_requested())
            || (is_source && client.is_some() && is_due(self.next_look, now, wake_at));
        let mut has_appends = false;
        for append in log.appends.iter().filter(|append| append.path() == path) {
            has_appends |= append.end() > stored || append.answer_at().is_some_and(|at| is_due(at, now, wake_at));
        }
        if !(has_appends || must_look || log.must_restart()) {
            return None;
        }
        let commit_requested = client.and_then(|client| client.commit_requested);
        let (source, end) = if is_source {
            (LogSource::Client, commit_requested.map(|requested| requested.max(stored)))
        } else {
            // After a restart, the log may have further valid records, of a term that has ended. These were never
            // acknowledged.
            let known_end = log.restart.map_or(stored, |restart| restart.end);
            let end = log.announced_end(path).unwrap_or(known_end);
            (LogSource::Predecessor { end }, Some(end.max(stored)))
        };
        let new_bytes = end.map_or(u64::MAX, |end| end.position - stored.position);
        let (looks, restart) = (log.looks_requested(), log.restart);
        Some(ReadTask { record: Arc::clone(record), path, source, restart, new_bytes, looks, commit_requested })
    }

    /// Handles the records that were read for a task: the log is valid up to `stored`. `record` is the latest record of the
    /// volume.
    pub fn handle_records<R>(
        &mut self,
        task: &ReadTask,
        stored: LogPoint,
        record: &VolumeRecord,
        log: &mut CopierLog<R>,
        now: Instant,
    ) -> ReadResult<R> {
        if task.source == LogSource::Client {
            self.next_look = now + LOOK_INTERVAL;
        } else if PathVersion::of(record, self.client) != task.path {
            // The term of the records may have ended, and the next term may have begun without them.
            let (mark, end) = (log.chain.published(), log.chain.stored());
            log.restart.get_or_insert(LogRestart { mark, end });
            return ReadResult::OtherPath;
        }
        match task.restart {
            Some(restart) => {
                log.restart.take_if(|latest| *latest == restart);
                log.restarts += 1;
                log.chain.restart(restart, stored);
            }
            None => log.chain.store(stored),
        }
        log.looks_done = log.looks_done.max(task.looks);
        let refused = match task.source {
            LogSource::Client => Vec::new(),
            LogSource::Predecessor { end: requested } => log.take_appends(|chain, append: &PendingAppend<R>| {
                append.end() > chain.stored() && append.end() <= requested
            }),
        };
        let is_client_invalid =
            task.source == LogSource::Client && task.commit_requested.is_some_and(|logged| logged > stored);
        ReadResult::Stored { refused, is_client_invalid }
    }
}
