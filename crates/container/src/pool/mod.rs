//! Containers built ahead of need: threads keep a number of them ready, and each taken one makes them build the next.
//! Containers of a non-default kind are kept ready from the first request until the requests stop.

mod mount_watcher;
mod root_cache;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_sys::namespace::HomeNamespaces;

use crate::builder::ContainerBuilder;
use crate::cgroup::NodeCgroups;
use crate::config::{ContainerConfig, ContainerSpec, RootReuseKey};
use crate::error::ContainerError;
use crate::handle::{Container, RootSink};
use crate::host_init::HostInit;
use crate::root::cached::CachedRoot;

use self::mount_watcher::MountWatcher;
use self::root_cache::{DiscardedEntries, RootCache, RootCacheKey};

/// Most containers kept ready: each holds a few hundred KiB of kernel memory, and a burst of forks larger than this
/// is limited by restoring children, not by building containers.
const SIZE_MAX: usize = 256;
/// Pause after a container could not be built, in milliseconds; a request that waits is told at once.
const RETRY_MS: u64 = 500;
/// Containers of another kind than the usual one go after so long without use, as zygotes do.
const UNUSED_LIMIT: Duration = Duration::from_secs(20);
/// While children are being started one after the other, no more than so many containers are kept ready beyond what is waited for: the others are
/// built when none was taken for a while, and so take no processor from the children of a fan-out.
const READY_WHILE_BUSY_MAX: usize = 4;
const QUIET_PERIOD: Duration = Duration::from_millis(20);
/// Threads that build. Most of the time that one takes to build a container it waits: for grace periods of the kernel, and for
/// the container's first process.
const FILLER_THREADS: usize = 4;

/// Containers ready to be taken. Dropping it ends those that were not taken.
#[derive(Debug)]
pub struct ContainerPool {
    shared: Arc<PoolShared>,
    fillers: Vec<JoinHandle<()>>,
    mount_watcher: Option<MountWatcher>,
}

#[derive(Debug)]
struct PoolShared {
    builder: Arc<ContainerBuilder>,
    size: usize,
    state: Mutex<PoolState>,
    /// A container was taken, a request waits, or the pool stops: for the fillers.
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Each kind that was asked for; the usual one from the start.
    by_spec: BTreeMap<ContainerSpec, SpecPool>,
    /// What containers that have ended left to others.
    root_cache: RootCache,
    /// When a container was last taken.
    last_taken: Option<Instant>,
    /// Containers that no longer show the node's mounts as they are, and roots that nobody is to have: for a filler to end.
    discarded: DiscardedEntries,
    stopping: bool,
}

/// What a filler is to do.
enum FillerTask {
    /// Build a container of a kind.
    Build(ContainerSpec),
    /// Build one around a root that was left.
    Rebuild(RootCacheKey, Box<CachedRoot>),
    /// Nothing, or nothing before that.
    Wait(Option<Instant>),
}

/// The containers of one kind.
#[derive(Debug, Default)]
struct SpecPool {
    ready: VecDeque<Container>,
    /// How many are being built for it.
    building: usize,
    /// How many shall be ready.
    target_size: usize,
    /// How many builds have failed, and why the last one did.
    failures: u64,
    last_failure: Option<Arc<ContainerError>>,
    /// A container is there, or one could not be built: for requests.
    available: Arc<Condvar>,
    /// Requests that wait for it.
    waiting: usize,
    /// When one was last asked for.
    last_requested: Option<Instant>,
}

impl ContainerPool {
    /// Starts to keep `size` containers of each kind ready (at least 1, at most 256). They are built in the background; what cannot
    /// work at all, such as a missing init program, is an error now.
    ///
    /// # Errors
    /// [`ContainerError`] as the first step that fails.
    pub fn start(config: ContainerConfig, size: usize) -> Result<Self, ContainerError> {
        let size = size.clamp(1, SIZE_MAX);
        let usual = SpecPool { target_size: size, ..SpecPool::default() };
        let by_spec = BTreeMap::from([(ContainerSpec::default(), usual)]);
        let root_cache = RootCache::new(config.cached_roots_max);
        let shared = Arc::new(PoolShared {
            builder: Arc::new(ContainerBuilder::new(config)?),
            size,
            state: Mutex::new(PoolState { by_spec, root_cache, ..PoolState::default() }),
            wanted: Condvar::new(),
        });
        let watcher = MountWatcher::start(Arc::clone(&shared)).map_err(ContainerError::Thread)?;
        let mut pool = Self { shared, fillers: Vec::new(), mount_watcher: Some(watcher) };
        for _ in 0..FILLER_THREADS.min(size) {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name("container-pool".to_owned());
            // Those that there are end with the pool.
            pool.fillers.push(thread.spawn(move || shared.run_filler()).map_err(ContainerError::Thread)?);
        }
        Ok(pool)
    }

