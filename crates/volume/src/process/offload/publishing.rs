//! Publishing: folds committed records into change sets, and sends these to the host worker in order. One thread per volume.
//!
//! While the host worker does not run, this process takes the lock of the shared trees and applies change sets by itself.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::volume::{ReplicatedVolume, WaitingThread};
use super::{OffloadMode, OffloadOptions};
use crate::chain::copier::CopierLog;
use crate::change::ChangeSet;
use crate::log::{LogFile, LogPoint};
use crate::process::channel::{MessageChannel, kill_silent_process};
use crate::process::data_copier::CopyMethod;
use crate::process::message::{ForeignChange, OffloadMessage, PublishFailureKind, PublishRequest, WorkerAnswer};
use crate::process::store::VolumeStore;
use crate::process::worker::{PublisherTable, WORKER};
use crate::publish::PublishedMark;
use crate::replay::LogReplay;

/// Longest wait for more records before a small change set is published. Folding saves work: with 2 ms, a program that syncs
/// each write lost a sixth of the processor time to change sets.
const FOLD_WAIT: Duration = Duration::from_millis(10);
/// A worker that sends nothing for two periods is considered stopped: it must send `Working` once per
/// `WORKER_ALIVE_INTERVAL`. The second period is for the case that this process was stopped, too. Both periods together are
/// the time of failure detection, but a period is not shorter than this.
const SILENCE_PERIOD_MIN: Duration = Duration::from_millis(500);
/// Longest wait for the end of a killed process.
const WORKER_END_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before a failed change set is tried again.
const RETRY_WAIT: Duration = Duration::from_millis(200);
/// A change set with this number of records or bytes of data is published without waiting for more, so that the log has room
/// soon.
const RECORDS_MAX: usize = 8192;
const DATA_BYTES_MAX: u64 = 8 << 20;
/// Longest sleep of the publisher. A safeguard: changes of the state wake the thread earlier.
const SLEEP_MAX: Duration = Duration::from_secs(1);

struct VolumePublisher {
    volume: Arc<ReplicatedVolume>,
    logs: HashMap<u16, PublishedLog>,
    /// Why the last change set was not published.
    failure: Option<String>,
    /// The mark at which this node has left the chain because of a damaged tree.
    left_at: Option<PublishedMark>,
}

/// A log as the publisher reads it.
struct PublishedLog {
    log: LogFile,
    replay: LogReplay,
}

/// A part of a log that is to be published.
struct PublishTask {
    client: u16,
    mark: PublishedMark,
    end: LogPoint,
    /// Whether the shared tree may have any part of these records, after a crash or a failed attempt. Then they become one
    /// change set.
    is_recovery: bool,
}

/// Starts the publisher of a volume.
pub(super) fn start(volume: &Arc<ReplicatedVolume>) -> io::Result<()> {
    let publisher = VolumePublisher { volume: Arc::clone(volume), logs: HashMap::new(), failure: None, left_at: None };
    thread::Builder::new().name("publisher".to_owned()).spawn(move || publisher.run())?;
    Ok(())
}

impl VolumePublisher {
    fn run(mut self) {
        while let Some(task) = self.wait_for_task() {
            let published = match self.fold(&task) {
                Ok(changes) => {
                    let end = changes.end;
                    self.publish(task.client, changes).or_else(|error| {
                        self.volume.lock().log(task.client).copied.chain.fail_publishing(end);
                        self.leave_with_damaged_tree(&task, error)
                    })
                }
                Err(error) => self.leave_chain(&error),
            };
            self.end_publishing(task.client, published);
        }
    }

