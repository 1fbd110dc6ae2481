//! Containers ahead of need: some threads keep a number of them built; who takes one makes them build the next. Kinds other than
//! the usual one are kept once the first was asked for, until nobody asks any more.

mod estates;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_sys::namespace::Home;

use crate::builder::Builder;
use crate::cgroup::NodeCgroups;
use crate::config::{ContainerConfig, ContainerSpec, Heirs};
use crate::error::ContainerError;
use crate::handle::{Container, Inherit};
use crate::outsider::Outsider;
use crate::root::kept::KeptRoot;

use self::estates::{Estates, Key, Stale};

/// Most containers kept ready: each holds a few hundred KiB of kernel memory, and a burst of forks larger than this
/// is limited by restoring children, not by building containers.
const SIZE_MAX: usize = 256;
/// Pause after a container could not be built, in milliseconds; a request that waits is told at once.
const RETRY_MS: u64 = 500;
/// Containers of another kind than the usual one go after so long without use, as zygotes do.
const UNUSED_LIMIT: Duration = Duration::from_secs(20);
/// While children are being started one after the other, no more than so many containers are kept ready beyond what is waited for: the others are
/// built when none was taken for a while, and so take no processor from the children of a fan-out.
const READY_MEANWHILE: usize = 4;
const QUIET: Duration = Duration::from_millis(20);
/// Threads that build. Most of the time that one takes to build a container it waits: for grace periods of the kernel, and for
/// the container's first process.
const FILLERS: usize = 4;

/// Containers ready to be taken. Dropping it ends those that were not taken.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    fillers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    builder: Arc<Builder>,
    size: usize,
    state: Mutex<State>,
    /// A container was taken, a request waits, or the pool stops: for the fillers.
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Each kind that was asked for; the usual one from the start.
    shelves: BTreeMap<ContainerSpec, Shelf>,
    /// What containers that have ended left to others.
    estates: Estates,
    /// When a container was last taken.
    taken: Option<Instant>,
    /// Containers that no longer show the node's mounts as they are, and roots that nobody is to have: for a filler to end.
    stale: Stale,
    stopping: bool,
}

/// What a filler is to do.
enum Next {
    /// Build a container of a kind.
    Build(ContainerSpec),
    /// Build one around a root that was left.
    Rebuild(Key, Box<KeptRoot>),
    /// Nothing, or nothing before that.
    Wait(Option<Instant>),
}

/// The containers of one kind.
#[derive(Debug, Default)]
struct Shelf {
    ready: VecDeque<Container>,
    /// How many are being built for it.
    building: usize,
    /// How many shall be ready.
    size: usize,
    /// How many builds have failed, and why the last one did.
    failures: u64,
    last_failure: Option<Arc<ContainerError>>,
    /// A container is there, or one could not be built: for requests.
    supplied: Arc<Condvar>,
    /// Requests that wait for it.
    waiting: usize,
    /// When one was last asked for.
    used: Option<Instant>,
}

