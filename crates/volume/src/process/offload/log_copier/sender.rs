//! Executes the actions of `LogForwarder`: sends a log to the successor on its path, asks which nodes are silent, and changes the
//! chain.

use std::sync::Arc;
use std::time::Instant;

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

use super::super::node::ReplicaError;
use super::super::publishing;
use super::super::received_log::ReceivedRequest;
use super::super::volume::{LogProgress, ReplicaState, ReplicatedVolume, WaitingThread};
use super::{CopierPart, SHORT_BYTES_MAX};
use crate::chain::calls::{AppendLog, LogBytes, OpenLog, StoredLog};
use crate::chain::copier::{ForwardTask, LogForwarder, PieceAnnouncement, SendAction, StartedTask};
use crate::chain::{ChainError, ChainLink, LogCompressor, membership};
use crate::log::LogFile;
use crate::replay::LogReplay;

/// The sending part of a copier.
pub(super) struct LogSender {
    volume: Arc<ReplicatedVolume>,
    client: u16,
    log: LogFile,
    forwarder: LogForwarder,
    link: Option<ChainLink>,
    compressor: LogCompressor,
}

impl CopierPart for LogSender {
    type Task = ForwardTask;
    const THREAD: fn(u16) -> WaitingThread = WaitingThread::Sender;

    fn task_of(&self, state: &mut ReplicaState, wake_at: &mut Instant) -> Option<ForwardTask> {
        let (record, has_reply) = (Arc::clone(&state.record), state.has_space_answer(self.client));
        let log = &state.log(self.client).copied;
        self.forwarder.poll_task(&record, log, has_reply, Instant::now(), wake_at)
    }

    /// Nothing to send, or few bytes to a successor that has not failed.
    fn is_short(&self, task: &ForwardTask, may_wait: bool) -> bool {
        self.forwarder.is_short(task, may_wait, SHORT_BYTES_MAX)
    }

    fn execute(&mut self, task: &ForwardTask) {
        let started = self.forwarder.start(task, &mut self.volume.lock().log(self.client).copied, Instant::now());
        match started {
            StartedTask::Sending => self.send(task),
            StartedTask::Committed => self.notify_committed(),
            StartedTask::Refused(requests) => requests.into_iter().for_each(ReceivedRequest::refuse_path),
            StartedTask::Idle => {}
        }
        if !self.forwarder.has_link() {
            self.link = None;
        }
        self.volume.acknowledge(self.client);
    }

    fn wakes_at(log: &mut LogProgress) -> &mut Instant {
        &mut log.sender_wakes_at
    }
}

impl LogSender {
    pub(super) fn new(volume: &Arc<ReplicatedVolume>, client: u16, log: LogFile) -> Self {
        let (node, volume) = (&volume.node, Arc::clone(volume));
        let (timeout, rate) = (node.attempt_timeout(), node.replica_rate);
        let forwarder = LogForwarder::new(node.name.clone(), client, timeout, rate, Instant::now());
        let compressor = LogCompressor::new(node.compression);
        Self { volume, client, log, forwarder, link: None, compressor }
    }

    /// Executes the actions of an attempt until it ends.
    fn send(&mut self, task: &ForwardTask) {
        let Some(successor) = self.forwarder.successor().cloned() else { return };
        let mut failure = None;
        loop {
            let action = self.forwarder.poll_action(&self.log, Instant::now());
            if matches!(action, SendAction::End | SendAction::Pending) {
                return;
            }
            let result = match &failure {
                None => self.transfer(&action, task, &successor),
                Some(error) => {
                    self.handle_failed(&action, task, &successor, error);
                    Ok(())
                }
            };
            if let Err(error) = result {
                self.report_failure(&error, &successor);
                failure = Some(error);
            }
        }
    }

    /// Executes an action that sends a part of the log.
    fn transfer(&mut self, action: &SendAction, task: &ForwardTask, successor: &NodeName) -> Result<(), ChainError> {
        if let SendAction::Open { published, stored, timeout } = *action {
            let (volume, revision, path) = (self.volume.key.clone(), task.record.revision, task.path);
            let request = OpenLog { volume, revision, path, client: self.client, published, stored };
            let (link, stored) = ChainLink::open(&self.volume.node.peers, successor, &request, timeout)?;
            self.link = Some(link);
            self.forwarder.handle_opened(stored);
            return Ok(());
        }
        let link = self.link.as_mut().expect("the successor has opened the log");
        match action {
            SendAction::Write { from, to, timeout } => {
                let used = link.write(&self.log, *from..*to, *timeout, &mut self.compressor)?;
                self.forwarder.exclude(used);
            }
            SendAction::Wait(limit) => {
                let mut written = link.take_written()?;
                if written.is_empty() {
                    self.forwarder.handle_timer(Instant::now())?;
                    link.wait(*limit)?;
                }
                written.drain(..).for_each(|position| self.forwarder.handle_written(position, Instant::now()));
            }
            SendAction::Announce(piece) => self.announce(piece, task)?,
            _ => unreachable!("{action:?} follows a failure"),
        }
        Ok(())
    }

