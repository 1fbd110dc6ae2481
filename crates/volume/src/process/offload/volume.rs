//! A replica on this node: the progress of each log, under one lock. Threads of the volume wait for changes of this state. A
//! change wakes only threads that have work to do: a wakeup costs as much as a step of a write.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{VolumeName, VolumeRecord};

use super::client_session::ClientSender;
use super::log_copier::LogCopier;
use super::node::OffloadNode;
use super::received_log::{OpenRegion, ReceivedRequest};
use super::rejoin::TreeLoan;
use super::space::SpaceCheck;
use super::tree_hold::{EndedHold, TreeHold};
use crate::chain::calls::VolumeKey;
use crate::chain::copier::CopierLog;
use crate::chain::{CALL_TIMEOUT, ChainLog, ForwardedBytes, WritableWindow};
use crate::log::LogPoint;
use crate::process::LogStatus;
use crate::process::open_tree::FileIdentity;
use crate::process::volume_directory::VolumeDirectory;

/// Number of condition variables for copiers. Most volumes have fewer clients.
const COPIER_WAKEUPS: usize = 8;

/// A replica of a volume on this node.
pub(super) struct ReplicatedVolume {
    pub(super) key: VolumeKey,
    pub(super) node: Arc<OffloadNode>,
    pub(super) directory: VolumeDirectory,
    /// The directory when the volume was opened.
    pub(super) opened: File,
    state: Mutex<ReplicaState>,
    /// Locked while a term of this node's client begins or ends.
    pub(super) ending_term: Mutex<()>,
    /// Locked while a log is created and opened.
    pub(super) opening_log: Mutex<()>,
    wakeups: ThreadWakeups,
}

/// Condition variables of the threads of a volume. All use the mutex of the state.
#[derive(Default)]
struct ThreadWakeups {
    publisher: Condvar,
    rejoin: Condvar,
    requests: Condvar,
    /// Condition variables of the copiers. The index is the client's number modulo `COPIER_WAKEUPS`.
    readers: [Condvar; COPIER_WAKEUPS],
    senders: [Condvar; COPIER_WAKEUPS],
}

/// A kind of thread that waits.
#[derive(Clone, Copy)]
pub(super) enum WaitingThread {
    /// Reads the log of this client.
    Reader(u16),
    /// Sends the log of this client.
    Sender(u16),
    /// Publishes change sets.
    Publisher,
    /// Brings the replica back to the chain.
    Rejoin,
    /// Executes a request of a client, a node or a command.
    Request,
}

impl ThreadWakeups {
    fn of(&self, thread: WaitingThread) -> &Condvar {
        match thread {
            WaitingThread::Reader(client) => &self.readers[usize::from(client) % COPIER_WAKEUPS],
            WaitingThread::Sender(client) => &self.senders[usize::from(client) % COPIER_WAKEUPS],
            WaitingThread::Publisher => &self.publisher,
            WaitingThread::Rejoin => &self.rejoin,
            WaitingThread::Request => &self.requests,
        }
    }

    fn notify_all(&self) {
        let others = [&self.publisher, &self.rejoin, &self.requests];
        self.readers.iter().chain(&self.senders).chain(others).for_each(Condvar::notify_all);
    }
}

/// The part of a replica that changes.
pub(super) struct ReplicaState {
    /// The latest record that was read from the catalog.
    pub(super) record: Arc<VolumeRecord>,
    pub(super) logs: BTreeMap<u16, LogProgress>,
    pub(super) client: Option<LocalClient>,
    /// A new client that is not attached yet. It has the client's lock, so the previous client is dead.
    pub(super) attaching_client: Option<ClientSender>,
    /// A client that reads the shared tree: nothing is published.
    pub(super) loading_client: Option<ClientSender>,
    /// Another node copies the shared tree: nothing is published.
    pub(super) loan: Option<TreeLoan>,
    /// The hold of a check that is running. It may have been released, and then only keeps digests.
    pub(super) hold: Option<TreeHold>,
    /// The last holds that have ended. A late call must not begin one of them again.
    pub(super) ended_holds: VecDeque<EndedHold>,
    /// This node copies the shared tree of another one: nothing is published.
    pub(super) is_catching_up: bool,
    /// A change set is being applied.
    pub(super) is_publishing: bool,
    /// Publishing the last change set failed because the file system of the shared tree is full.
    pub(super) is_tree_full: bool,
    /// The publisher waits for more records: only a large or urgent log has to wake it.
    pub(super) is_folding: bool,
    /// The volume is closed, and its threads end.
    pub(super) is_closed: bool,
}