impl Pool {
    /// Starts to keep `size` containers of each kind ready (at least 1, at most 256). They are built in the background; what cannot
    /// work at all, such as a missing init program, is an error now.
    ///
    /// # Errors
    /// [`ContainerError`] as the first step that fails.
    pub fn start(config: ContainerConfig, size: usize) -> Result<Self, ContainerError> {
        let size = size.clamp(1, SIZE_MAX);
        let usual = Shelf { size, ..Shelf::default() };
        let shelves = BTreeMap::from([(ContainerSpec::default(), usual)]);
        let estates = Estates::new(config.kept_roots_max);
        let shared = Arc::new(Shared {
            builder: Arc::new(Builder::new(config)?),
            size,
            state: Mutex::new(State { shelves, estates, ..State::default() }),
            wanted: Condvar::new(),
        });
        let mut pool = Self { shared, fillers: Vec::new() };
        for _ in 0..FILLERS.min(size) {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name("container-pool".to_owned());
            // Those that there are end with the pool.
            pool.fillers.push(thread.spawn(move || shared.fill()).map_err(ContainerError::Thread)?);
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
    pub fn start_outside(&self) -> Result<Outsider, ContainerError> {
        self.shared.builder.start_outside()
    }

    /// How many containers of a kind are ready to be taken.
    pub fn ready(&self, kind: impl Into<ContainerSpec>) -> usize {
        self.shared.lock().shelves.get(&self.shared.builder.kind(kind.into())).map_or(0, |shelf| shelf.ready.len())
    }

    /// Takes a container, waiting for it until `deadline`. The first of a kind that is not the usual one is built for the
    /// request.
    ///
    /// # Errors
    /// [`ContainerError::Empty`] when the time is over, [`ContainerError::Build`] when none is ready and one could not
    /// be built, [`ContainerError::Full`] at the limit on containers, [`ContainerError::Stopping`].
    pub fn take(&self, kind: impl Into<ContainerSpec>, deadline: Instant) -> Result<Container, ContainerError> {
        let kind = self.shared.builder.kind(kind.into());
        self.shared.take((kind, None), deadline)
    }

    /// The same for one of `heirs`: it may be in the root of another of them that has ended without a trace there, and others may be in its
    /// root after it.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_for(
        &self,
        heirs: &Heirs,
        kind: impl Into<ContainerSpec>,
        deadline: Instant,
    ) -> Result<Container, ContainerError> {
        let key = (self.shared.builder.kind(kind.into()), heirs.clone());
        let is_wanted = key.0.may_leave_root() && self.shared.lock().estates.ask(&key, Instant::now());
        let mut container = self.shared.take((key.0, is_wanted.then_some(&key)), deadline)?;
        if is_wanted {
            let keeper = Arc::downgrade(&self.shared);
            container.bequeath((key.1, keeper));
        }
        Ok(container)
    }

    /// How many roots of containers that have ended are kept, and around how many of them another is ready.
    pub fn roots(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.estates.kept(), state.estates.ready())
    }

    /// Gives up what was left to a line of which no more will come.
    pub fn forget_heirs(&self, line: &str) {
        let mut stale = Stale::default();
        self.shared.lock().estates.give_up(Instant::now(), |heirs| *heirs.line == *line, &mut stale);
    }
}

impl Inherit for Shared {
    fn inherit(&self, kind: ContainerSpec, heirs: &Heirs, root: KeptRoot) {
        let mut stale = Stale::default();
        let mut state = self.lock();
        match state.stopping {
            true => drop(state),
            false => {
                state.estates.keep(&(kind, heirs.clone()), root, Instant::now(), &mut stale);
                drop(state);
                self.wanted.notify_one();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.stopping = true;
            state.shelves.values().for_each(|shelf| shelf.supplied.notify_all());
        }
        self.shared.wanted.notify_all();
        for filler in self.fillers.drain(..) {
            let _ = filler.join();
        }
        let mut state = self.shared.lock();
        let State { shelves, estates, stale, .. } = &mut *state;
        let unused = (std::mem::take(shelves), std::mem::take(estates), std::mem::take(stale));
        drop(state);
        drop(unused);
        self.shared.builder.close();
    }
}

impl State {
    fn shelf(&mut self, kind: ContainerSpec) -> &mut Shelf {
        self.shelves.entry(kind).or_default()
    }

    fn use_shelf(&mut self, kind: ContainerSpec) -> &mut Shelf {
        let shelf = self.shelf(kind);
        shelf.used = Some(Instant::now());
        shelf
    }

    /// A container in the root of another is there, or could not be built.
    fn add_inherited(&mut self, key: &Key, built: Result<Container, ContainerError>) {
        if !self.estates.add(key, built, Instant::now()) {
            return;
        }
        let for_heirs = self.estates.waiting(key);
        let shelf = self.shelf(key.0);
        match shelf.waiting == for_heirs {
            true => shelf.supplied.notify_one(),
            // Among others whom it is not for.
            false => shelf.supplied.notify_all(),
        }
    }

    /// Gives up kinds that were not asked for since, but for the usual one, and what was left to others; tells when the next is to go.
    fn give_up_unused(&mut self, now: Instant) -> Option<Instant> {
        let mut next = self.estates.give_up(now, |_| false, &mut self.stale);
        let is_kept = |shelf: &Shelf| shelf.size > 0 || !shelf.ready.is_empty();
        let others =
            self.shelves.iter_mut().filter(|(kind, shelf)| **kind != ContainerSpec::default() && is_kept(shelf));
        for (_, shelf) in others {
            let goes = shelf.used.map_or(now, |used| used + UNUSED_LIMIT);
            if goes <= now {
                shelf.size = 0;
                self.stale.containers.extend(shelf.ready.drain(..));
            } else {
                next = next.into_iter().chain([goes]).min();
            }
        }
        next
    }