    fn announce(&mut self, piece: &PieceAnnouncement, task: &ForwardTask) -> Result<(), ChainError> {
        let (volume, revision) = (self.volume.key.clone(), task.record.revision);
        let request = AppendLog {
            volume,
            revision,
            path: task.path,
            client: self.client,
            end: piece.end,
            is_urgent: piece.is_urgent,
            needs_space: piece.needs_space,
            bytes: LogBytes::default(),
            chunks: Vec::new(),
        };
        let link = self.link.as_mut().expect("the successor has opened the log");
        let later: StoredLog = link.announce(&self.log, piece, request, &mut self.compressor)?;
        let mut state = self.volume.lock();
        let log = state.log(self.client);
        self.forwarder.handle_stored(later, &mut log.copied, Instant::now());
        log.forwarded += self.compressor.take_forwarded();
        drop(state);
        self.notify_committed();
        Ok(())
    }

    /// Wakes the publisher, unless it waits for more records.
    fn notify_committed(&self) {
        let mut state = self.volume.lock();
        let must_publish = !state.is_folding || publishing::is_due(&state.log(self.client).copied);
        drop(state);
        if must_publish {
            self.volume.notify_thread(WaitingThread::Publisher);
        }
        self.volume.notify_thread(WaitingThread::Request);
    }

    fn report_failure(&mut self, error: &ChainError, successor: &NodeName) {
        self.link = None;
        let (volume, client) = (&self.volume.key.name, self.client);
        if !self.forwarder.is_failing() {
            tracing::warn!(%error, %volume, client, node = %successor, "the next replica does not take the log, and is tried again");
        }
        let mut state = self.volume.lock();
        self.forwarder.handle_failure(error.failure(), &mut state.log(client).copied, Instant::now());
    }

    /// Executes an action that follows a failure.
    fn handle_failed(&mut self, action: &SendAction, task: &ForwardTask, successor: &NodeName, reason: &ChainError) {
        let volume = &self.volume.key.name;
        match action {
            SendAction::Probe => {
                let silent = self.volume.find_silent_nodes(&task.record, successor);
                self.forwarder.handle_probed(silent, Instant::now());
            }
            SendAction::Validate => self.forwarder.handle_validated(self.is_log_valid()),
            SendAction::Leave => {
                tracing::error!(%reason, %volume, client = self.client, "the log of this node is damaged: the node leaves the chain");
                let left = self.volume.leave_chain();
                if let Err(error) = &left {
                    tracing::error!(%error, %volume, "the chain cannot be changed, and writing waits");
                }
                self.forwarder.handle_left(left.ok());
            }
            SendAction::Remove(silent) => {
                let removed = self.remove_successor(&task.record, successor, silent);
                match &removed {
                    Ok(record) => {
                        tracing::warn!(%reason, %volume, node = %successor, epoch = record.epoch, "a replica does not take its log, and has left the chain");
                    }
                    Err(error) => tracing::error!(%error, %volume, "the chain cannot be changed, and writing waits"),
                }
                self.forwarder.handle_removed(removed.is_ok());
            }
            SendAction::ReadRecord => {
                if let Err(error) = self.volume.read_record() {
                    tracing::warn!(%error, "the catalog is read again");
                }
            }
            _ => unreachable!("{action:?} after a failure"),
        }
    }

    fn remove_successor(
        &self,
        record: &VolumeRecord,
        successor: &NodeName,
        silent: &[NodeName],
    ) -> Result<VolumeRecord, ReplicaError> {
        self.volume.require_trust()?;
        self.volume.update_catalog(|current| {
            if silent.is_empty() {
                membership::remove_member(current, successor, record.epoch)
            } else {
                membership::remove_silent(current, silent, &self.volume.node.name, record.epoch)
            }
        })
    }

    /// Whether the unpublished part of this node's log is still valid.
    fn is_log_valid(&self) -> bool {
        let chain = self.volume.lock().log(self.client).copied.chain.clone();
        let mark = chain.published();
        let mut replay = LogReplay::new(self.log.header().ring_bytes, mark.point, mark.epoch);
        // An error does not count if the mark has changed: published records may be overwritten.
        replay.read_to(&self.log, chain.stored()).is_ok()
            || self.volume.lock().log(self.client).copied.chain.published() != mark
    }
}
