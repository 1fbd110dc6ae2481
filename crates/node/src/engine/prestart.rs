//! Prestarted children: copies of zygotes, made in advance, that wait before their first instruction for the next
//! request. Such a child then gets its identity and payload, and is released.
//!
//! It has run no instruction of its program, so its receiver cannot tell. But its clocks run on from its parent's since
//! it was made. `find_prestart_obstacle` says which seeds may have prestarted children.

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

/// One that is not asked for goes after this: by so much its clocks are ahead, and the files that it has open are those of then.
const PRESTART_AGE_MAX: Duration = Duration::from_secs(3);
/// For one that is being made, when somebody asks for it: longer than any takes, but on a machine that does not come to it.
const PRESTART_WAIT_TIMEOUT: Duration = Duration::from_millis(100);

/// Which children one may become.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PrestartKey {
    token: Token,
    /// Of them the time limit does not matter before it runs.
    options: StartOptions,
    has_payload: bool,
}

/// A child that stands by.
#[derive(Debug)]
struct PrestartedChild {
    child: RestoredChild,
    restored_at: Instant,
    /// What it was made with.
    files: PathSnapshot,
}

/// What stands by of a seed.
#[derive(Debug)]
struct PrestartQueue {
    /// Who makes one knows by this that the queue is still the same.
    number: u64,
    key: PrestartKey,
    /// The oldest first.
    ready: VecDeque<PrestartedChild>,
    /// How many are being made, and how many wait for one of these.
    in_progress: usize,
    waiters: usize,
}

/// The children of a node that stand by.
///
/// ```text
///  a child was started,                                  a child is requested
///  and no start waits ───▶ making ─┬─▶ ready ─┬─────────────────────────▶ assigned, released, recorded
///                                  │          └─▶ dropped: too old, its seed is gone, its container is out of date
///                                  └─▶ none: why
/// ```
///
/// Up to `PRESTARTED_PER_SEED_MAX` for each seed that is forked child by child. Fan-outs make their copies as fast as
/// they can. A prestarted child belongs to no request until one takes it. Nothing is left of one that is never taken.
#[derive(Debug, Default)]
pub(super) struct PrestartPool {
    table: Mutex<BTreeMap<SeedId, PrestartQueue>>,
    changed: Condvar,
    /// How many queues there were.
    queues_created: AtomicU64,
    /// None is given to anybody.
    is_suspended: AtomicBool,
}

/// The place of one that is being made: however that ends, nobody waits for it any longer.
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
    /// Of a child that is started so; `None` where none stands by. Where all of a fan-out share a network, it would be of none yet.
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
    /// Whether it may still be given to somebody.
    fn is_current(&self) -> bool {
        self.restored_at.elapsed() < PRESTART_AGE_MAX && self.child.container.is_current()
    }
}

impl PrestartQueue {
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.in_progress == 0
    }

    /// Takes out those that are too old.
    fn take_stale(&mut self) -> Vec<PrestartedChild> {
        let (current, stale): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.ready).into_iter().partition(PrestartedChild::is_current);
        self.ready = current;
        stale.into()
    }
}

impl PrestartPool {
    /// Whether there are any of a seed to be had, or are going to be.
    fn has_seed(&self, seed: &SeedId) -> bool {
        !self.is_suspended.load(Ordering::Acquire) && self.table().contains_key(seed)
    }

    /// Gives none to anybody, or does so again.
    pub(super) fn set_suspended(&self, is_held: bool) {
        self.is_suspended.store(is_held, Ordering::Release);
    }

    /// Takes one of a seed, if they are of this kind. Who finds none waits for one that is being made, if nobody else does.
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
            // One that is too old goes when nobody waits for that.
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

