//! The host worker of a node: applies the change sets that the offload process sends, to the shared tree of any volume.
//! Holds the lock of all shared trees.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::channel::{MessageChannel, listen};
use super::data_copier::{CopyMethod, DataCopier};
use super::message::{PublishFailureKind, PublishRequest, WorkerAnswer};
use super::store::VolumeStore;
use super::work_priority::WorkPriority;
use crate::log::LogFile;
use crate::publish::{CallBudget, PublishError, PublishedMark, Publisher, SharedTree};
use crate::replica_file::is_lost;

/// The name of the lock of all shared trees. Only the process that holds the lock changes them.
pub(super) const WORKER: &str = "worker";
/// Interval between two reports of a worker that it still executes a request. A change set of a whole log takes seconds on a
/// busy machine.
pub(super) const WORKER_ALIVE_INTERVAL: Duration = Duration::from_millis(100);

/// The publishers of the volumes. After a failure, a publisher is opened again, because the state on disk is unknown.
pub(super) struct PublisherTable {
    store: VolumeStore,
    copy_method: CopyMethod,
    volumes: HashMap<String, OpenVolume>,
}

/// The publisher of one volume, and the logs that it copies from.
struct OpenVolume {
    id: u64,
    /// Identity of the shared tree. A replica that catches up replaces its tree.
    tree: u64,
    publisher: Publisher,
    copier: DataCopier,
    logs: HashMap<u16, LogFile>,
}

impl PublisherTable {
    pub(super) fn new(store: VolumeStore, copy_method: CopyMethod) -> Self {
        Self { store, copy_method, volumes: HashMap::new() }
    }

    /// Applies a change set.
    pub(super) fn publish(&mut self, request: &PublishRequest) -> io::Result<PublishedMark> {
        let result = self.try_publish(request);
        if result.is_err() {
            self.volumes.remove(&request.volume);
        }
        result
    }

    fn try_publish(&mut self, request: &PublishRequest) -> io::Result<PublishedMark> {
        let directory = self.store.volume(&request.volume);
        let tree = SharedTree::identity_of(&directory.shared_path())?;
        // The open publisher may belong to an earlier volume of this name, or to a replaced tree.
        let is_open = |open: &OpenVolume| open.id == request.volume_id && open.tree == tree;
        if !self.volumes.get(&request.volume).is_some_and(is_open) {
            let id = directory.id()?;
            if id != request.volume_id {
                return Err(io::Error::other("another volume has this name now"));
            }
            let publisher = Publisher::open(directory.open_shared()?, request.durability, CallBudget::default());
            let publisher = publisher.map_err(error_with_kind)?;
            let copier = DataCopier::new(self.copy_method)?;
            let open = OpenVolume { id, tree, publisher, copier, logs: HashMap::new() };
            self.volumes.insert(request.volume.clone(), open);
        }
        let volume = self.volumes.get_mut(&request.volume).expect("it was opened above");
        let log = match volume.logs.entry(request.client) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(directory.open_log(request.client).map_err(io::Error::other)?),
        };
        let published = volume.publisher.publish(request.client, &request.changes, &mut volume.copier.data_of(log));
        published.map_err(error_with_kind)
    }
}

