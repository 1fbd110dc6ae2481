//! The state of a mounted volume: view and log, under one lock, and the order of each change: plan, log, apply.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::base_files::BaseFiles;
use super::group_commit::GroupCommit;
use super::space::SpaceEstimate;
use crate::log::{LogAppender, LogFile, LogPoint, RingError};
use crate::publish::{Durability, PublishedMark, SharedTree};
use crate::record::{InodeNumber, RecordEffect};
use crate::view::VolumeNamespace;

/// How a client works.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// How safe data is when fsync(2) returns.
    pub durability: Durability,
}

/// Why a client cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The log cannot start an epoch, or be opened again for flushing.
    #[error("cannot start the log: {0}")]
    Log(#[source] io::Error),
}

/// A mounted volume.
#[derive(Debug)]
pub struct VolumeClient {
    pub(super) shared: SharedTree,
    pub(super) base_files: BaseFiles,
    state: Mutex<ClientState>,
    /// The tail has advanced.
    published: Condvar,
    /// The log has something to publish.
    appended: Condvar,
    commit: GroupCommit,
    options: ClientOptions,
}

/// View and log. A record is in the log exactly when its effects are in the view.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) namespace: VolumeNamespace,
    pub(super) log: LogAppender<LogFile>,
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
    /// Starts a client on a namespace that was read after everything in the log was published, up to `mark`.
    ///
    /// # Errors
    /// When the log does not start an epoch.
    pub fn start(
        shared: SharedTree,
        namespace: VolumeNamespace,
        mut log: LogFile,
        mark: PublishedMark,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        log.raise_epoch().map_err(ClientError::Log)?;
        let commit = GroupCommit::new(log.try_clone_file().map_err(ClientError::Log)?);
        let header = *log.header();
        let log = LogAppender::new(log, header.ring_bytes, header.epoch, mark.point);
        let state = Mutex::new(ClientState { namespace, log, space: SpaceEstimate::default() });
        let (published, appended) = (Condvar::new(), Condvar::new());
        Ok(Self { shared, base_files: BaseFiles::default(), state, published, appended, commit, options })
    }

    /// The end of the log.
    pub fn head(&self) -> LogPoint {
        self.lock().log.ring().head()
    }

    /// The beginning of the part of the log that is not published.
    pub fn tail(&self) -> LogPoint {
        self.lock().log.ring().tail()
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
        self.published.notify_all();
    }

    /// Waits, at most so long, until the log has something to publish. Its end.
    pub fn wait_unpublished(&self, limit: Duration) -> Option<LogPoint> {
        let is_published = |state: &mut ClientState| state.log.ring().used_bytes() == 0;
        let waited = self.appended.wait_timeout_while(self.lock(), limit, is_published);
        let (state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (!result.timed_out()).then(|| state.log.ring().head())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans an operation, logs it and applies it. While the log is full, waits for publishing and plans again.
    pub(super) fn execute<T>(
        &self,
        data: &[u8],
        plan: impl Fn(&VolumeNamespace) -> Result<PlannedOperation<T>, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        loop {
            let planned = plan(&state.namespace)?;
            if planned.effects.is_empty() {
                return Ok(planned.result);
            }
            if takes_space(&planned.effects) {
                let log_bytes = state.log.ring().used_bytes();
                let bytes = planned.allocated_bytes.saturating_add(data.len() as u64);
                state.space.take(self.shared.tree(), bytes, log_bytes)?;
            }
            match state.log.append(&planned.effects, data) {
                Ok(record) => {
                    state.namespace.apply(&planned.effects, record);
                    self.appended.notify_one();
                    return Ok(planned.result);
                }
                Err(RingError::TooLarge) => return Err(Errno::NOSPC),
                Err(RingError::Full) => state = self.published.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Executes an operation without data and without a result.
    pub(super) fn change(
        &self,
        plan: impl Fn(&VolumeNamespace) -> Result<Vec<RecordEffect>, Errno>,
    ) -> Result<(), Errno> {
        self.execute(&[], |namespace| Ok(PlannedOperation::new(plan(namespace)?, ())))
    }

    /// Waits until everything that was logged before is as durable as the volume promises.
    pub(super) fn commit(&self) -> Result<(), Errno> {
        match self.options.durability {
            // The mapping is memory of the kernel: it survives the death of this process.
            Durability::Memory => Ok(()),
            Durability::Disk => {
                let position = self.head().position;
                self.commit.commit(position, || self.head().position).map_err(|_| Errno::IO)
            }
        }
    }

    /// The kernel has forgotten an inode. It ends when no entry leads to it.
    pub(super) fn forget(&self, inode: InodeNumber, count: u64) {
        self.lock().namespace.forget(inode, count);
        let dropped = self.change(|namespace| Ok(namespace.plan_drop(inode).unwrap_or_default()));
        if let Err(error) = dropped {
            tracing::error!(%error, ?inode, "an unlinked inode is not dropped before the next mount");
        }
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
