//! The pool of containers that are built in advance. Filler threads keep a number of containers ready, and build another one
//! when one is taken. Containers of a non-default kind are kept ready from the first request until the requests stop.

mod mount_watcher;
mod root_cache;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_sys::namespace::HomeNamespaces;

use crate::builder::ContainerBuilder;
use crate::cgroup::NodeCgroups;
use crate::config::{ContainerConfig, ContainerSpec, RootCacheKey, RootReuseKey};
use crate::error::ContainerError;
use crate::handle::{Container, RootRecipient, RootSink};
use crate::host_init::HostInit;
use crate::root::cached::CachedRoot;

use self::mount_watcher::MountWatcher;
use self::root_cache::{DiscardedEntries, RootCache};

/// Limit on ready containers. Each takes a few hundred KiB of kernel memory, and a larger burst of forks is limited by
/// restoring children, not by building containers.
const SIZE_MAX: usize = 256;
/// Pause after a failed build, in milliseconds. A waiting request gets the error at once.
const RETRY_MS: u64 = 500;
/// Containers of a non-default kind are dropped after this time without a request, as zygotes are.
const UNUSED_LIMIT: Duration = Duration::from_secs(20);
/// While children are being started, at most this many containers are kept ready in addition to those that requests wait
/// for. The others are built after a quiet period, so building takes no CPU from the children of a fan-out.
const READY_WHILE_BUSY_MAX: usize = 4;
const QUIET_PERIOD: Duration = Duration::from_millis(20);
/// Number of threads that build containers. Building is mostly waiting: for RCU grace periods of the kernel, and for the
/// container's first process.
const FILLER_THREADS: usize = 4;

/// The ready containers, and the threads that build them. Dropping the pool ends containers that were not taken.
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
    /// Wakes the fillers: a container was taken, a request waits, or the pool stops.
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Every kind that was requested; the default kind from the start.
    by_spec: BTreeMap<ContainerSpec, SpecPool>,
    /// Roots of ended containers, for reuse.
    root_cache: RootCache,
    /// Time when a container was last taken.
    last_taken: Option<Instant>,
    /// Outdated containers and unused roots, which a filler will end.
    discarded: DiscardedEntries,
    stopping: bool,
}

/// The next task of a filler.
enum FillerTask {
    /// Build a container of a kind.
    Build(ContainerSpec),
    /// Build a container with a cached root.
    Rebuild(RootCacheKey, Box<CachedRoot>),
    /// Build nothing before this time, or before the next request.
    Wait(Option<Instant>),
}

/// The containers of one kind.
#[derive(Debug, Default)]
struct SpecPool {
    ready: VecDeque<Container>,
    /// Number of containers being built.
    building: usize,
    /// Number of containers to keep ready.
    target_size: usize,
    /// Number of failed builds, and the cause of the last failure.
    failures: u64,
    last_failure: Option<Arc<ContainerError>>,
    /// Wakes requests: a container is ready, or a build failed.
    available: Arc<Condvar>,
    /// Number of waiting requests.
    waiting: usize,
    /// Time of the last request.
    last_requested: Option<Instant>,
}

impl ContainerPool {
    /// Starts to keep `size` containers of each kind ready (at least 1, at most 256). They are built in the background. A
    /// permanent problem, such as a missing directory, is returned as an error here.
    ///
    /// # Errors
    /// The [`ContainerError`] of the first step that fails.
    pub fn start(config: ContainerConfig, size: usize) -> Result<Self, ContainerError> {
        let size = size.clamp(1, SIZE_MAX);
        let usual = SpecPool { target_size: size, ..SpecPool::default() };
        let by_spec = BTreeMap::from([(ContainerSpec::default(), usual)]);
        let root_cache = RootCache::new(config.cached_roots_max, config.cached_roots_unused_limit);
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
            // If one cannot be started, dropping the pool ends the others.
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
    /// The [`ContainerError`] of the first step that fails.
    pub fn start_host_init(&self) -> Result<HostInit, ContainerError> {
        self.shared.builder.start_host_init()
    }

    /// The number of ready containers of a kind.
    pub fn ready_count(&self, kind: impl Into<ContainerSpec>) -> usize {
        self.shared
            .lock()
            .by_spec
            .get(&self.shared.builder.effective_spec(kind.into()))
            .map_or(0, |spec_pool| spec_pool.ready.len())
    }

    /// Takes a ready container; waits for one until `deadline`. The first container of a non-default kind is built during
    /// the call.
    ///
    /// # Errors
    /// [`ContainerError::PoolEmpty`] if the deadline has passed. [`ContainerError::PoolBuild`] if none is ready and the
    /// build fails. [`ContainerError::TooManyContainers`] at the limit on containers. [`ContainerError::PoolStopping`].
    pub fn take(&self, kind: impl Into<ContainerSpec>, deadline: Instant) -> Result<Container, ContainerError> {
        let kind = self.shared.builder.effective_spec(kind.into());
        self.shared.take(kind, None, deadline)
    }

    /// Like [`Self::take`], but the container may have the root of an ended container with the same key. Its own root may be
    /// reused later.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_with_reuse(
        &self,
        root_reuse_key: &RootReuseKey,
        kind: impl Into<ContainerSpec>,
        deadline: Instant,
    ) -> Result<Container, ContainerError> {
        let spec = self.shared.builder.effective_spec(kind.into());
        let key = RootCacheKey { spec, reuse_key: root_reuse_key.clone() };
        let is_wanted = spec.has_reusable_root() && self.shared.lock().root_cache.record_request(&key, Instant::now());
        let mut container = self.shared.take(spec, is_wanted.then_some(&key), deadline)?;
        if is_wanted {
            let sink = Arc::downgrade(&self.shared);
            container.set_root_recipient(RootRecipient { key, sink });
        }
        Ok(container)
    }