    /// What is to be built now.
    fn next(&mut self, now: Instant) -> Next {
        let quiet = self.taken.map(|taken| taken + QUIET).filter(|quiet| *quiet > now);
        let is_due = |kind: ContainerSpec, ready: usize, waiting: usize| {
            let shelf = self.shelves.get(&kind);
            let others = shelf.map_or(0, |shelf| shelf.ready.len() + shelf.building);
            quiet.is_none() || ready + others < READY_MEANWHILE + waiting
        };
        if let Some((key, root)) = self.estates.next(is_due) {
            return Next::Rebuild(key, Box::new(root));
        }
        match self.lacking(quiet.is_some()) {
            Some(kind) => Next::Build(kind),
            None => Next::Wait(quiet),
        }
    }

    /// Of which kind too few are ready: of several, the one that lacks most.
    fn lacking(&self, is_busy: bool) -> Option<ContainerSpec> {
        let wanted = |shelf: &Shelf| match is_busy {
            true => shelf.size.min(READY_MEANWHILE + shelf.waiting),
            false => shelf.size,
        };
        let lack = |shelf: &Shelf| wanted(shelf).saturating_sub(shelf.ready.len() + shelf.building);
        let (kind, shelf) = self.shelves.iter().max_by_key(|(_, shelf)| lack(shelf))?;
        (lack(shelf) > 0).then_some(*kind)
    }

    /// The container that has waited longest, if there is one that is as one built now would be.
    fn pop_current(&mut self, kind: ContainerSpec) -> Option<Container> {
        loop {
            match self.shelf(kind).ready.pop_front()? {
                container if container.is_current() => return Some(container),
                container => self.stale.containers.push(container),
            }
        }
    }

    /// The same, one in a root that was left to who asks first.
    fn pop(&mut self, (kind, heir): (ContainerSpec, Option<&Key>)) -> Option<Container> {
        while let Some(container) = heir.and_then(|key| self.estates.pop(key)) {
            match container.is_current() {
                true => return Some(container),
                false => self.stale.containers.push(container),
            }
        }
        self.pop_current(kind)
    }

    fn wait(&mut self, (kind, heir): (ContainerSpec, Option<&Key>), begins: bool) {
        let waiting = &mut self.shelf(kind).waiting;
        *waiting = if begins { *waiting + 1 } else { *waiting - 1 };
        if let Some(key) = heir {
            self.estates.wait(key, begins);
        }
    }
}

impl Shared {
    /// The first of a kind; it makes the fillers keep more of them.
    fn build_first(&self, kind: ContainerSpec) -> Result<Container, ContainerError> {
        let container = self.builder.build(kind, None)?;
        self.lock().shelf(kind).size = self.size;
        self.wanted.notify_all();
        Ok(container)
    }

    /// Takes one of a kind, for an heir or not.
    fn take(&self, wanted: (ContainerSpec, Option<&Key>), deadline: Instant) -> Result<Container, ContainerError> {
        let is_kept = self.lock().use_shelf(wanted.0).size > 0;
        match is_kept {
            true => self.take_ready(wanted, deadline),
            false => self.build_first(wanted.0),
        }
    }