/// The client of this node.
pub(super) struct LocalClient {
    pub(super) number: u16,
    pub(super) sender: ClientSender,
    /// Programs can use its mount.
    pub(super) is_mounted: bool,
    /// The term that was granted to the client and is not released yet.
    pub(super) granted: Option<u32>,
    /// A thread is making the client the writer.
    pub(super) is_granting: bool,
    /// The highest point of the unanswered `Commit` messages.
    pub(super) commit_requested: Option<LogPoint>,
    /// The point of the last `Published` message that was sent to the client.
    pub(super) reported_published: Option<LogPoint>,
    /// Number of space reports when the client's term began. None once a later report was sent to the client.
    pub(super) waits_for_report: Option<u64>,
    /// The unanswered `CheckSpace` message of the client.
    pub(super) space_check: Option<SpaceCheck>,
}

/// One log on this node.
pub(super) struct LogProgress {
    /// The state that its copier shares.
    pub(super) copied: CopierLog<ReceivedRequest>,
    /// The open file of the log.
    pub(super) file: FileIdentity,
    /// Number of bytes of data that publishing did not copy, because later records overwrite or drop them.
    pub(super) coalesced_bytes: u64,
    /// Amount of log data that was sent to the next replica.
    pub(super) forwarded: ForwardedBytes,
    /// The copier; none after its thread has ended.
    pub(super) copier: Option<Arc<LogCopier>>,
    /// Times at which the threads of the copier wake up by themselves to look for work.
    pub(super) reader_wakes_at: Instant,
    pub(super) sender_wakes_at: Instant,
    /// The positions that the predecessor may write.
    pub(super) window: Arc<WritableWindow>,
    pub(super) region: Option<OpenRegion>,
}

/// Why a log is not published on each live replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PublishWaitError {
    #[error("the log is not yet published on each live replica")]
    Late,
    #[error("the disk of a replica is full: see `farfork volume status`")]
    DiskFull,
}

impl LogProgress {
    /// Creates the progress of a log with this copier.
    pub(super) fn open(chain: ChainLog, file: FileIdentity, copier: Arc<LogCopier>) -> Self {
        let progress = Self {
            copied: CopierLog::new(chain),
            file,
            coalesced_bytes: 0,
            forwarded: ForwardedBytes::default(),
            copier: Some(copier),
            reader_wakes_at: Instant::now(),
            sender_wakes_at: Instant::now(),
            window: Arc::default(),
            region: None,
        };
        progress.update_window();
        progress
    }

    pub(super) fn status(&self) -> LogStatus {
        LogStatus {
            logged: self.copied.chain.stored().position,
            committed: self.copied.chain.committed().position,
            published: self.copied.chain.published().point.position,
            coalesced: self.coalesced_bytes,
            forwarded: self.forwarded.original,
            compressed: self.forwarded.compressed,
        }
    }

    /// Updates the window: the predecessor may write after the end of the log, and over published bytes.
    pub(super) fn update_window(&self) {
        let stored = self.copied.chain.stored().position;
        self.window.set(stored, self.copied.chain.published().point.position.min(stored));
    }
}

impl ReplicaState {
    /// Returns the log of a client, which must be open.
    pub(super) fn log(&mut self, client: u16) -> &mut LogProgress {
        self.logs.get_mut(&client).expect("the log is open")
    }

    /// The highest term of any published record. The catalog has a lower one if it was restored to an earlier state while no node
    /// ran.
    pub(super) fn highest_term(&self) -> u32 {
        self.logs.values().map(|log| log.copied.chain.published().epoch).max().unwrap_or(0)
    }

