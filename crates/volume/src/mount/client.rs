//! The state of a mounted volume: view and log, under one lock. `execution` changes both.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fuser::Notifier;

use super::base_files::BaseFiles;
use super::execution::WaitingOperations;
use super::group_commit::GroupCommit;
use super::interrupts::InterruptTable;
use super::invalidation::{DeferredAnswer, KernelCaches};
use super::offload_link::{OffloadLink, OffloadRequest};
use super::open_retry::OpenRetries;
use super::passthrough::PublishedAnswers;
use super::refresh::RefreshRequests;
use super::space::SpaceEstimate;
use super::unused_inodes::UnusedInodes;
use super::write_permission::WritePermission;
use crate::chain::TreeSpace;
use crate::log::{LogAppender, LogFile, LogPoint};
use crate::publish::{PublishedMark, SharedTree};
use crate::view::VolumeNamespace;

/// Options of a mount.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions {
    /// Whether the kernel reads published data directly from the shared tree, with FUSE passthrough.
    pub read_passthrough: bool,
    /// Whether files are opened for reading without the latest changes while the catalog cannot be read.
    pub stale_reads: bool,
    /// A call that opens a file, or that needs the write permission to change a directory, fails with EIO if the catalog cannot
    /// be read for this time.
    pub catalog_wait: Duration,
}

impl MountOptions {
    /// Default of `catalog_wait`: an etcd with default settings elects a leader within some seconds.
    pub const CATALOG_WAIT: Duration = Duration::from_secs(30);
}

impl Default for MountOptions {
    fn default() -> Self {
        Self { read_passthrough: false, stale_reads: false, catalog_wait: Self::CATALOG_WAIT }
    }
}

/// A mounted volume.
#[derive(Debug)]
pub struct VolumeClient {
    pub(super) options: MountOptions,
    /// The number of this client, and of its log.
    number: u16,
    pub(super) shared: SharedTree,
    pub(super) base_files: BaseFiles,
    pub(super) link: Arc<dyn OffloadLink>,
    state: Mutex<ClientState>,
    /// Notified when the write permission is granted.
    pub(super) granted: Condvar,
    /// Notified when a term begins, and when the lease is used after a pause.
    pub(super) lease_used: Condvar,
    /// Notified when a record is appended to the log.
    pub(super) appended: Condvar,
    commit: GroupCommit,
    pub(super) refresh: RefreshRequests,
    pub(super) interrupts: Arc<InterruptTable>,
    pub(super) open_retries: OpenRetries,
    pub(super) unused: Arc<UnusedInodes>,
    pub(super) kernel_caches: OnceLock<KernelCaches>,
}

/// View and log. A record is in the log exactly when its effects are in the view.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) namespace: VolumeNamespace,
    pub(super) log: LogAppender<LogFile>,
    pub(super) permission: WritePermission,
    pub(super) waiting: WaitingOperations,
    /// The point up to which the view has the log of each client, by client number.
    pub(super) applied: Vec<LogPoint>,
    pub(super) space: SpaceEstimate,
    pub(super) published_answers: PublishedAnswers,
}

impl VolumeClient {
    /// Creates a client. The namespace has each client's log up to its mark.
    pub fn start(
        number: u16,
        shared: SharedTree,
        namespace: VolumeNamespace,
        log: LogFile,
        marks: &[PublishedMark],
        link: Arc<dyn OffloadLink>,
        options: MountOptions,
    ) -> Self {
        let start = marks[usize::from(number)].point;
        let ring_bytes = log.header().ring_bytes;
        let state = ClientState {
            namespace,
            log: LogAppender::new(log, ring_bytes, 0, start),
            permission: WritePermission::default(),
            waiting: WaitingOperations::default(),
            applied: marks.iter().map(|mark| mark.point).collect(),
            space: SpaceEstimate::default(),
            published_answers: PublishedAnswers::default(),
        };
        Self {
            options,
            number,
            shared,
            base_files: BaseFiles::default(),
            link,
            state: Mutex::new(state),
            granted: Condvar::new(),
            lease_used: Condvar::new(),
            appended: Condvar::new(),
            commit: GroupCommit::new(start),
            refresh: RefreshRequests::default(),
            interrupts: Arc::default(),
            open_retries: OpenRetries::default(),
            unused: Arc::default(),
            kernel_caches: OnceLock::new(),
        }
    }