    /// The node's control groups.
    pub fn cgroups(&self) -> &NodeCgroups {
        self.shared.builder.cgroups()
    }

    /// Starts the init program outside of containers, for a zygote.
    ///
    /// # Errors
    /// [`ContainerError`] as the first step that fails.
    pub fn start_host_init(&self) -> Result<HostInit, ContainerError> {
        self.shared.builder.start_host_init()
    }

    /// How many containers of a kind are ready to be taken.
    pub fn ready_count(&self, kind: impl Into<ContainerSpec>) -> usize {
        self.shared
            .lock()
            .by_spec
            .get(&self.shared.builder.effective_spec(kind.into()))
            .map_or(0, |spec_pool| spec_pool.ready.len())
    }

    /// Takes a container, waiting for it until `deadline`. The first of a kind that is not the usual one is built for the
    /// request.
    ///
    /// # Errors
    /// [`ContainerError::PoolEmpty`] when the time is over, [`ContainerError::PoolBuild`] when none is ready and one could not
    /// be built, [`ContainerError::TooManyContainers`] at the limit on containers, [`ContainerError::PoolStopping`].
    pub fn take(&self, kind: impl Into<ContainerSpec>, deadline: Instant) -> Result<Container, ContainerError> {
        let kind = self.shared.builder.effective_spec(kind.into());
        self.shared.take((kind, None), deadline)
    }

    /// The same for one of `heirs`: it may be in the root of another of them that has ended without a trace there, and others may be in its
    /// root after it.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_with_reuse(
        &self,
        root_reuse_key: &RootReuseKey,
        kind: impl Into<ContainerSpec>,
        deadline: Instant,
    ) -> Result<Container, ContainerError> {
        let key = (self.shared.builder.effective_spec(kind.into()), root_reuse_key.clone());
        let is_wanted = key.0.has_reusable_root() && self.shared.lock().root_cache.record_request(&key, Instant::now());
        let mut container = self.shared.take((key.0, is_wanted.then_some(&key)), deadline)?;
        if is_wanted {
            let keeper = Arc::downgrade(&self.shared);
            container.set_root_recipient((key.1, keeper));
        }
        Ok(container)
    }

    /// How many roots of containers that have ended are kept, and around how many of them another is ready.
    pub fn root_counts(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.root_cache.root_count(), state.root_cache.ready_count())
    }

    /// Gives up what was left to a line of which no more will come.
    pub fn evict_roots(&self, line: &str) {
        let mut discarded = DiscardedEntries::default();
        self.shared.lock().root_cache.evict_unused(
            Instant::now(),
            |root_reuse_key| *root_reuse_key.lineage == *line,
            &mut discarded,
        );
    }
}

impl RootSink for PoolShared {
    fn return_root(&self, kind: ContainerSpec, root_reuse_key: &RootReuseKey, root: CachedRoot) {
        let mut discarded = DiscardedEntries::default();
        if root.mounts_version() != self.builder.mounts_version() {
            return;
        }
        let mut state = self.lock();
        match state.stopping {
            true => drop(state),
            false => {
                state.root_cache.insert(&(kind, root_reuse_key.clone()), root, Instant::now(), &mut discarded);
                drop(state);
                self.wanted.notify_one();
            }
        }
    }
}

impl Drop for ContainerPool {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.stopping = true;
            state.by_spec.values().for_each(|spec_pool| spec_pool.available.notify_all());
        }
        self.shared.wanted.notify_all();
        drop(self.mount_watcher.take());
        for filler in self.fillers.drain(..) {
            let _ = filler.join();
        }
        let mut state = self.shared.lock();
        let PoolState { by_spec, root_cache: estates, discarded, .. } = &mut *state;
        let unused = (std::mem::take(by_spec), std::mem::take(estates), std::mem::take(discarded));
        drop(state);
        drop(unused);
        self.shared.builder.close();
    }
}

impl PoolState {
    fn spec_pool(&mut self, kind: ContainerSpec) -> &mut SpecPool {
        self.by_spec.entry(kind).or_default()
    }

    fn touch_spec_pool(&mut self, kind: ContainerSpec) -> &mut SpecPool {
        let spec_pool = self.spec_pool(kind);
        spec_pool.last_requested = Some(Instant::now());
        spec_pool
    }