    /// Whether publishing is paused: a client or another node reads the shared tree, or this node copies a tree.
    pub(super) fn is_publishing_paused(&self) -> bool {
        self.loading_client.is_some() || self.loan.is_some() || self.is_catching_up
    }

    /// The point up to which a log can be published now; none when nothing can be published.
    pub(super) fn publishing_end(&self, client: u16, log: &ChainLog) -> Option<LogPoint> {
        if self.is_publishing_paused() || !log.is_publishable() {
            return None;
        }
        let limit = self.hold.as_ref().and_then(|hold| hold.limit_of(client));
        match limit {
            // A recovering log has no limit: the tree may already have any part of the recovered records.
            Some(limit) if !log.is_recovering() => {
                Some(log.committed().min(limit)).filter(|end| *end > log.published().point)
            }
            _ => Some(log.committed()),
        }
    }

    /// The client of this node, if it is attached and has this number.
    pub(super) fn client_of(&mut self, number: u16) -> Option<&mut LocalClient> {
        self.client.as_mut().filter(|client| client.number == number)
    }
}

impl ReplicatedVolume {
    /// # Errors
    /// When the directory cannot be opened.
    pub(super) fn new(node: Arc<OffloadNode>, name: VolumeName, record: VolumeRecord) -> io::Result<Self> {
        let directory = node.store.volume(name.as_str());
        let opened = File::open(directory.path())?;
        let key = VolumeKey { name, id: record.id };
        let is_catching_up = !record.chain.contains(&node.name);
        let state = ReplicaState {
            record: Arc::new(record),
            logs: BTreeMap::new(),
            client: None,
            attaching_client: None,
            loading_client: None,
            loan: None,
            hold: None,
            ended_holds: VecDeque::new(),
            is_catching_up,
            is_publishing: false,
            is_tree_full: false,
            is_folding: false,
            is_closed: false,
        };
        Ok(Self {
            key,
            node,
            directory,
            opened,
            state: Mutex::new(state),
            ending_term: Mutex::default(),
            opening_log: Mutex::default(),
            wakeups: ThreadWakeups::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ReplicaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the volume is closed. Its files may be removed then, so a missing one is no damage.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Wakes all threads of the volume.
    pub(super) fn notify(&self) {
        self.wakeups.notify_all();
    }

    /// Wakes the threads of a kind.
    pub(super) fn notify_thread(&self, thread: WaitingThread) {
        self.wakeups.of(thread).notify_all();
    }

    /// Waits for a change, at most until `deadline`.
    pub(super) fn wait<'s>(
        &self,
        thread: WaitingThread,
        state: MutexGuard<'s, ReplicaState>,
        deadline: Instant,
    ) -> MutexGuard<'s, ReplicaState> {
        let limit = deadline.saturating_duration_since(Instant::now());
        self.wakeups.of(thread).wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// As `wait_as`, in a thread that executes a request.
    pub(super) fn wait_until(&self, limit: Duration, condition: impl FnMut(&mut ReplicaState) -> bool) -> bool {
        self.wait_as(WaitingThread::Request, limit, condition)
    }

    /// As `wait_until`, but the limit begins again whenever a value has grown: a slow link may need longer for everything.
    pub(super) fn wait_while_growing(
        &self,
        limit: Duration,
        value: impl Fn(&ReplicaState) -> u64,
        mut condition: impl FnMut(&mut ReplicaState) -> bool,
    ) -> bool {
        let mut reached = value(&self.lock());
        loop {
            if self.wait_until(limit, &mut condition) {
                return true;
            }
            let state = self.lock();
            let present = value(&state);
            if state.is_closed || present <= reached {
                return false;
            }
            reached = present;
        }
    }

    /// Waits until a condition holds; false at the deadline, or when the volume is closed.
    pub(super) fn wait_as(
        &self,
        thread: WaitingThread,
        limit: Duration,
        mut condition: impl FnMut(&mut ReplicaState) -> bool,
    ) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            if condition(&mut state) {
                return true;
            }
            if state.is_closed || Instant::now() >= deadline {
                return false;
            }
            state = self.wait(thread, state, deadline);
        }
    }

