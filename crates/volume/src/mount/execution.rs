//! Executes the operations that change a volume: plan, log, apply, answer.
//!
//! An operation waits in a queue while another client writes, the log is full, or it is not known whether the replicas have
//! space. No thread waits, so lookups, reads and statfs(2) continue. The event that ends the wait executes the queue in
//! order. While the catalog cannot be read, no client becomes the writer, and calls with a path end after a limit.

use std::collections::VecDeque;
use std::fmt;
use std::sync::MutexGuard;
use std::time::Duration;

use rustix::io::Errno;

use super::client::{ClientState, VolumeClient};
use super::interrupts::RequestIdentity;
use super::invalidation::DeferredAnswer;
use super::offload_link::OffloadRequest;
use super::space::SpaceDecision;
use super::write_permission::boot_time;
use crate::chain::TreeSpace;
use crate::log::{LogPoint, RingError};
use crate::record::RecordEffect;
use crate::view::VolumeNamespace;

/// A checked operation: its effects, and the result for its caller.
pub(super) struct PlannedOperation<T> {
    pub(super) effects: Vec<RecordEffect>,
    pub(super) result: T,
    /// Space of the shared tree that the operation takes in addition to its data.
    pub(super) allocated_bytes: u64,
    /// Number of bytes to log, if they are fewer than the data of the request.
    pub(super) data_bytes: usize,
}

impl<T> PlannedOperation<T> {
    pub(super) fn new(effects: Vec<RecordEffect>, result: T) -> Self {
        Self { effects, result, allocated_bytes: 0, data_bytes: usize::MAX }
    }
}

/// An executed operation.
struct ExecutedOperation<T> {
    result: Result<T, Errno>,
    /// The end of its record, if the caller gets the result only after the record is published.
    answer_when_published: Option<LogPoint>,
}

impl<T> ExecutedOperation<T> {
    fn failed(error: Errno) -> Self {
        Self { result: Err(error), answer_when_published: None }
    }
}

/// An operation that is not answered yet.
struct UnansweredOperation<A> {
    answer: A,
    /// The data of the request. Empty after the operation is executed.
    data: Vec<u8>,
}

/// How long an operation waits for the write permission while the catalog cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatalogWait {
    /// For `MountOptions::catalog_wait`. The kernel has locked the directory meanwhile, so other calls wait, too.
    Limited,
    /// Until the catalog can be read: the program has the file open, and takes a failed write(2) for lost data.
    Unlimited,
}

/// Executes an operation that waits, or refuses it with an error. Returns none if the operation must continue to wait.
type ExecutionStep = Box<dyn FnMut(&VolumeClient, &mut ClientState, Option<Errno>) -> Option<DeferredAnswer> + Send>;

struct WaitingOperation {
    /// The time of the call.
    since: Duration,
    catalog_wait: CatalogWait,
    step: ExecutionStep,
}

impl WaitingOperation {
    /// Whether the operation has waited for `limit`.
    fn is_overdue(&self, now: Duration, limit: Duration) -> bool {
        self.catalog_wait == CatalogWait::Limited && self.since + limit <= now
    }
}

/// Operations that wait, in the order of their arrival.
#[derive(Default)]
pub(super) struct WaitingOperations(VecDeque<WaitingOperation>);

impl fmt::Debug for WaitingOperations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WaitingOperations").field(&self.0.len()).finish()
    }
}