    /// The number of cached roots, and the number of ready containers with one of them.
    pub fn root_counts(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.root_cache.root_count(), state.root_cache.ready_count())
    }

    /// Drops the roots of a lineage that will have no more children.
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
    fn return_root(&self, key: &RootCacheKey, root: CachedRoot) {
        let mut discarded = DiscardedEntries::default();
        if root.mounts_version() != self.builder.mounts_version() {
            tracing::debug!(line = &*key.reuse_key.lineage, "a root is not kept: the node's mounts have changed");
            return;
        }
        let mut state = self.lock();
        match state.stopping {
            true => drop(state),
            false => {
                state.root_cache.insert(key, root, Instant::now(), &mut discarded);
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

    /// Records that a container with a cached root was built, or that its build failed. After a successful build, wakes
    /// a waiting request.
    fn finish_rebuild(&mut self, key: &RootCacheKey, built: Result<Container, ContainerError>) {
        if !self.root_cache.finish_rebuild(key, built, Instant::now()) {
            return;
        }
        let waiting_for_root = self.root_cache.waiter_count(key);
        let spec_pool = self.spec_pool(key.spec);
        match spec_pool.waiting == waiting_for_root {
            true => spec_pool.available.notify_one(),
            // Wake all: other requests wait too, and notify_one might wake one that cannot use this root.
            false => spec_pool.available.notify_all(),
        }
    }

    /// Drops containers of non-default kinds without recent requests, and unused roots. Returns when the next ones expire.
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

    /// The next task of a filler.
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

    /// The kind with the most missing containers, if any are missing.
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

    /// Takes the container that has been ready longest. Discards containers that do not show the current mounts.
    fn take_current(&mut self, kind: ContainerSpec) -> Option<Container> {
        loop {
            match self.spec_pool(kind).ready.pop_front()? {
                container if container.is_current() => return Some(container),
                container => self.discarded.containers.push(container),
            }
        }
    }

    /// Like [`Self::take_current`], but prefers a container with a root that `root_key` may reuse.
    fn take_container(&mut self, kind: ContainerSpec, root_key: Option<&RootCacheKey>) -> Option<Container> {
        while let Some(container) = root_key.and_then(|key| self.root_cache.take_container(key)) {
            match container.is_current() {
                true => return Some(container),
                false => self.discarded.containers.push(container),
            }
        }
        self.take_current(kind)
    }

    fn update_waiters(&mut self, kind: ContainerSpec, root_key: Option<&RootCacheKey>, begins: bool) {
        let waiting = &mut self.spec_pool(kind).waiting;
        *waiting = if begins { *waiting + 1 } else { *waiting - 1 };
        if let Some(key) = root_key {
            self.root_cache.update_waiters(key, begins);
        }
    }
}

impl PoolShared {
    /// Builds the first container of a kind. From now on the fillers keep more of them ready.
    fn build_first(&self, kind: ContainerSpec) -> Result<Container, ContainerError> {
        let container = self.builder.build(kind, None)?;
        self.lock().spec_pool(kind).target_size = self.size;
        self.wanted.notify_all();
        Ok(container)
    }

    /// Takes a container of a kind, with or without a root key.
    fn take(
        &self,
        kind: ContainerSpec,
        root_key: Option<&RootCacheKey>,
        deadline: Instant,
    ) -> Result<Container, ContainerError> {
        let is_kept = self.lock().touch_spec_pool(kind).target_size > 0;
        match is_kept {
            true => self.take_ready(kind, root_key, deadline),
            false => self.build_first(kind),
        }
    }

    fn take_ready(
        &self,
        kind: ContainerSpec,
        root_key: Option<&RootCacheKey>,
        deadline: Instant,
    ) -> Result<Container, ContainerError> {
        let began = Instant::now();
        let mut state = self.lock();
        let failures = state.spec_pool(kind).failures;
        let mut phase = None;
        state.update_waiters(kind, root_key, true);
        let taken = loop {
            if state.stopping {
                break Err(ContainerError::PoolStopping { node: self.node_name() });
            }
            if let Some(container) = state.take_container(kind, root_key) {
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
        state.update_waiters(kind, root_key, false);
        self.wanted.notify_one();
        taken
    }

    /// The body of a filler thread: builds containers one at a time while too few are ready. Does not hold the lock during a
    /// build.
    fn run_filler(&self) {
        if let Err(error) = self.builder.cgroups().unlimited_group().enter() {
            tracing::warn!(%error, "cannot enter the common control group; each container's init is moved");
        }
        let home = HomeNamespaces::of_this_thread();
        let home = home.inspect_err(|error| tracing::warn!(%error, "cannot open this thread's namespaces; each container is built by a new thread")).ok();
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
                    let built = self.builder.build_on_root(key.spec, *root, home.as_ref());
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
                // The node's mounts changed during the build, or init has ended.
                Ok(container) if !container.is_current() => state.discarded.containers.push(container),
                Ok(container) => {
                    let spec_pool = state.spec_pool(kind);
                    spec_pool.ready.push_back(container);
                    // Wake one request: there is only one container.
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

    /// Reports the failure to waiting requests, then pauses until a request needs the next attempt or the pause ends.
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
            // The next request builds it again.
            spec_pool.target_size = 0;
        }
        state.spec_pool(kind).available.notify_all();
        let pause = Duration::from_millis(RETRY_MS);
        self.wanted.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
    }

    fn node_name(&self) -> String {
        self.builder.config().node.clone()
    }

    /// The state stays usable after a panic: every change of it is completed under the lock.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
