//! The state of a mounted volume: view and log, under one lock, and the order of each change: plan, log, apply.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fuser::Notifier;
use rustix::io::Errno;

use super::base_files::BaseFiles;
use super::group_commit::GroupCommit;
use super::invalidation::KernelCaches;
use super::offload_link::{OffloadLink, OffloadRequest};
use super::open_retry::OpenRetries;
use super::refresh::RefreshRequests;
use super::space::SpaceEstimate;
use super::unused_inodes::UnusedInodes;
use super::write_permission::WritePermission;
use crate::log::{LogAppender, LogFile, LogPoint, RingError};
use crate::publish::{PublishedMark, SharedTree};
use crate::record::RecordEffect;
use crate::view::VolumeNamespace;

/// A mounted volume.
#[derive(Debug)]
pub struct VolumeClient {
    /// The number of this client, and of its log.
    number: u16,
    pub(super) shared: SharedTree,
    pub(super) base_files: BaseFiles,
    pub(super) link: Arc<dyn OffloadLink>,
    state: Mutex<ClientState>,
    /// The tail has advanced, or the write permission has changed.
    changed: Condvar,
    /// The log has something to publish.
    appended: Condvar,
    commit: GroupCommit,
    pub(super) refresh: RefreshRequests,
    pub(super) open_retries: OpenRetries,
    pub(super) unused: UnusedInodes,
    pub(super) kernel_caches: OnceLock<KernelCaches>,
}

/// View and log. A record is in the log exactly when its effects are in the view.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) namespace: VolumeNamespace,
    pub(super) log: LogAppender<LogFile>,
    permission: WritePermission,
    /// How far the view has the log of each client, by number.
    pub(super) applied: Vec<LogPoint>,
    space: SpaceEstimate,
}

/// A checked operation: its effects, and what its caller returns.
pub(super) struct PlannedOperation<T> {
    pub(super) effects: Vec<RecordEffect>,
    pub(super) result: T,
    /// Space of the shared tree that it takes besides its data.
    pub(super) allocated_bytes: u64,
}

impl<T> PlannedOperation<T> {
    pub(super) fn new(effects: Vec<RecordEffect>, result: T) -> Self {
        Self { effects, result, allocated_bytes: 0 }
    }
}

impl VolumeClient {
    /// Starts a client on a namespace that has each client's log up to its mark.
    pub fn start(
        number: u16,
        shared: SharedTree,
        namespace: VolumeNamespace,
        log: LogFile,
        marks: &[PublishedMark],
        link: Arc<dyn OffloadLink>,
    ) -> Self {
        let start = marks[usize::from(number)].point;
        let ring_bytes = log.header().ring_bytes;
        let state = ClientState {
            namespace,
            log: LogAppender::new(log, ring_bytes, 0, start),
            permission: WritePermission::default(),
            applied: marks.iter().map(|mark| mark.point).collect(),
            space: SpaceEstimate::default(),
        };
        Self {
            number,
            shared,
            base_files: BaseFiles::default(),
            link,
            state: Mutex::new(state),
            changed: Condvar::new(),
            appended: Condvar::new(),
            commit: GroupCommit::new(start),
            refresh: RefreshRequests::default(),
            open_retries: OpenRetries::default(),
            unused: UnusedInodes::default(),
            kernel_caches: OnceLock::new(),
        }
    }

    /// Invalidates the kernel's caches from now on when another node has changed the volume.
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

    /// Whether the log has something that is not published.
    pub(super) fn has_unpublished(&self) -> bool {
        self.lock().log.ring().used_bytes() > 0
    }

    /// The log is published up to a point: its data is in the shared tree, and its bytes may be overwritten.
    pub fn advance_published(&self, point: LogPoint) {
        let mut state = self.lock();
        if point <= state.log.ring().tail() {
            return;
        }
        state.log.advance_tail(point);
        state.namespace.release_published(point.sequence);
        if state.log.ring().used_bytes() == 0 {
            state.space.reset();
        }
        self.changed.notify_all();
        drop(state);
        // Published records are on each live replica.
        self.commit.acknowledge(point);
    }