    fn take_ready(
        &self,
        wanted: (ContainerSpec, Option<&Key>),
        deadline: Instant,
    ) -> Result<Container, ContainerError> {
        let kind = wanted.0;
        let began = Instant::now();
        let mut state = self.lock();
        let failures = state.shelf(kind).failures;
        let mut phase = None;
        state.wait(wanted, true);
        let taken = loop {
            if state.stopping {
                break Err(ContainerError::Stopping { node: self.node() });
            }
            if let Some(container) = state.pop(wanted) {
                state.taken = Some(Instant::now());
                break Ok(container);
            }
            let shelf = state.shelf(kind);
            if let Some(cause) = shelf.last_failure.clone().filter(|_| shelf.failures != failures) {
                break Err(ContainerError::Build { node: self.node(), cause });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited_ms = began.elapsed().as_millis() as u64;
                break Err(ContainerError::Empty { node: self.node(), size: self.size, waited_ms });
            }
            phase.get_or_insert_with(|| tracing::debug_span!(target: "farfork::phase", "container.wait").entered());
            self.wanted.notify_one();
            let supplied = state.shelf(kind).supplied.clone();
            state = supplied.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.wait(wanted, false);
        self.wanted.notify_one();
        taken
    }

    /// A filler thread: builds while there are too few, one at a time, and never holds the lock meanwhile.
    fn fill(&self) {
        if let Err(error) = self.builder.cgroups().all_unlimited().enter() {
            tracing::warn!(%error, "each container's init has to be moved into its control groups");
        }
        let home = Home::of_this_thread();
        let home =
            home.inspect_err(|error| tracing::warn!(%error, "each container is built by a thread of its own")).ok();
        let mut state = self.lock();
        while !state.stopping {
            let next = state.give_up_unused(Instant::now());
            let stale = std::mem::take(&mut state.stale);
            if !stale.is_empty() {
                drop(state);
                drop(stale);
                state = self.lock();
                continue;
            }
            let kind = match state.next(Instant::now()) {
                Next::Build(kind) => kind,
                Next::Rebuild(key, root) => {
                    drop(state);
                    let built = self.builder.rebuild(key.0, *root, home.as_ref());
                    state = self.lock();
                    state.add_inherited(&key, built);
                    continue;
                }
                Next::Wait(quiet) => {
                    state = self.wait_wanted(state, next.into_iter().chain(quiet).min());
                    continue;
                }
            };
            state.shelf(kind).building += 1;
            drop(state);
            let built = self.builder.build(kind, home.as_ref());
            state = self.lock();
            state.shelf(kind).building -= 1;
            match built {
                Ok(container) => {
                    let shelf = state.shelf(kind);
                    shelf.ready.push_back(container);
                    // It is for one: the others would only see that it is gone.
                    shelf.supplied.notify_one();
                }
                Err(error) => state = self.note_failure(state, kind, error),
            }
        }
    }

    fn wait_wanted<'a>(&self, state: MutexGuard<'a, State>, until: Option<Instant>) -> MutexGuard<'a, State> {
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            Some(left) => self.wanted.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            None => self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Tells waiting requests, then pauses unless somebody is waiting for the next attempt.
    fn note_failure<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        kind: ContainerSpec,
        error: ContainerError,
    ) -> MutexGuard<'a, State> {
        tracing::warn!(node = self.builder.config().node, %error, "a container could not be built");
        let shelf = state.shelf(kind);
        shelf.failures += 1;
        shelf.last_failure = Some(Arc::new(error));
        if kind != ContainerSpec::default() {
            // Who asks for the next one has it built.
            shelf.size = 0;
        }
        state.shelf(kind).supplied.notify_all();
        let pause = Duration::from_millis(RETRY_MS);
        self.wanted.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
    }

    fn node(&self) -> String {
        self.builder.config().node.clone()
    }

    /// The state stays usable when a thread has panicked: every change of it is complete under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RootSpec;

    #[test]
    fn kinds_that_nobody_asks_for_are_given_up() {
        let mut state = State::default();
        let (usual, other) = (ContainerSpec::default(), ContainerSpec::from(RootSpec::Shared));
        for kind in [usual, other] {
            state.use_shelf(kind).size = 3;
        }
        let now = Instant::now();
        let goes = state.give_up_unused(now).expect("one of them goes one day");
        assert!(goes > now && goes <= now + UNUSED_LIMIT);
        assert_eq!(state.give_up_unused(goes), None);
        assert_eq!([usual, other].map(|kind| state.shelf(kind).size), [3, 0]);
    }

    #[test]
    fn what_can_wait_is_built_when_none_was_taken_for_a_while() {
        let (mut state, now, kind) = (State::default(), Instant::now(), ContainerSpec::default());
        state.shelf(kind).size = 8;
        state.taken = Some(now);
        assert!(matches!(state.next(now), Next::Build(_)), "too few");
        state.shelf(kind).building = READY_MEANWHILE;
        assert!(matches!(state.next(now), Next::Wait(Some(quiet)) if quiet == now + QUIET));
        state.shelf(kind).waiting = 1;
        assert!(matches!(state.next(now), Next::Build(_)), "one more is waited for");
        state.shelf(kind).waiting = 0;
        assert!(matches!(state.next(now + QUIET), Next::Build(_)));
        state.shelf(kind).building = 8;
        assert!(matches!(state.next(now + QUIET), Next::Wait(None)));
    }
}