    /// Waits until the change set that is being applied is done. The caller has paused publishing.
    pub(super) fn wait_not_publishing(&self) -> Result<(), String> {
        let has_ended = self.wait_until(CALL_TIMEOUT, |state| !state.is_publishing);
        if has_ended { Ok(()) } else { Err(self.worker_silence()) }
    }

    /// Waits until the log of this node's client is published on every live replica up to a point.
    ///
    /// # Errors
    /// `DiskFull` as soon as a file system is full, because the wait could last long; `Late` if for `limit`, no replica has
    /// received or published more of the log.
    pub(super) fn wait_published(&self, client: u16, point: LogPoint, limit: Duration) -> Result<(), PublishWaitError> {
        self.make_urgent(client, point);
        let mut is_full = false;
        let progress = |state: &ReplicaState| {
            let chain = state.logs.get(&client).map(|log| &log.copied.chain);
            chain.map_or(0, |chain| chain.committed().position + chain.published_everywhere().position)
        };
        let has_ended = self.wait_while_growing(limit, progress, |state| {
            let is_published = state.log(client).copied.chain.published_everywhere() >= point;
            is_full = !is_published && state.is_path_full(client);
            is_published || is_full
        });
        match (has_ended, is_full) {
            (true, false) => Ok(()),
            (true, true) => Err(PublishWaitError::DiskFull),
            (false, _) => Err(PublishWaitError::Late),
        }
    }

    /// Waits until the log of a client is published on this node up to a point. False if for `limit`, this node has received
    /// or published no more of the log.
    pub(super) fn wait_published_here(&self, client: u16, point: LogPoint, limit: Duration) -> bool {
        if !self.lock().logs.contains_key(&client) {
            // The client has never logged a record.
            return point == LogPoint::START;
        }
        self.make_urgent(client, point);
        let progress = |state: &ReplicaState| {
            let chain = state.logs.get(&client).map(|log| &log.copied.chain);
            chain.map_or(0, |chain| chain.stored().position + chain.published().point.position)
        };
        self.wait_while_growing(limit, progress, |state| state.log(client).copied.chain.published().point >= point)
    }

    fn make_urgent(&self, client: u16, point: LogPoint) {
        self.lock().log(client).copied.raise_urgent_end(point);
        self.notify_thread(WaitingThread::Sender(client));
        self.notify_thread(WaitingThread::Publisher);
    }

    /// Waits until the copier has read all records that this node's client has appended before this call. Returns their end;
    /// none after `limit`.
    pub(super) fn look_for_end(&self, client: u16, limit: Duration) -> Option<LogPoint> {
        let requested = self.lock().log(client).copied.request_look();
        self.notify_thread(WaitingThread::Reader(client));
        let mut end = None;
        self.wait_until(limit, |state| {
            let log = &state.log(client).copied;
            end = log.has_looked(requested).then_some(log.chain.stored());
            end.is_some()
        });
        end
    }

    /// Waits until no thread publishes to the closed volume or creates a log, so that its directory can be removed.
    pub(super) fn wait_idle(&self) -> Result<(), String> {
        drop(self.opening_log.lock().unwrap_or_else(PoisonError::into_inner));
        // Half of the time that the caller of `DropReplica` waits.
        let deadline = Instant::now() + CALL_TIMEOUT / 2;
        let mut state = self.lock();
        while state.is_publishing {
            if Instant::now() >= deadline {
                return Err(self.worker_silence());
            }
            state = self.wait(WaitingThread::Request, state, deadline);
        }
        Ok(())
    }

    fn worker_silence(&self) -> String {
        format!("volume {}: the worker of node {} does not answer", self.key.name, self.node.name)
    }

    /// Ends the threads of the volume.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let regions: Vec<_> = state
            .logs
            .values_mut()
            .filter_map(|log| {
                drop(log.copied.take_all_appends());
                log.region.take()
            })
            .collect();
        let client = state.client.take();
        state.loading_client = None;
        drop(state);
        // Revoking a region waits for writes that are under way.
        drop(regions);
        if let Some(client) = client {
            client.sender.close();
        }
        self.notify();
    }
}