    /// Reports the result, and waits after an error.
    fn end_publishing(&mut self, client: u16, published: io::Result<()>) {
        let is_full = published.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull);
        let failure = published.err().map(|error| error.to_string());
        let mut state = self.volume.lock();
        (state.is_publishing, state.is_tree_full) = (false, is_full);
        drop(state);
        self.volume.notify_thread(WaitingThread::Sender(client));
        self.volume.notify_thread(WaitingThread::Request);
        if let Some(reason) = &failure {
            // The same failure is reported once: it repeats five times a second while a disk is full.
            if self.failure.as_ref() != Some(reason) {
                tracing::error!(reason, volume = %self.volume.key.name, "a change set is not published, and is tried again");
            }
            thread::sleep(RETRY_WAIT);
        }
        self.failure = failure;
    }

    /// Waits until there is something to publish; none when the volume is closed.
    fn wait_for_task(&self) -> Option<PublishTask> {
        let mut wait_until: Option<Instant> = None;
        let mut state = self.volume.lock();
        loop {
            if state.is_closed {
                return None;
            }
            let mut logs = state.logs.iter();
            let publishable =
                logs.find_map(|(client, log)| Some((client, log, state.publishing_end(*client, &log.copied.chain)?)));
            let Some((client, log, end)) = publishable else {
                wait_until = None;
                state = self.volume.wait(WaitingThread::Publisher, state, Instant::now() + SLEEP_MAX);
                continue;
            };
            let until = *wait_until.get_or_insert_with(|| Instant::now() + FOLD_WAIT);
            if is_due(&log.copied) || Instant::now() >= until {
                let is_recovery = log.copied.chain.is_recovering();
                let (client, mark) = (*client, log.copied.chain.published());
                state.is_publishing = true;
                return Some(PublishTask { client, mark, end, is_recovery });
            }
            state.is_folding = true;
            state = self.volume.wait(WaitingThread::Publisher, state, until);
            state.is_folding = false;
        }
    }

    fn fold(&mut self, task: &PublishTask) -> io::Result<ChangeSet> {
        let PublishTask { client, mark, end, is_recovery } = *task;
        let mut open = match self.logs.remove(&client) {
            Some(open) if open.replay.next_point() == mark.point => open,
            _ => {
                let log = self.volume.directory.open_log(client).map_err(io::Error::other)?;
                let replay = LogReplay::new(log.header().ring_bytes, mark.point, mark.epoch);
                PublishedLog { log, replay }
            }
        };
        let mut changes = ChangeSet::new(mark.point, mark.epoch);
        while open.replay.next_point() < end {
            changes.fold(open.replay.read_record(&open.log).map_err(io::Error::other)?);
            let is_large = changes.record_count() >= RECORDS_MAX || changes.data_bytes() >= DATA_BYTES_MAX;
            if is_large && !is_recovery {
                break;
            }
        }
        self.logs.insert(client, open);
        changes.coalesce();
        Ok(changes)
    }

    /// Leaves the chain, because a log or the shared tree is damaged on disk or in memory. The other replicas have the log.
    fn leave_chain(&self, error: &io::Error) -> io::Result<()> {
        let volume = &self.volume;
        tracing::error!(%error, volume = %volume.key.name, "a log of this node is damaged, or its shared tree: the node leaves the chain");
        let has_left = volume.leave_chain().map_err(io::Error::other)?;
        if has_left { Ok(()) } else { Err(io::Error::other(format!("the last live replica is damaged: {error}"))) }
    }

    /// Leaves the chain if the shared tree has caused the error: it lacks a file, or its mark is damaged. The node then copies
    /// another tree. If the same change set fails again with this tree, the tree is not the cause.
    fn leave_with_damaged_tree(&mut self, task: &PublishTask, error: io::Error) -> io::Result<()> {
        if PublishFailureKind::of(&error) != PublishFailureKind::DamagedTree || self.left_at == Some(task.mark) {
            return Err(error);
        }
        self.leave_chain(&error)?;
        self.left_at = Some(task.mark);
        Ok(())
    }

    /// Makes the worker apply a change set, however long this takes. Sends a change set of another client to the client of
    /// this node.
    fn publish(&self, client: u16, changes: ChangeSet) -> io::Result<()> {
        let volume = &self.volume;
        let durability = volume.lock().record.durability;
        let (name, volume_id) = (volume.key.name.as_str().to_owned(), volume.key.id);
        let request = PublishRequest { volume: name, volume_id, durability, client, changes };
        let mark = {
            let mut worker = volume.node.worker.lock().unwrap_or_else(PoisonError::into_inner);
            worker.publish(&request)?
        };
        let coalesced_bytes = request.changes.coalesced_bytes();
        let own_client = volume.lock().client.as_ref().map(|local| (local.number, local.sender.clone()));
        if let Some((number, sender)) = own_client
            && number != client
        {
            let changes = request.changes;
            sender.send(&OffloadMessage::Changed(Box::new(ForeignChange { client, changes })));
        }
        // This follows `Changed`, because a thread that waits for this point answers the client at once.
        let mut state = volume.lock();
        let log = state.log(client);
        log.copied.chain.publish(mark);
        log.coalesced_bytes += coalesced_bytes;
        log.update_window();
        Ok(())
    }
}