    /// Waits, at most so long, until the log has something to publish. Its end.
    pub fn wait_unpublished(&self, limit: Duration) -> Option<LogPoint> {
        let is_published = |state: &mut ClientState| state.log.ring().used_bytes() == 0;
        let waited = self.appended.wait_timeout_while(self.lock(), limit, is_published);
        let (state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (!result.timed_out()).then(|| state.log.ring().head())
    }

    /// The number of this client.
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans an operation, logs it and applies it. While another client writes, or the log is full, it waits and plans again.
    pub(super) fn execute<T>(
        &self,
        data: &[u8],
        plan: impl Fn(&VolumeNamespace) -> Result<PlannedOperation<T>, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        let result = loop {
            state = self.wait_writer(state);
            match self.try_execute(&mut state, data, &plan) {
                Some(result) => break result,
                None => state = self.wait(state),
            }
        };
        if state.permission.use_once() {
            self.release_write(&mut state);
        }
        result
    }

    /// None while the log is full.
    fn try_execute<T>(
        &self,
        state: &mut ClientState,
        data: &[u8],
        plan: impl Fn(&VolumeNamespace) -> Result<PlannedOperation<T>, Errno>,
    ) -> Option<Result<T, Errno>> {
        let planned = match plan(&state.namespace) {
            Ok(planned) if planned.effects.is_empty() => return Some(Ok(planned.result)),
            Ok(planned) => planned,
            Err(error) => return Some(Err(error)),
        };
        if takes_space(&planned.effects) {
            let log_bytes = state.log.ring().used_bytes();
            let bytes = planned.allocated_bytes.saturating_add(data.len() as u64);
            if let Err(error) = state.space.take(self.shared.tree(), bytes, log_bytes) {
                return Some(Err(error));
            }
        }
        match state.log.append(&planned.effects, data) {
            Ok(record) => {
                state.namespace.apply(&planned.effects, record);
                self.appended.notify_one();
                Some(Ok(planned.result))
            }
            Err(RingError::TooLarge) => Some(Err(Errno::NOSPC)),
            Err(RingError::Full) => None,
        }
    }

    /// Waits until this client may write.
    fn wait_writer<'s>(&'s self, mut state: MutexGuard<'s, ClientState>) -> MutexGuard<'s, ClientState> {
        if state.permission.term().is_some() {
            return state;
        }
        state.permission.begin_wait(&*self.link);
        while state.permission.term().is_none() {
            state.permission.request(&*self.link);
            state = self.wait(state);
        }
        state.permission.end_wait();
        state
    }

    /// Waits, at most so long, until this client may write. Does not ask for it.
    pub(super) fn wait_for_permission(&self, limit: Duration) {
        let may_not_write = |state: &mut ClientState| state.permission.term().is_none();
        drop(self.changed.wait_timeout_while(self.lock(), limit, may_not_write));
    }

    fn wait<'s>(&self, state: MutexGuard<'s, ClientState>) -> MutexGuard<'s, ClientState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn release_write(&self, state: &mut ClientState) {
        state.permission.release();
        self.link.send(OffloadRequest::Released);
        self.changed.notify_all();
    }

    /// This client is the writer from now on.
    pub fn grant_write(&self, term: u32) {
        let mut state = self.lock();
        state.log.start_epoch(term);
        state.permission.grant(term);
        self.changed.notify_all();
    }

    /// Another client wants to write.
    pub fn recall_write(&self) {
        let mut state = self.lock();
        if state.permission.recall() {
            self.release_write(&mut state);
        }
    }

    /// The term in which this client may write, if it may.
    pub fn term(&self) -> Option<u32> {
        self.lock().permission.term()
    }

    /// Each live replica has the log up to a point.
    pub fn acknowledge_commit(&self, point: LogPoint) {
        self.commit.acknowledge(point);
    }

    /// Repeats unanswered requests after the connection was lost.
    pub fn repeat_requests(&self) {
        if self.lock().permission.is_requested() {
            self.link.send(OffloadRequest::AcquireWrite);
        }
        if let Some(point) = self.commit.unanswered() {
            self.link.send(OffloadRequest::Commit(point));
        }
        if let Some(request) = self.refresh.unanswered() {
            self.link.send(OffloadRequest::Refresh(request));
        }
    }

    /// Executes an operation without data and without a result.
    pub(super) fn change(
        &self,
        plan: impl Fn(&VolumeNamespace) -> Result<Vec<RecordEffect>, Errno>,
    ) -> Result<(), Errno> {
        self.execute(&[], |namespace| Ok(PlannedOperation::new(plan(namespace)?, ())))
    }

    /// Waits until each live replica has everything that was logged before.
    pub(super) fn commit(&self) {
        self.commit.commit(self.head(), &*self.link, || self.head());
    }
}

/// Removals must be possible on a full volume.
fn takes_space(effects: &[RecordEffect]) -> bool {
    effects.iter().any(|effect| {
        matches!(
            effect,
            RecordEffect::WriteData { .. }
                | RecordEffect::AllocateSpace { .. }
                | RecordEffect::SetXattr { value: Some(_), .. }
                | RecordEffect::SetEntry { inode: Some(_), .. }
        )
    })
}