/// Adds the kind that `PublishFailureKind::of` recognises.
fn error_with_kind(error: PublishError) -> io::Error {
    let kind = match &error {
        PublishError::Call { source: Errno::NOSPC | Errno::DQUOT, .. } => io::ErrorKind::StorageFull,
        PublishError::Call { source, .. } if is_lost(&(*source).into()) => io::ErrorKind::NotFound,
        PublishError::Mismatch(_) => io::ErrorKind::InvalidData,
        PublishError::Call { .. } | PublishError::InjectedCrash => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Runs the host worker of a node until it is killed. Requests are executed with `priority`. They are received, and
/// reported to the offload process, with the ordinary priority: a silent worker is killed.
///
/// # Errors
/// When the store cannot be used.
pub fn run_worker(store: &VolumeStore, copy_method: CopyMethod, priority: WorkPriority) -> io::Result<()> {
    let _lock = store.lock(WORKER)?;
    let listener = listen(&store.worker_socket())?;
    loop {
        let mut requests = MessageChannel::accept(&listener)?;
        let answers = AnswerChannel::new(requests.try_clone()?);
        let mut publishers = PublisherTable::new(store.clone(), copy_method);
        thread::scope(|scope| {
            scope.spawn(|| answers.report_work());
            while let Ok(request) = requests.receive::<PublishRequest>() {
                answers.begin();
                let answer = priority.apply_during(|| execute(&mut publishers, &request));
                if answers.finish(&answer).is_err() {
                    break;
                }
            }
            answers.close();
        });
    }
}

fn execute(publishers: &mut PublisherTable, request: &PublishRequest) -> WorkerAnswer {
    match publishers.publish(request) {
        Ok(mark) => WorkerAnswer::Done(mark),
        Err(error) => WorkerAnswer::Failed { reason: error.to_string(), kind: PublishFailureKind::of(&error) },
    }
}

/// Sends answers from two threads: one executes requests, the other reports `Working` during the execution.
struct AnswerChannel {
    state: Mutex<AnswerState>,
    changed: Condvar,
}

struct AnswerState {
    channel: MessageChannel,
    phase: WorkPhase,
    /// The reporting thread waits for a request, and `begin` must wake it. Otherwise the thread is within an interval, and
    /// needs no wakeup: most requests are shorter than the interval.
    is_reporter_idle: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkPhase {
    /// No request is executed.
    Idle,
    /// A request is executed.
    Working,
    /// The connection has ended.
    Closed,
}

impl AnswerChannel {
    fn new(channel: MessageChannel) -> Self {
        let state = AnswerState { channel, phase: WorkPhase::Idle, is_reporter_idle: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, AnswerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) {
        let mut state = self.lock();
        state.phase = WorkPhase::Working;
        if std::mem::take(&mut state.is_reporter_idle) {
            self.changed.notify_one();
        }
    }

    fn close(&self) {
        self.lock().phase = WorkPhase::Closed;
        self.changed.notify_one();
    }

    /// Sends the answer to a request. No `Working` follows it.
    fn finish(&self, answer: &WorkerAnswer) -> io::Result<()> {
        let mut state = self.lock();
        state.phase = WorkPhase::Idle;
        state.channel.send(answer)
    }

    /// Sends `Working` while a request is executed, until the connection has ended.
    fn report_work(&self) {
        let mut state = self.lock();
        while state.phase != WorkPhase::Closed {
            if state.phase == WorkPhase::Idle {
                state.is_reporter_idle = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.changed.wait_timeout(state, WORKER_ALIVE_INTERVAL);
            let (reacquired, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = reacquired;
            if timeout.timed_out() && state.phase == WorkPhase::Working {
                // An error means that the connection has ended, which the other thread notices.
                let _ = state.channel.send(&WorkerAnswer::Working);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::log::LogPoint;

    #[test]
    fn a_file_that_is_missing_or_of_another_type_is_damage_of_the_tree() {
        let kind =
            |source| PublishFailureKind::of(&error_with_kind(PublishError::Call { operation: "open a file", source }));
        for errno in [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP] {
            assert_eq!(kind(errno), PublishFailureKind::DamagedTree, "{errno}");
            assert_eq!(PublishFailureKind::of(&errno.into()), PublishFailureKind::DamagedTree, "{errno}");
        }
        assert_eq!(kind(Errno::NOSPC), PublishFailureKind::DiskFull);
        assert_eq!(kind(Errno::IO), PublishFailureKind::Other);
    }

    #[test]
    fn a_worker_reports_work_until_its_answer() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("worker");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut offload = MessageChannel::connect(&socket).unwrap();
        let answers = AnswerChannel::new(MessageChannel::accept(&listener).unwrap());
        let mark = PublishedMark { point: LogPoint::START, epoch: 7, inode_max: 1 };
        thread::scope(|scope| {
            scope.spawn(|| answers.report_work());
            for _ in 0..2 {
                answers.begin();
                for _ in 0..3 {
                    assert_eq!(offload.receive::<WorkerAnswer>().unwrap(), WorkerAnswer::Working);
                }
                answers.finish(&WorkerAnswer::Done(mark)).unwrap();
                while offload.receive::<WorkerAnswer>().unwrap() != WorkerAnswer::Done(mark) {}
                offload.set_receive_timeout(Some(3 * WORKER_ALIVE_INTERVAL)).unwrap();
                let error = offload.receive::<WorkerAnswer>().unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "no request is executed");
                offload.set_receive_timeout(None).unwrap();
            }
            answers.close();
        });
    }
}
