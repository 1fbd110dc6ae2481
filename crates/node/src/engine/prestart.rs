//! Prestarted children: copies of zygotes, made in advance, that wait before their first instruction for the next
//! request. Such a child then gets its identity and payload, and is released.
//!
//! A prestarted child has run no instruction of its program, so its requester sees no difference. But its clocks, which
//! continue the parent's, have advanced since the child was made. `find_prestart_obstacle` finds seeds that may not
//! have such children.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::limits::{PRESTARTED_PER_SEED_MAX, START_TIMEOUT};
use farfork_fork::phase;
use farfork_fork::restore::{self, PAYLOAD_NAME, PathSnapshot, find_prestart_obstacle};
use farfork_fork::resume::SeedSource;
use farfork_wire::{SeedId, Token};

use super::start::{Assignment, ChildAssignment, RestoredChild, StartProgress, StartRequest};
use super::{Engine, SeedAccess, StartOptions, checkpoint_reply};
use crate::children::StartedChild;
use crate::network::{FanOutNetwork, NetworkMode};

/// A prestarted child ends after this time if it is not requested. Its clocks are ahead by its age, and its open files are
/// from the time when it was made.
const PRESTART_AGE_MAX: Duration = Duration::from_secs(3);
/// Longest wait of a request for a child that is being prestarted: longer than a restore takes, except on an overloaded
/// machine.
const PRESTART_WAIT_TIMEOUT: Duration = Duration::from_millis(100);

/// The kind of children that a prestarted child can become.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PrestartKey {
    token: Token,
    /// The options without the time limit, which has no effect before the child runs.
    options: StartOptions,
    has_payload: bool,
}

/// A prestarted child.
#[derive(Debug)]
struct PrestartedChild {
    child: RestoredChild,
    restored_at: Instant,
    /// The files at the paths of the seed when the child was made.
    files: PathSnapshot,
}

/// The prestarted children of a seed.
#[derive(Debug)]
struct PrestartQueue {
    /// Identifies the queue, so that a reservation notices if the queue was replaced.
    number: u64,
    key: PrestartKey,
    /// Children that can be taken, the oldest first.
    ready: VecDeque<PrestartedChild>,
    /// Number of children that are being made.
    in_progress: usize,
    /// Number of requests that wait for one of these children.
    waiters: usize,
}

/// The prestarted children of a node.
///
/// ```text
///  a child was started,                                  a child is requested
///  and no start waits ───▶ making ─┬─▶ ready ─┬─────────────────────────▶ assigned, released, recorded
///                                  │          └─▶ dropped: too old, its seed is gone, its container is out of date
///                                  └─▶ none: why
/// ```
///
/// There are up to `PRESTARTED_PER_SEED_MAX` for each seed that is forked child by child. Fan-outs do not use them. A
/// prestarted child belongs to no request until a request takes it. If no request does, the child is removed with all
/// its resources.
#[derive(Debug, Default)]
pub(super) struct PrestartPool {
    table: Mutex<BTreeMap<SeedId, PrestartQueue>>,
    changed: Condvar,
    /// Number of queues created so far.
    queues_created: AtomicU64,
    /// Whether no child may be taken.
    is_suspended: AtomicBool,
}

/// The reservation of a child that is being made. Dropping it wakes the requests that wait, whether the child is ready
/// or not.
#[derive(Debug)]
struct PrestartReservation<'a> {
    pool: &'a PrestartPool,
    seed: &'a SeedId,
    queue: u64,
    ready: Option<PrestartedChild>,
}

impl Drop for PrestartReservation<'_> {
    fn drop(&mut self) {
        self.pool.complete_reservation(self.seed, self.queue, self.ready.take());
    }
}

impl PrestartKey {
    /// Returns the key of a child with these options; `None` if the child cannot be prestarted. A network that a
    /// fan-out shares does not exist yet when children are prestarted.
    fn for_start(source: &SeedSource, options: &StartOptions, has_payload: bool) -> Option<Self> {
        let is_plain = !options.paused
            && options.publish.is_empty()
            && options.egress.is_none()
            && options.network != NetworkMode::Shared
            && super::zygote_cache::has_copyable_options(options);
        let options = || StartOptions { timeout: None, ..options.clone() };
        is_plain.then(|| Self { token: source.key.token, options: options(), has_payload })
    }
}