/// Receives the result of a request: the new mark, or the error of the worker. Fails with `WouldBlock` when the worker is
/// silent.
fn receive_result(worker: &mut MessageChannel) -> io::Result<io::Result<PublishedMark>> {
    let mut was_silent = false;
    loop {
        match worker.receive() {
            Ok(WorkerAnswer::Done(mark)) => return Ok(Ok(mark)),
            Ok(WorkerAnswer::Failed { reason, kind }) => return Ok(Err(kind.error(reason))),
            Ok(WorkerAnswer::Working) => was_silent = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !was_silent => was_silent = true,
            Err(error) => return Err(error),
        }
    }
}

/// Whether a log is published without waiting for more records: it has enough for a change set, or a thread waits.
pub(super) fn is_due<R>(log: &CopierLog<R>) -> bool {
    let (committed, published) = (log.chain.committed(), log.chain.published().point);
    let records = committed.sequence - published.sequence;
    let bytes = committed.position - published.position;
    log.is_publishing_urgent() || records >= RECORDS_MAX as u64 || bytes >= DATA_BYTES_MAX
}

/// Half of the time after which a silent worker is killed.
fn silence_period(detection_time: Duration) -> Duration {
    (detection_time / 2).max(SILENCE_PERIOD_MIN)
}

/// The connection to the worker, which all volumes share.
pub(super) struct WorkerLink {
    store: VolumeStore,
    copy_method: CopyMethod,
    silence_period: Duration,
    worker: Option<MessageChannel>,
    /// Set with `OffloadMode::Inline`, which has no worker.
    own: Option<OwnPublishers>,
}

/// The publishers of this process, and the lock of the shared trees.
struct OwnPublishers {
    publishers: PublisherTable,
    _lock: File,
}

impl WorkerLink {
    /// # Errors
    /// As flock(2).
    pub(super) fn new(store: VolumeStore, options: &OffloadOptions) -> io::Result<Self> {
        let copy_method = options.copy_method;
        let own = match options.mode {
            OffloadMode::On => None,
            OffloadMode::Inline => Some(OwnPublishers {
                _lock: store.lock(WORKER)?,
                publishers: PublisherTable::new(store.clone(), copy_method),
            }),
        };
        let silence_period = silence_period(options.detection_time);
        Ok(Self { store, copy_method, silence_period, worker: None, own })
    }

    /// Executes a request in the worker, or in this process while no worker runs. After an error, the request may be
    /// repeated.
    fn publish(&mut self, request: &PublishRequest) -> io::Result<PublishedMark> {
        if let Some(own) = &mut self.own {
            return own.publishers.publish(request);
        }
        if self.worker.is_none() {
            self.worker = MessageChannel::connect(&self.store.worker_socket()).ok();
        }
        if let Some(worker) = &mut self.worker {
            worker.set_receive_timeout(Some(self.silence_period))?;
            worker.set_send_timeout(Some(2 * self.silence_period))?;
            let answer = worker.send(request).and_then(|()| receive_result(worker));
            match answer {
                Ok(result) => return result,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.kill_silent_worker()?,
                Err(error) => tracing::warn!(%error, "the worker has died"),
            }
            self.worker = None;
        }
        self.publish_here(request)
    }

    /// Kills a worker that does not answer, because it might continue later with an old change set. The process that listens
    /// on the socket holds the worker's lock, so it is the right one to kill.
    fn kill_silent_worker(&self) -> io::Result<()> {
        let Some(worker) = &self.worker else { return Ok(()) };
        let has_ended = || Ok(self.store.try_lock(WORKER)?.is_some());
        kill_silent_process(worker.peer_process_id()?, WORKER_END_TIMEOUT, has_ended)
    }

    /// Publishes without the worker. Holds the worker's lock, so that a new worker waits.
    fn publish_here(&self, request: &PublishRequest) -> io::Result<PublishedMark> {
        let Some(_lock) = self.store.try_lock(WORKER)? else {
            return Err(io::Error::other("the worker is starting"));
        };
        PublisherTable::new(self.store.clone(), self.copy_method).publish(request)
    }
}