    /// A container in the root of another is there, or could not be built.
    fn finish_rebuild(&mut self, key: &RootCacheKey, built: Result<Container, ContainerError>) {
        if !self.root_cache.finish_rebuild(key, built, Instant::now()) {
            return;
        }
        let waiting_for_root = self.root_cache.waiter_count(key);
        let spec_pool = self.spec_pool(key.0);
        match spec_pool.waiting == waiting_for_root {
            true => spec_pool.available.notify_one(),
            // Among others whom it is not for.
            false => spec_pool.available.notify_all(),
        }
    }

    /// Gives up kinds that were not asked for since, but for the usual one, and what was left to others; tells when the next is to go.
    fn evict_unused(&mut self, now: Instant) -> Option<Instant> {
        let mut next = self.root_cache.evict_unused(now, |_| false, &mut self.discarded);
        let is_kept = |spec_pool: &SpecPool| spec_pool.target_size > 0 || !spec_pool.ready.is_empty();
        let others = self
            .by_spec
            .iter_mut()
            .filter(|(kind, spec_pool)| **kind != ContainerSpec::default() && is_kept(spec_pool));
        for (_, spec_pool) in others {
            let goes = spec_pool.last_requested.map_or(now, |used| used + UNUSED_LIMIT);
            if goes <= now {
                spec_pool.target_size = 0;
                self.discarded.containers.extend(spec_pool.ready.drain(..));
            } else {
                next = next.into_iter().chain([goes]).min();
            }
        }
        next
    }

    /// What is to be built now.
    fn next_task(&mut self, now: Instant) -> FillerTask {
        let busy_until = self.last_taken.map(|taken| taken + QUIET_PERIOD).filter(|busy_until| *busy_until > now);
        let is_due = |kind: ContainerSpec, ready: usize, waiting: usize| {
            let spec_pool = self.by_spec.get(&kind);
            let others = spec_pool.map_or(0, |spec_pool| spec_pool.ready.len() + spec_pool.building);
            busy_until.is_none() || ready + others < READY_WHILE_BUSY_MAX + waiting
        };
        if let Some((key, root)) = self.root_cache.take_for_rebuild(is_due) {
            return FillerTask::Rebuild(key, Box::new(root));
        }
        match self.most_lacking_spec(busy_until.is_some()) {
            Some(kind) => FillerTask::Build(kind),
            None => FillerTask::Wait(busy_until),
        }
    }

    /// Of which kind too few are ready: of several, the one that lacks most.
    fn most_lacking_spec(&self, is_busy: bool) -> Option<ContainerSpec> {
        let wanted = |spec_pool: &SpecPool| match is_busy {
            true => spec_pool.target_size.min(READY_WHILE_BUSY_MAX + spec_pool.waiting),
            false => spec_pool.target_size,
        };
        let missing_count =
            |spec_pool: &SpecPool| wanted(spec_pool).saturating_sub(spec_pool.ready.len() + spec_pool.building);
        let (kind, spec_pool) = self.by_spec.iter().max_by_key(|(_, spec_pool)| missing_count(spec_pool))?;
        (missing_count(spec_pool) > 0).then_some(*kind)
    }

    /// The container that has waited longest, if there is one that is as one built now would be.
    fn take_current(&mut self, kind: ContainerSpec) -> Option<Container> {
        loop {
            match self.spec_pool(kind).ready.pop_front()? {
                container if container.is_current() => return Some(container),
                container => self.discarded.containers.push(container),
            }
        }
    }

    /// The same, one in a root that was left to who asks first.
    fn take_container(&mut self, (kind, root_key): (ContainerSpec, Option<&RootCacheKey>)) -> Option<Container> {
        while let Some(container) = root_key.and_then(|key| self.root_cache.take_container(key)) {
            match container.is_current() {
                true => return Some(container),
                false => self.discarded.containers.push(container),
            }
        }
        self.take_current(kind)
    }

    fn update_waiters(&mut self, (kind, root_key): (ContainerSpec, Option<&RootCacheKey>), begins: bool) {
        let waiting = &mut self.spec_pool(kind).waiting;
        *waiting = if begins { *waiting + 1 } else { *waiting - 1 };
        if let Some(key) = root_key {
            self.root_cache.update_waiters(key, begins);
        }
    }
}

impl PoolShared {
    /// The first of a kind; it makes the fillers keep more of them.
    fn build_first(&self, kind: ContainerSpec) -> Result<Container, ContainerError> {
        let container = self.builder.build(kind, None)?;
        self.lock().spec_pool(kind).target_size = self.size;
        self.wanted.notify_all();
        Ok(container)
    }