    /// Starts the threads that invalidate the kernel's caches when the volume changes.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn watch_kernel_caches(&self, notifier: Notifier) -> io::Result<()> {
        let caches = KernelCaches::start(notifier)?;
        self.kernel_caches.get_or_init(|| caches);
        Ok(())
    }

    /// The end of the log.
    pub fn head(&self) -> LogPoint {
        self.lock().log.ring().head()
    }

    /// Whether the log has unpublished records.
    pub(super) fn has_unpublished(&self) -> bool {
        self.lock().log.ring().used_bytes() > 0
    }

    /// Frees the log up to a point: it is published, its data is in the shared tree, and its bytes may be overwritten.
    pub fn advance_published(&self, point: LogPoint) {
        let mut state = self.lock();
        if point <= state.log.ring().tail() {
            return;
        }
        state.log.advance_tail(point);
        state.namespace.release_published(point.sequence);
        state.space.advance_published(point);
        let answers = state.published_answers.take_published(point);
        // The log may have room for waiting operations now.
        self.execute_waiting(state);
        answers.into_iter().for_each(|answer| answer());
        // Published records are on each live replica.
        self.acknowledge_commit(point);
    }

    /// Stores the least space of a replica. The caller then calls `advance_published` with the point at which the space was
    /// measured.
    pub fn report_space(&self, space: TreeSpace) {
        self.lock().space.report(space);
    }

    /// Handles the answer to `OffloadRequest::CheckSpace`.
    pub fn answer_space_check(&self, space: TreeSpace) {
        let mut state = self.lock();
        state.space.answer_check(space);
        self.execute_waiting(state);
    }

    /// Waits until the log has unpublished records. Returns the end of the log, or none after `limit`.
    pub fn wait_unpublished(&self, limit: Duration) -> Option<LogPoint> {
        let is_published = |state: &mut ClientState| state.log.ring().used_bytes() == 0;
        let waited = self.appended.wait_timeout_while(self.lock(), limit, is_published);
        let (state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (!result.timed_out()).then(|| state.log.ring().head())
    }

    /// Returns a number that distinguishes the open shared tree from one that replaces it.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn tree_identity(&self) -> io::Result<u64> {
        self.shared.identity()
    }

    /// The number of this client.
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The term of this client's write permission; none if it has no permission.
    pub fn term(&self) -> Option<u32> {
        self.lock().permission.term()
    }

    /// Records that the volume has no other replica, so that no other client can become the writer.
    pub fn set_only_replica(&self) {
        self.lock().permission.set_only_replica();
    }

    /// The point up to which each live replica is known to have the log.
    pub fn committed(&self) -> LogPoint {
        self.commit.committed()
    }

    /// Records that each live replica has the log up to a point.
    pub fn acknowledge_commit(&self, point: LogPoint) {
        self.commit.acknowledge(point, &*self.link);
    }

    /// Repeats unanswered requests after the connection was lost.
    pub fn repeat_requests(&self) {
        let (is_write_requested, space_check) = {
            let state = self.lock();
            (state.permission.is_requested(), state.space.unanswered_check())
        };
        if is_write_requested {
            self.link.send(OffloadRequest::AcquireWrite);
        }
        if let Some(point) = space_check {
            self.link.send(OffloadRequest::CheckSpace(point));
        }
        if let Some(point) = self.commit.unanswered() {
            self.link.send(OffloadRequest::Commit(point));
        }
        if let Some(request) = self.refresh.unanswered() {
            self.link.send(OffloadRequest::Refresh(request));
        }
    }

    /// Calls `answer` when each live replica has all records that are in the log now.
    pub(super) fn answer_committed(&self, answer: DeferredAnswer) {
        self.commit.add(self.head(), answer, &*self.link);
    }
}