impl VolumeClient {
    /// Plans an operation, logs it, applies it to the view, and calls `answer`. An operation that must wait is planned again
    /// when it is executed. If its program is killed first, it is not executed. `request` is none for an operation that no
    /// program waits for. `answer` gets EIO if the catalog cannot be read for longer than `catalog_wait` permits.
    pub(super) fn execute<T: Send + 'static>(
        &self,
        request: Option<RequestIdentity>,
        catalog_wait: CatalogWait,
        data: &[u8],
        plan: impl Fn(&VolumeNamespace) -> Result<PlannedOperation<T>, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let mut state = self.lock();
        if state.permission.term().is_some()
            && state.waiting.0.is_empty()
            && let Some(ExecutedOperation { result, answer_when_published }) = self.try_execute(&mut state, data, &plan)
        {
            if let Some(end) = answer_when_published {
                let call = self.interrupts.register(request, answer, |answer| answer(Err(Errno::INTR)));
                let answer = move || {
                    if let Some(answer) = call.claim() {
                        answer(result);
                    }
                };
                return state.published_answers.add(end, Box::new(answer));
            }
            drop(state);
            return answer(result);
        }
        let operation = UnansweredOperation { answer, data: data.to_vec() };
        let mut call =
            Some(self.interrupts.register(request, operation, |operation| (operation.answer)(Err(Errno::INTR))));
        let step: ExecutionStep = Box::new(move |client, state, refusal| {
            let mut unanswered = call.as_ref()?.lock();
            let Some(operation) = &mut *unanswered else { return Some(Box::new(|| {})) };
            let ExecutedOperation { result, answer_when_published } = match refusal {
                Some(error) => ExecutedOperation::failed(error),
                None => client.try_execute(state, &operation.data, &plan)?,
            };
            operation.data = Vec::new();
            drop(unanswered);
            let call = call.take()?;
            let answer: DeferredAnswer = Box::new(move || {
                if let Some(operation) = call.claim() {
                    (operation.answer)(result);
                }
            });
            let Some(end) = answer_when_published else { return Some(answer) };
            state.published_answers.add(end, answer);
            Some(Box::new(|| {}))
        });
        state.waiting.0.push_back(WaitingOperation { since: boot_time(), catalog_wait, step });
        state.permission.request(&*self.link);
        if state.permission.term().is_some() {
            self.request_space_check(&mut state);
            // Request a commit: if the log is damaged, the offload process then ends this client. Otherwise, the operation
            // would wait forever.
            drop(state);
            self.answer_committed(Box::new(|| {}));
        }
    }

    fn request_space_check(&self, state: &mut ClientState) {
        let head = state.log.ring().head();
        if state.space.request_check(head) {
            self.link.send(OffloadRequest::CheckSpace(head));
        }
    }

    /// Executes an operation with a path, without data and without a result.
    pub(super) fn change(
        &self,
        request: Option<RequestIdentity>,
        plan: impl Fn(&VolumeNamespace) -> Result<Vec<RecordEffect>, Errno> + Send + 'static,
        answer: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let plan = move |namespace: &VolumeNamespace| Ok(PlannedOperation::new(plan(namespace)?, ()));
        self.execute(request, CatalogWait::Limited, &[], plan, answer);
    }

    /// Executes an operation. Returns none if it must wait: the log is full, or it is not known whether the replicas have
    /// space.
    fn try_execute<T>(
        &self,
        state: &mut ClientState,
        data: &[u8],
        plan: impl Fn(&VolumeNamespace) -> Result<PlannedOperation<T>, Errno>,
    ) -> Option<ExecutedOperation<T>> {
        let planned = match plan(&state.namespace) {
            Ok(PlannedOperation { effects, result, .. }) if effects.is_empty() => {
                return Some(ExecutedOperation { result: Ok(result), answer_when_published: None });
            }
            Ok(planned) => planned,
            Err(error) => return Some(ExecutedOperation::failed(error)),
        };
        let data = &data[..planned.data_bytes.min(data.len())];
        let bytes = planned.allocated_bytes.saturating_add(data.len() as u64);
        let takes_space = takes_space(&planned.effects);
        if takes_space {
            match state.space.decide(bytes, state.log.ring().used_bytes() > 0) {
                SpaceDecision::Fits => {}
                SpaceDecision::Unknown => return None,
                SpaceDecision::Refused => return Some(ExecutedOperation::failed(Errno::NOSPC)),
            }
        }
        match state.log.append(&planned.effects, data) {
            Ok(record) => {
                if takes_space {
                    state.space.add_record(record.sequence, bytes);
                }
                state.namespace.apply(&planned.effects, record);
                if let Some(caches) = self.kernel_caches.get() {
                    caches.invalidate_changed(&planned.effects);
                }
                self.appended.notify_one();
                let answer_when_published = self.changes_passthrough_data(&planned.effects).then_some(record.end);
                Some(ExecutedOperation { result: Ok(planned.result), answer_when_published })
            }
            Err(RingError::TooLarge) => Some(ExecutedOperation::failed(Errno::NOSPC)),
            // The log has no room before the full replica has space again.
            Err(RingError::Full) if state.space.is_full() => Some(ExecutedOperation::failed(Errno::NOSPC)),
            Err(RingError::Full) => None,
        }
    }

    /// Executes waiting operations, as far as this client may write, the log has room, and the replicas have space.
    pub(super) fn execute_waiting(&self, mut state: MutexGuard<'_, ClientState>) {
        let mut answers = Vec::new();
        while state.permission.term().is_some()
            && let Some(mut operation) = state.waiting.0.pop_front()
        {
            let Some(answer) = (operation.step)(self, &mut state, None) else {
                state.waiting.0.push_front(operation);
                break;
            };
            answers.push(answer);
        }
        state.space.end_check();
        if state.permission.term().is_some() && !state.waiting.0.is_empty() {
            self.request_space_check(&mut state);
        }
        drop(state);
        answers.into_iter().for_each(|answer| answer());
    }

    /// Refuses all waiting operations with ENOSPC. Called when this client does not become the writer, because the disk of a
    /// replica is full.
    pub fn refuse_waiting(&self) {
        self.refuse_operations(Errno::NOSPC, |_| true);
    }

    /// Handles an attempt to make this client the writer that has failed because the catalog cannot be read. Refuses the
    /// operations that have waited for their limit with EIO. Attempts continue.
    pub fn delay_grant(&self) {
        let (now, limit) = (boot_time(), self.options.catalog_wait);
        self.refuse_operations(Errno::IO, |operation| operation.is_overdue(now, limit));
    }

    fn refuse_operations(&self, error: Errno, is_refused: impl Fn(&WaitingOperation) -> bool) {
        let mut state = self.lock();
        let waiting = std::mem::take(&mut state.waiting.0);
        let (refused, waiting) = waiting.into_iter().partition::<VecDeque<_>, _>(is_refused);
        state.waiting.0 = waiting;
        let refuse = |mut operation: WaitingOperation| (operation.step)(self, &mut state, Some(error));
        let answers: Vec<_> = refused.into_iter().filter_map(refuse).collect();
        drop(state);
        answers.into_iter().for_each(|answer| answer());
    }

    /// Makes this client the writer. Waiting operations are executed before the permission can be recalled, so each grant is
    /// used. `space` is passed to `SpaceEstimate::start_term`.
    pub fn grant_write(&self, term: u32, space: Option<TreeSpace>) {
        let mut state = self.lock();
        state.log.start_epoch(term);
        state.permission.grant(term);
        state.space.start_term(space);
        self.granted.notify_all();
        self.lease_used.notify_one();
        self.execute_waiting(state);
    }

    /// Returns the write permission, because another client wants to write. Requests it again if operations wait.
    pub fn recall_write(&self) {
        let mut state = self.lock();
        state.permission.release();
        self.link.send(OffloadRequest::Released);
        if !state.waiting.0.is_empty() {
            state.permission.request(&*self.link);
        }
    }

    /// Waits until this client may write, at most for `limit`. Does not request the permission.
    pub(super) fn wait_for_permission(&self, limit: Duration) {
        let may_not_write = |state: &mut ClientState| state.permission.term().is_none();
        drop(self.granted.wait_timeout_while(self.lock(), limit, may_not_write));
    }
}

/// Whether an operation needs free space. Removals do not, so they are possible on a full volume.
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