    /// Takes one of a kind, for an heir or not.
    fn take(
        &self,
        wanted: (ContainerSpec, Option<&RootCacheKey>),
        deadline: Instant,
    ) -> Result<Container, ContainerError> {
        let is_kept = self.lock().touch_spec_pool(wanted.0).target_size > 0;
        match is_kept {
            true => self.take_ready(wanted, deadline),
            false => self.build_first(wanted.0),
        }
    }

    fn take_ready(
        &self,
        wanted: (ContainerSpec, Option<&RootCacheKey>),
        deadline: Instant,
    ) -> Result<Container, ContainerError> {
        let kind = wanted.0;
        let began = Instant::now();
        let mut state = self.lock();
        let failures = state.spec_pool(kind).failures;
        let mut phase = None;
        state.update_waiters(wanted, true);
        let taken = loop {
            if state.stopping {
                break Err(ContainerError::PoolStopping { node: self.node_name() });
            }
            if let Some(container) = state.take_container(wanted) {
                state.last_taken = Some(Instant::now());
                break Ok(container);
            }
            let spec_pool = state.spec_pool(kind);
            if let Some(cause) = spec_pool.last_failure.clone().filter(|_| spec_pool.failures != failures) {
                break Err(ContainerError::PoolBuild { node: self.node_name(), cause });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited_ms = began.elapsed().as_millis() as u64;
                break Err(ContainerError::PoolEmpty { node: self.node_name(), size: self.size, waited_ms });
            }
            phase.get_or_insert_with(|| tracing::debug_span!(target: "farfork::phase", "container.wait").entered());
            self.wanted.notify_one();
            let available = state.spec_pool(kind).available.clone();
            state = available.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.update_waiters(wanted, false);
        self.wanted.notify_one();
        taken
    }

    /// A filler thread: builds while there are too few, one at a time, and never holds the lock meanwhile.
    fn run_filler(&self) {
        if let Err(error) = self.builder.cgroups().unlimited_group().enter() {
            tracing::warn!(%error, "each container's init has to be moved into its control groups");
        }
        let home = HomeNamespaces::of_this_thread();
        let home =
            home.inspect_err(|error| tracing::warn!(%error, "each container is built by a thread of its own")).ok();
        let mut state = self.lock();
        while !state.stopping {
            let next = state.evict_unused(Instant::now());
            let discarded = std::mem::take(&mut state.discarded);
            if !discarded.is_empty() {
                drop(state);
                drop(discarded);
                state = self.lock();
                continue;
            }
            let kind = match state.next_task(Instant::now()) {
                FillerTask::Build(kind) => kind,
                FillerTask::Rebuild(key, root) => {
                    drop(state);
                    let built = self.builder.build_on_root(key.0, *root, home.as_ref());
                    state = self.lock();
                    state.finish_rebuild(&key, built);
                    continue;
                }
                FillerTask::Wait(busy_until) => {
                    state = self.wait_for_work(state, next.into_iter().chain(busy_until).min());
                    continue;
                }
            };
            state.spec_pool(kind).building += 1;
            drop(state);
            let built = self.builder.build(kind, home.as_ref());
            state = self.lock();
            state.spec_pool(kind).building -= 1;
            match built {
                // The node's mounts have changed meanwhile.
                Ok(container) if !container.is_current() => state.discarded.containers.push(container),
                Ok(container) => {
                    let spec_pool = state.spec_pool(kind);
                    spec_pool.ready.push_back(container);
                    // It is for one: the others would only see that it is gone.
                    spec_pool.available.notify_one();
                }
                Err(error) => state = self.record_failure(state, kind, error),
            }
        }
    }

    fn wait_for_work<'a>(&self, state: MutexGuard<'a, PoolState>, until: Option<Instant>) -> MutexGuard<'a, PoolState> {
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            Some(left) => self.wanted.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            None => self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Tells waiting requests, then pauses unless somebody is waiting for the next attempt.
    fn record_failure<'a>(
        &'a self,
        mut state: MutexGuard<'a, PoolState>,
        kind: ContainerSpec,
        error: ContainerError,
    ) -> MutexGuard<'a, PoolState> {
        tracing::warn!(node = self.builder.config().node, %error, "a container could not be built");
        let spec_pool = state.spec_pool(kind);
        spec_pool.failures += 1;
        spec_pool.last_failure = Some(Arc::new(error));
        if kind != ContainerSpec::default() {
            // Who asks for the next one has it built.
            spec_pool.target_size = 0;
        }
        state.spec_pool(kind).available.notify_all();
        let pause = Duration::from_millis(RETRY_MS);
        self.wanted.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
    }

    fn node_name(&self) -> String {
        self.builder.config().node.clone()
    }

    /// The state stays usable when a thread has panicked: every change of it is complete under the lock.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