    /// The place of a seed's next one, for who is to make it; `None` where there are enough, and as long as there are any of another kind: they
    /// would be made in vain where one kind follows the other.
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
        // Their ends take a while: not under the lock.
        drop(stale);
        // Not before it is known: to drop one gives a place back.
        is_wanted.then(|| PrestartReservation { pool: self, seed, queue: number, ready: None })
    }

    fn new_queue(&self, kind: &PrestartKey) -> PrestartQueue {
        let number = self.queues_created.fetch_add(1, Ordering::Relaxed);
        PrestartQueue { number, key: kind.clone(), ready: VecDeque::new(), in_progress: 0, waiters: 0 }
    }

    /// Enters what came of the making of one, unless its seed was forgotten meanwhile.
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

    /// Lets go of those of a seed.
    pub(super) fn remove_seed(&self, seed: &SeedId) {
        let removed = self.table().remove(seed);
        self.changed.notify_all();
        drop(removed);
    }

    /// Lets go of those that nobody asked for in time.
    pub(super) fn drop_stale(&self) {
        let mut table = self.table();
        let stale: Vec<PrestartedChild> = table.values_mut().flat_map(PrestartQueue::take_stale).collect();
        table.retain(|_, queue| !queue.is_empty());
        drop(table);
        drop(stale);
    }

    /// Lets go of all.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.table());
        self.changed.notify_all();
        drop(all);
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// Every change is complete under its lock.
    fn table(&self) -> MutexGuard<'_, BTreeMap<SeedId, PrestartQueue>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Starts a child by letting one go that stands by; `None` where there is none, and where it was of no use.
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
            tracing::debug!(seed = %source.key.seed, "a child that stood by has files that were replaced");
            return None;
        }
        if let Err(error) = phase!("resume.tell", assign_and_release(&mut restored_child, source, child_assignment)) {
            tracing::debug!(seed = %source.key.seed, %error, "a child that stood by is of no use");
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

    /// Has so many children stand by for the next requests like this one, where its seed has a zygote of which there were copies, or that was
    /// foretold.
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
            return tracing::trace!(seed = %source.key.seed, reason, "no child of it stands by");
        }
        while let Some(mut reservation) = self.prestart_pool.reserve(&source.key.seed, &kind, most) {
            let (since, files) = (Instant::now(), PathSnapshot::record(&source.descriptor, &self.node));
            let start_request = StartRequest {
                source: &source,
                options: &kind.options,
                fan_out: &FanOutNetwork::default(),
                requested_at: since,
            };
            let restored =
                self.restore_child(Some(&cached_zygote), start_request, Assignment::Deferred { has_payload });
            // It has taken of what is ready.
            self.refill_child_dirs();
            match restored {
                Ok(restored_child) => {
                    reservation.ready = Some(PrestartedChild { child: restored_child, restored_at: since, files })
                }
                Err(start_failure) => {
                    tracing::debug!(failure = %start_failure.failure, "no child stands by");
                    if start_failure.progress != StartProgress::NotBegun {
                        self.retire_zygote(&source, &cached_zygote, start_failure.is_late);
                    }
                    return;
                }
            }
        }
    }
}

/// Tells a child that stands by whose it is, and lets it go.
///
/// # Errors
/// It has not run.
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
    fn no_more_are_made_than_may_stand_by() {
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
    fn one_that_is_being_made_is_waited_for_by_one_until_it_fails() {
        let (pool, seed, kind) = (PrestartPool::default(), seed(), kind(true));
        assert!(pool.take(&seed, &kind).is_none());
        let reservation = pool.reserve(&seed, &kind, PRESTARTED_PER_SEED_MAX).unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| pool.take(&seed, &kind).is_none());
            // It waits for a while, and the machine may be slower than that.
            while pool.table()[&seed].waiters == 0 && !first.is_finished() {
                thread::yield_now();
            }
            assert!(pool.take(&seed, &kind).is_none(), "another waits for it");
            drop(reservation);
            assert!(first.join().unwrap());
        });
        assert!(pool.is_empty());
    }

    #[test]
    fn what_was_forgotten_or_is_of_another_kind_is_not_taken_for_the_same() {
        let (pool, seed) = (PrestartPool::default(), seed());
        let reservation = pool.reserve(&seed, &kind(true), PRESTARTED_PER_SEED_MAX).unwrap();
        assert!(pool.take(&seed, &kind(false)).is_none());
        assert!(pool.reserve(&seed, &kind(false), PRESTARTED_PER_SEED_MAX).is_none(), "it has the place");
        pool.remove_seed(&seed);
        let other = pool.reserve(&seed, &kind(false), PRESTARTED_PER_SEED_MAX).unwrap();
        drop(reservation);
        assert_eq!(pool.table()[&seed].in_progress, 1, "the other's place is its own");
        drop(other);
        assert!(pool.is_empty());
    }
}