impl PrestartedChild {
    /// Whether it may still be used.
    fn is_current(&self) -> bool {
        self.restored_at.elapsed() < PRESTART_AGE_MAX && self.child.container.is_current()
    }
}

impl PrestartQueue {
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.in_progress == 0
    }

    /// Removes the children that may no longer be used, and returns them.
    fn take_stale(&mut self) -> Vec<PrestartedChild> {
        let (current, stale): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.ready).into_iter().partition(PrestartedChild::is_current);
        self.ready = current;
        stale.into()
    }
}

impl PrestartPool {
    /// Whether a seed has prestarted children, ready or in progress, and children may be taken.
    fn has_seed(&self, seed: &SeedId) -> bool {
        !self.is_suspended.load(Ordering::Acquire) && self.table().contains_key(seed)
    }

    /// Suspends or resumes the use of prestarted children.
    pub(super) fn set_suspended(&self, is_held: bool) {
        self.is_suspended.store(is_held, Ordering::Release);
    }

    /// Takes a child of a seed, if its key is `kind`. If none is ready, waits for a child in progress that no other
    /// request waits for.
    fn take(&self, seed: &SeedId, kind: &PrestartKey) -> Option<PrestartedChild> {
        let until = Instant::now() + PRESTART_WAIT_TIMEOUT;
        let (mut table, mut awaited) = (self.table(), None);
        loop {
            let queue = table
                .get_mut(seed)
                .filter(|queue| queue.key == *kind && awaited.is_none_or(|number| number == queue.number))?;
            if awaited.take().is_some() {
                queue.waiters -= 1;
            }
            // Skip children that may no longer be used: `drop_stale` drops them, so that no request waits for their
            // end.
            if let Some(index) = queue.ready.iter().position(PrestartedChild::is_current) {
                return queue.ready.remove(index);
            }
            let left = until.checked_duration_since(Instant::now())?;
            if queue.in_progress <= queue.waiters {
                return None;
            }
            queue.waiters += 1;
            awaited = Some(queue.number);
            table = self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reserves the next child of a seed, which the caller makes. `None` if there are enough, or while children of
    /// another kind exist: if kinds alternated, children would be made for nothing.
    fn reserve<'a>(&'a self, seed: &'a SeedId, kind: &PrestartKey, most: usize) -> Option<PrestartReservation<'a>> {
        let mut table = self.table();
        let queue = table.entry(seed.clone()).or_insert_with(|| self.new_queue(kind));
        let stale = queue.take_stale();
        if queue.key != *kind && queue.is_empty() {
            *queue = self.new_queue(kind);
        }
        let is_wanted = queue.key == *kind && queue.ready.len() + queue.in_progress < most.min(PRESTARTED_PER_SEED_MAX);
        let number = queue.number;
        queue.in_progress += usize::from(is_wanted);
        drop(table);
        // Drop the stale children after the lock is released, because ending them takes a while.
        drop(stale);
        // Create no reservation that is not wanted: dropping it would decrement `in_progress`.
        is_wanted.then(|| PrestartReservation { pool: self, seed, queue: number, ready: None })
    }

    fn new_queue(&self, kind: &PrestartKey) -> PrestartQueue {
        let number = self.queues_created.fetch_add(1, Ordering::Relaxed);
        PrestartQueue { number, key: kind.clone(), ready: VecDeque::new(), in_progress: 0, waiters: 0 }
    }

    /// Adds the child of a reservation to its queue, if there is one. Drops it if the queue was removed or replaced.
    fn complete_reservation(&self, seed: &SeedId, queue_number: u64, ready: Option<PrestartedChild>) {
        let mut table = self.table();
        let unwanted = match table.get_mut(seed).filter(|queue| queue.number == queue_number) {
            Some(queue) => {
                queue.in_progress -= 1;
                queue.ready.extend(ready);
                if queue.is_empty() {
                    table.remove(seed);
                }
                None
            }
            None => ready,
        };
        drop(table);
        self.changed.notify_all();
        drop(unwanted);
    }

    /// Drops the children of a seed.
    pub(super) fn remove_seed(&self, seed: &SeedId) {
        let removed = self.table().remove(seed);
        self.changed.notify_all();
        drop(removed);
    }

    /// Drops the children that may no longer be used.
    pub(super) fn drop_stale(&self) {
        let mut table = self.table();
        let stale: Vec<PrestartedChild> = table.values_mut().flat_map(PrestartQueue::take_stale).collect();
        table.retain(|_, queue| !queue.is_empty());
        drop(table);
        drop(stale);
    }

    /// Drops all children.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.table());
        self.changed.notify_all();
        drop(all);
    }

    /// Whether there are no children, ready or in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// Ignores poisoning: every change is complete under its lock.
    fn table(&self) -> MutexGuard<'_, BTreeMap<SeedId, PrestartQueue>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Starts a child by releasing a prestarted one; `None` if there is none, or if it cannot be used.
    pub(super) fn start_prestarted(
        &self,
        start_request: StartRequest<'_>,
        child_assignment: ChildAssignment<'_>,
    ) -> Option<Result<StartedChild, Failure>> {
        let StartRequest { source, options, requested_at: requested, .. } = start_request;
        if !self.prestart_pool.has_seed(&source.key.seed) {
            return None;
        }
        let kind = PrestartKey::for_start(source, options, child_assignment.payload.is_some())?;
        let taken = phase!("resume.standby", self.prestart_pool.take(&source.key.seed, &kind));
        let PrestartedChild { child: mut restored_child, files, .. } = taken?;
        if !files.is_current() {
            tracing::debug!(seed = %source.key.seed, "a prestarted child has files that were replaced");
            return None;
        }
        if let Err(error) = phase!("resume.tell", assign_and_release(&mut restored_child, source, child_assignment)) {
            tracing::debug!(seed = %source.key.seed, %error, "a prestarted child cannot be used");
            return None;
        }
        let release_socket = restored_child.release_socket.as_ref().expect("a copy of a zygote has one");
        let left = START_TIMEOUT.saturating_sub(requested.elapsed());
        let unpaused = phase!("resume.go", restore::wait_unpaused(release_socket.as_fd(), &source.descriptor, left));
        let started = match unpaused {
            Ok(restored) => {
                restored_child.restored = restored;
                self.commit_start(restored_child, start_request)
            }
            Err(error) => Err(self.start_failure(source, &error)),
        };
        if started.is_ok() {
            self.zygote_cache.record_prestarted_copy(&source.key.seed);
        }
        Some(started.map_err(|error| error.failure))
    }

    /// Prestarts up to `most` children for further requests with these options. Requires a zygote of the seed that has
    /// been copied, or a speculative one.
    pub(crate) fn prestart_children(
        &self,
        access: &SeedAccess,
        options: &StartOptions,
        has_payload: bool,
        most: usize,
    ) {
        let Ok(source) = self.load_source(access, Instant::now()) else { return };
        let Some(kind) = PrestartKey::for_start(&source, options, has_payload) else { return };
        let Some(cached_zygote) = self.zygote_cache.find_for_prestart(&source, options) else { return };
        if let Some(reason) = find_prestart_obstacle(&source.descriptor) {
            return tracing::trace!(seed = %source.key.seed, reason, "its children cannot be prestarted");
        }
        while let Some(mut reservation) = self.prestart_pool.reserve(&source.key.seed, &kind, most) {
            let (since, files) = (Instant::now(), PathSnapshot::record(&source.descriptor, &self.node));
            let start_request = StartRequest {
                source: &source,
                options: &kind.options,
                // Zygotes have the node's root.
                root: None,
                fan_out: &FanOutNetwork::default(),
                requested_at: since,
            };
            let restored =
                self.restore_child(Some(&cached_zygote), start_request, Assignment::Deferred { has_payload });
            // Replace the child directory that the restore has used.
            self.refill_child_dirs();
            match restored {
                Ok(restored_child) => {
                    reservation.ready = Some(PrestartedChild { child: restored_child, restored_at: since, files })
                }
                Err(start_failure) => {
                    tracing::debug!(failure = %start_failure.failure, "no child could be prestarted");
                    if start_failure.progress != StartProgress::NotBegun {
                        self.retire_zygote(&source, &cached_zygote, start_failure.is_late);
                    }
                    return;
                }
            }
        }
    }
}

/// Gives a prestarted child its identity and payload, and releases it.
///
/// # Errors
/// A file, reply or message could not be sent. The child has not run.
fn assign_and_release(
    restored_child: &mut RestoredChild,
    source: &SeedSource,
    child_assignment: ChildAssignment<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(payload) = child_assignment.payload {
        restored_child.container.put_file(PAYLOAD_NAME, payload, 0o444)?;
    }
    if let Some(reply) = restored_child.checkpoint_reply.take() {
        let identity = checkpoint_reply::ChildIdentity {
            child: restored_child.rollback.id(),
            seed: &source.key.seed,
            index: child_assignment.index,
        };
        reply.send(identity, child_assignment.payload)?;
    }
    let release_socket = restored_child.release_socket.as_ref().expect("a copy of a zygote has one");
    Ok(restore::unpause_with_report(release_socket.as_fd())?)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{PRESTARTED_PER_SEED_MAX, PrestartKey, PrestartPool, SeedId, StartOptions, Token};
    use farfork_api::v1::ChildOptions;

    fn kind(has_payload: bool) -> PrestartKey {
        let options = StartOptions::try_from(ChildOptions::default()).unwrap();
        PrestartKey { token: Token::from_bytes([7; 16]), options, has_payload }
    }

    fn seed() -> SeedId {
        "n1.s0123456789abcdef".parse().unwrap()
    }

    #[test]
    fn the_number_of_prestarted_children_is_bounded() {
        let (pool, seed, kind) = (PrestartPool::default(), seed(), kind(true));
        for _ in 0..2 {
            let reservations: Vec<_> = (0..PRESTARTED_PER_SEED_MAX)
                .map(|_| pool.reserve(&seed, &kind, PRESTARTED_PER_SEED_MAX).unwrap())
                .collect();
            for _ in 0..3 {
                assert!(pool.reserve(&seed, &kind, PRESTARTED_PER_SEED_MAX).is_none());
            }
            drop(reservations);
            assert!(pool.is_empty());
        }
    }

    #[test]
    fn a_starting_child_has_at_most_one_waiter() {
        let (pool, seed, kind) = (PrestartPool::default(), seed(), kind(true));
        assert!(pool.take(&seed, &kind).is_none());
        let reservation = pool.reserve(&seed, &kind, PRESTARTED_PER_SEED_MAX).unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| pool.take(&seed, &kind).is_none());
            // On a slow machine, `take` may time out before its wait is seen here.
            while pool.table()[&seed].waiters == 0 && !first.is_finished() {
                thread::yield_now();
            }
            assert!(pool.take(&seed, &kind).is_none(), "another request waits for the child in progress");
            drop(reservation);
            assert!(first.join().unwrap());
        });
        assert!(pool.is_empty());
    }

    #[test]
    fn a_prestarted_child_is_taken_only_with_equal_options() {
        let (pool, seed) = (PrestartPool::default(), seed());
        let reservation = pool.reserve(&seed, &kind(true), PRESTARTED_PER_SEED_MAX).unwrap();
        assert!(pool.take(&seed, &kind(false)).is_none());
        assert!(
            pool.reserve(&seed, &kind(false), PRESTARTED_PER_SEED_MAX).is_none(),
            "a child of another kind is in progress"
        );
        pool.remove_seed(&seed);
        let other = pool.reserve(&seed, &kind(false), PRESTARTED_PER_SEED_MAX).unwrap();
        drop(reservation);
        assert_eq!(
            pool.table()[&seed].in_progress,
            1,
            "a reservation of a removed queue does not change its successor"
        );
        drop(other);
        assert!(pool.is_empty());
    }
}
