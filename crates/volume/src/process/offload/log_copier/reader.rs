//! Executes the tasks of `LogValidator`: reads and validates the records of a log, from the client of this node or from the
//! predecessor.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;

use super::super::received_log::ReceivedRequest;
use super::super::volume::{LogProgress, ReplicaState, ReplicatedVolume, WaitingThread};
use super::{CopierPart, LogCopier, SHORT_BYTES_MAX, execute_short};
use crate::chain::copier::{LogClient, LogSource, LogValidator, ReadResult, ReadTask};
use crate::chain::{ChunkBuffers, LogRestart};
use crate::log::{LogFile, LogPoint};
use crate::publish::Durability;
use crate::replay::{LogReplay, ReplayEnd};

/// Wait before a failed flush of the log is repeated.
const FLUSH_RETRY_WAIT: Duration = Duration::from_millis(100);

/// The reading part of a copier.
pub(super) struct LogReader {
    volume: Arc<ReplicatedVolume>,
    client: u16,
    log: LogFile,
    replay: LogReplay,
    expansion_buffers: ChunkBuffers,
    validator: LogValidator,
}

impl CopierPart for LogReader {
    type Task = ReadTask;
    const THREAD: fn(u16) -> WaitingThread = WaitingThread::Reader;

    fn task_of(&self, state: &mut ReplicaState, wake_at: &mut Instant) -> Option<ReadTask> {
        let record = Arc::clone(&state.record);
        let client = state.client_of(self.client).map(|client| LogClient { commit_requested: client.commit_requested });
        self.validator.poll_task(&record, client, &state.log(self.client).copied, Instant::now(), wake_at)
    }

    /// Few bytes to validate, and nothing to flush.
    fn is_short(&self, task: &ReadTask, _may_wait: bool) -> bool {
        let is_small = task.new_bytes <= SHORT_BYTES_MAX && task.restart.is_none();
        is_small && task.record.durability == Durability::Memory
    }

    fn execute(&mut self, task: &ReadTask) {
        self.take_records(task);
        if self.volume.lock().log(self.client).copied.has_early_reply(Instant::now()) {
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
        let validator = LogValidator::new(volume.node.name.clone(), client, Instant::now());
        let (volume, expansion_buffers) = (Arc::clone(volume), ChunkBuffers::default());
        Self { volume, client, log, replay, expansion_buffers, validator }
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
            LogSource::Client => read_to_end(&mut self.replay, &self.log),
            LogSource::Predecessor { end } => {
                let expansions = self.volume.lock().log(self.client).take_expansions(task.path);
                expansions.iter().for_each(|expansion| expansion.execute(&self.volume, &mut self.expansion_buffers));
                self.read_to(end)
            }
        };
        if self.replay.next_point() != before && task.record.durability == Durability::Disk {
            self.flush();
        }
        self.handle_records(task, self.replay.next_point(), &end);
    }

    fn handle_records(&mut self, task: &ReadTask, stored: LogPoint, end: &ReplayEnd) {
        let mut state = self.volume.lock();
        let record = Arc::clone(&state.record);
        let log = state.log(self.client);
        let result = self.validator.handle_records(task, stored, &record, &mut log.copied, Instant::now());
        let ReadResult::Stored { refused, is_client_invalid } = result else { return };
        log.update_window();
        drop(state);
        if !refused.is_empty() || is_client_invalid {
            let reason = format!("the log is not valid after position {}: {end}", stored.position);
            refused.into_iter().for_each(|request: ReceivedRequest| request.refuse(&reason));
            if is_client_invalid {
                // No record after the valid part was acknowledged. The next client begins at the end of the valid part.
                self.volume.end_client(&format!("its log is not valid after position {}: {end}", stored.position));
            }
        }
        self.volume.notify_thread(WaitingThread::Request);
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
