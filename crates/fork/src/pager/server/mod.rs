//! The pager's loop: waits for faults, replies, requests and timeouts, and calls the code that handles each. `keeper`
//! runs it. One loop in one thread serves all children.

mod cpu_placement;
pub(super) mod event_poller;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use farfork_fabric::{AdaptiveSpin, Address, Completion};
use farfork_sys::allocator;
use farfork_sys::userfaultfd::{UffdEvent, Userfaultfd};
use farfork_wire::{ChildId, NodeName, SeedId};

use super::cache::{CACHED_SLOTS_PER_ROUND_MAX, PageCache};
use super::child::{Child, ChildSource};
use super::control::ClientConnections;
use super::faults::retry_queue::{CompletedRead, RetryQueue, RetryTask};
use super::journal::AddressSpaceId;
use super::keeper::context::KeeperContext;
use super::keeper::trust_policy::TrustPolicy;
use super::owner_connections::{Lane, OwnerConnections, OwnerConnector, OwnerKey};
use super::working_set::{PrewarmJob, WorkingSetCache};
use crate::idle_detector::IdleDetector;
use cpu_placement::CpuPlacement;
use event_poller::{EventPoller, EventSource};

/// Interval of the periodic tasks, such as the search for ended processes, whose end causes no message.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How long to poll for the rest of a stream before sleeping. An owner needs about 100 µs for a reply, and a pager that
/// sleeps may be woken on the owner's CPU.
const STREAM_SPIN_TIME: Duration = Duration::from_micros(200);

/// Number of stream steps per round while no thread waits for a single page. They share the other costs of a round.
const IDLE_STREAM_STEPS: u32 = 4;

/// After a thread has waited for a single page, another such wait is expected within this time. A thread that touches
/// scattered memory computes for a millisecond or two between touches.
const DEMAND_QUIET_TIME: Duration = Duration::from_millis(10);

/// Time limit of the pause of a stream for a page that a thread waits for. A nearby owner replies within this time.
const DEMAND_STALL_MAX: Duration = Duration::from_micros(100);

/// Time without another pause after a page has not arrived in time. So a distant owner slows a stream by at most 5 %.
const STALL_RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Pause before the messages of an address space are read again after EMFILE.
pub(super) const FD_TABLE_FULL_BACKOFF: Duration = Duration::from_millis(50);

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerExit {
    /// A client has stopped the pager.
    Stopped,
    /// A client has requested that another pager replaces this one.
    Replaced,
    /// The keeper is gone: this process must become the keeper.
    KeeperGone,
}

/// A child and the keys of its sources' owners, in the order of the sources.
#[derive(Debug)]
pub(super) struct ServedChild {
    pub(super) child: Child,
    pub(super) owners: Vec<OwnerKey>,
}

/// A request for a page that a thread waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct DemandRequest {
    /// The thread's child.
    pub(super) child: u64,
    /// The child's first process, if it is the faulting one and known.
    pub(super) pid: Option<i32>,
    /// The owner.
    pub(super) owner: OwnerKey,
    /// Whether the page is requested alone.
    pub(super) is_single: bool,
}

/// The pager's loop and its state.
pub(super) struct PagerServer<'a> {
    pub(super) context: &'a KeeperContext,
    pub(super) poller: EventPoller,
    pub(super) children: BTreeMap<u64, ServedChild>,
    /// The keys of the children, by id.
    pub(super) child_keys: BTreeMap<ChildId, u64>,
    pub(super) owners: OwnerConnections,
    pub(super) retries: RetryQueue,
    pub(super) clients: ClientConnections,
    pub(super) now: Instant,
    /// Lanes on which something was submitted, or whose descriptors are readable.
    pub(super) lanes_to_poll: BTreeSet<(OwnerKey, Lane)>,
    /// Prefetched pages that have arrived. Some are installed in each round.
    pub(super) completed_reads: VecDeque<CompletedRead>,
    pub(super) messages: Vec<UffdEvent>,
    /// Pages of other nodes' seeds, for further children.
    pub(super) cache: PageCache,
    /// Seeds that are being prewarmed.
    pub(super) prewarm_jobs: BTreeMap<SeedId, PrewarmJob>,
    /// Working sets that were read within the last second.
    pub(super) working_set_cache: WorkingSetCache,
    /// How many slots may still be installed from the cache in this round.
    pub(super) cache_install_budget: u64,
    /// The number of the holder's pidfd at the last check.
    pub(super) fd_holder_pidfd: RawFd,
    /// Userfaultfds of processes that no journal lists.
    pub(super) unclaimed: Vec<ManuallyDrop<Userfaultfd>>,
    /// Children that settle, in the order of their turns.
    pub(super) settle_queue: VecDeque<u64>,
    pub(super) next_child_key: u64,
    /// Set when the loop must end.
    pub(super) exit: Option<ServerExit>,
    /// The trust policy in use.
    pub(super) trust_policy: TrustPolicy,
    /// The request of this round for a page that a thread waits for.
    pub(super) demand_request: Option<DemandRequest>,
    /// The child whose demand read of a single page was completed in this round.
    pub(super) demand_completed_for: Option<u64>,
    /// When a stream last paused for a page that did not arrive in time.
    useless_stall_at: Option<Instant>,
    /// When a thread last waited for a single page.
    pub(super) single_fault_at: Option<Instant>,
    /// Whether the last step of a stream received data.
    last_step_received: bool,
    completions: Vec<Completion>,
    placement: CpuPlacement,
    spin: AdaptiveSpin,
    pub(super) next_sweep: Instant,
    idle_detector: IdleDetector,
}

impl<'a> PagerServer<'a> {
    /// Creates a pager without children.
    pub(super) fn new(keeper_context: &'a KeeperContext) -> io::Result<Self> {
        let trust_policy = keeper_context.load_trust_policy()?;
        let credentials = trust_policy.open_credentials()?;
        let connect: OwnerConnector =
            Box::new(move |address, node| farfork_fabric::connect_node(address, node, credentials.as_ref()));
        Self::with_owners(keeper_context, trust_policy, OwnerConnections::new(connect), Instant::now())
    }

    /// As `new`, with the given trust policy, owners and start time.
    pub(super) fn with_owners(
        keeper_context: &'a KeeperContext,
        trust_policy: TrustPolicy,
        owners: OwnerConnections,
        now: Instant,
    ) -> io::Result<Self> {
        let mut event_poller = EventPoller::new()?;
        event_poller.add(EventSource::Listener, keeper_context.listener())?;
        event_poller.add(EventSource::Keeper, keeper_context.keeper())?;
        Ok(Self {
            context: keeper_context,
            poller: event_poller,
            children: BTreeMap::new(),
            child_keys: BTreeMap::new(),
            owners,
            retries: RetryQueue::default(),
            clients: ClientConnections::default(),
            now,
            lanes_to_poll: BTreeSet::new(),
            completed_reads: VecDeque::new(),
            messages: Vec::new(),
            cache: PageCache::new(keeper_context.cache_bytes_max()),
            prewarm_jobs: BTreeMap::new(),
            working_set_cache: WorkingSetCache::default(),
            cache_install_budget: CACHED_SLOTS_PER_ROUND_MAX,
            fd_holder_pidfd: keeper_context.fd_holder_pidfd(),
            unclaimed: Vec::new(),
            settle_queue: VecDeque::new(),
            next_child_key: 0,
            exit: None,
            trust_policy,
            demand_request: None,
            demand_completed_for: None,
            useless_stall_at: None,
            single_fault_at: None,
            last_step_received: false,
            completions: Vec::new(),
            placement: CpuPlacement::default(),
            spin: AdaptiveSpin::new(now),
            next_sweep: now + SWEEP_INTERVAL,
            idle_detector: IdleDetector::new(now),
        })
    }

    /// Serves until the loop must end.
    pub(super) fn run(&mut self) -> io::Result<ServerExit> {
        let mut ready = Vec::new();
        loop {
            let timeout = self.poll_timeout();
            self.poller.wait(timeout, &mut ready)?;
            self.now = Instant::now();
            if !ready.is_empty() {
                self.spin.record_event(self.now);
            } else if timeout.is_zero() && self.completed_reads.is_empty() {
                // Yield: the peer that the pager waits for may need this CPU.
                self.spin.yield_cpu();
            }
            if ready.contains(&EventSource::Keeper) {
                return Ok(ServerExit::KeeperGone);
            }
            self.run_round(&ready);
            if !ready.is_empty() {
                self.spin.start_wait(Instant::now());
                ready.clear();
            }
            if let Some(end) = self.exit.take() {
                return Ok(end);
            }
        }
    }

    /// Does all work that is ready or due: first receives single pages, which end a thread's wait, then handles
    /// messages and requests, retries, prefetches, and the reads for which threads wait. Last, takes one step of a
    /// stream, or several. If a thread waits for a single page, streams of other children pause for it.
    pub(super) fn run_round(&mut self, ready: &[EventSource]) {
        let lanes = ready.iter().filter_map(|source| match source {
            EventSource::Owner(owner, lane) => Some((*owner, *lane)),
            _ => None,
        });
        self.lanes_to_poll.extend(lanes);
        self.mark_due_lanes();
        self.poll_lanes(Lane::Demand);
        for source in ready {
            match *source {
                EventSource::Space(child, space) => self.handle_messages(child, space),
                EventSource::UffdSocket(child) => self.receive_userfaultfds(child),
                EventSource::Listener => self.accept_client(),
                EventSource::Client(client) => self.handle_client(client),
                EventSource::Owner(..) | EventSource::Keeper => {}
            }
        }
        for (task, paused_tries) in self.retries.take_due(self.now) {
            match task {
                RetryTask::Fault(fault) => self.handle_fault(fault, paused_tries),
                RetryTask::CompletedRead(completed_read) => self.install_completed_read(completed_read, paused_tries),
                RetryTask::WatchSpace { child, space } => self.watch_space(child, space),
                RetryTask::ResolveFork { child, space } => self.resolve_fork(child, space),
                RetryTask::Prefetch(owner, prefetch_request) => self.owners.queue_prefetch(owner, prefetch_request),
            }
        }
        self.submit_prefetch_reads();
        self.poll_lanes(Lane::Demand);
        let streams = !self.completed_reads.is_empty() || self.owners.has_bulk_reads();
        match self.demand_request.take() {
            Some(read) if read.is_single && self.has_stream_for_others(read.child) => self.stall_stream(read.owner),
            Some(_) if streams => self.yield_cpu(),
            Some(read) => self.placement.on_single_fault(read.pid, self.now),
            None => {}
        }
        if self.demand_completed_for.take().is_some_and(|child| self.has_stream_for_others(child)) {
            self.yield_cpu();
        }
        self.advance_stream();
        if self.now >= self.next_sweep {
            self.run_periodic_tasks();
        }
    }

    /// If a lane's timeout has passed, marks all lanes to be polled, although their descriptors are not readable.
    fn mark_due_lanes(&mut self) {
        if self.owners.next_timeout().is_some_and(|due| due <= self.now) {
            let keys = self.owners.keys();
            self.lanes_to_poll.extend(keys.into_iter().flat_map(|key| [(key, Lane::Demand), (key, Lane::Bulk)]));
        }
    }

    /// Whether stream data for other children is in flight, or waits to be installed.
    fn has_stream_for_others(&self, child: u64) -> bool {
        self.completed_reads.iter().any(|completed_read| completed_read.read.target.child != child)
            || self.owners.has_bulk_read_for_others(child)
    }

    /// Pauses the stream until the page that a thread waits for has arrived, for at most [`DEMAND_STALL_MAX`].
    fn stall_stream(&mut self, owner: OwnerKey) {
        let was_in_vain =
            self.useless_stall_at.is_some_and(|at| self.now.saturating_duration_since(at) < STALL_RETRY_PAUSE);
        if was_in_vain || self.owners.descriptor(owner, Lane::Demand).is_none() {
            return self.yield_cpu();
        }
        let until = Instant::now() + DEMAND_STALL_MAX;
        while self.owners.has_demand_read(owner) {
            let now = Instant::now();
            if now >= until {
                self.useless_stall_at = Some(self.now);
                return;
            }
            if self.spin.is_cpu_shared(now) {
                self.owners.wait_readable(owner, Lane::Demand, until - now);
            } else {
                self.spin.yield_cpu();
            }
            self.lanes_to_poll.insert((owner, Lane::Demand));
            self.poll_lanes(Lane::Demand);
        }
    }

    /// Lets the owner that sends the page, or the thread that got it, run on this CPU before the stream continues.
    fn yield_cpu(&mut self) {
        if self.spin.should_spin_for(self.now, STREAM_SPIN_TIME) {
            self.spin.yield_cpu();
        }
    }

    /// Takes one step of the stream, or several if no thread is likely to need a single page soon.
    fn advance_stream(&mut self) {
        self.step_stream();
        let is_calm = self.single_fault_at.is_none_or(|at| self.now.saturating_duration_since(at) >= DEMAND_QUIET_TIME);
        for _ in 1..if is_calm { IDLE_STREAM_STEPS } else { 1 } {
            self.mark_due_lanes();
            if self.lanes_to_poll.is_empty() && self.completed_reads.is_empty() {
                return;
            }
            self.step_stream();
        }
    }

    /// Takes one step of the stream: sends and receives, or installs received pages. Alternates if both are possible.
    fn step_stream(&mut self) {
        let installs = !self.completed_reads.is_empty() && (self.lanes_to_poll.is_empty() || self.last_step_received);
        self.last_step_received = !installs;
        if !installs {
            self.poll_lanes(Lane::Bulk);
        } else if let Some(completed_read) = self.completed_reads.pop_front() {
            self.install_completed_read(completed_read, 0);
        }
    }

    /// Sends and receives on the marked lanes of this kind, and handles the completed requests.
    fn poll_lanes(&mut self, lane: Lane) {
        let mut completions = std::mem::take(&mut self.completions);
        let lanes: Vec<_> = self.lanes_to_poll.extract_if(.., |(_, of)| *of == lane).collect();
        for (owner, lane) in lanes {
            self.owners.poll(owner, lane, self.now, &mut completions);
            if lane == Lane::Bulk && !completions.is_empty() {
                self.placement.on_stream_data(self.owners.incoming_cpu(owner), self.now);
            }
            completions.drain(..).for_each(|completion| self.handle_completion(owner, lane, completion));
        }
        self.completions = completions;
    }

    /// Returns the longest time of the next wait; zero to poll.
    fn poll_timeout(&mut self) -> Duration {
        let now = Instant::now();
        let has_work =
            !self.lanes_to_poll.is_empty() || !self.completed_reads.is_empty() || self.cache_install_budget == 0;
        if has_work || self.should_spin(now) {
            return Duration::ZERO;
        }
        let until = |due: Instant| due.saturating_duration_since(now);
        let dues = [self.owners.next_timeout().map(until), self.retries.backoff_timeout(now)];
        dues.into_iter().flatten().fold(until(self.next_sweep), Duration::min)
    }

    /// Whether to poll rather than sleep.
    fn should_spin(&self, now: Instant) -> bool {
        self.spin.should_spin(now) || self.owners.has_bulk_reads() && self.spin.should_spin_for(now, STREAM_SPIN_TIME)
    }

    /// Closes the address spaces of processes that are gone, and does other periodic work.
    fn run_periodic_tasks(&mut self) {
        self.next_sweep = self.now + SWEEP_INTERVAL;
        self.children.keys().copied().collect::<Vec<u64>>().into_iter().for_each(|key| self.close_ended_spaces(key));
        self.close_unclaimed();
        self.close_dead_holder_pidfds();
        self.revalidate_cache();
        self.report_all_accesses();
        self.fill_zygotes();
        self.close_idle_owners();
        if self.idle_detector.has_become_idle(self.now) {
            allocator::trim_heap();
        }
        if self.children.is_empty() && !self.context.is_reachable() {
            tracing::warn!("the run directory is gone and no child is served: the pager ends");
            self.exit = Some(ServerExit::Stopped);
        }
    }

    /// Closes the address spaces of a child's processes that are gone.
    pub(super) fn close_ended_spaces(&mut self, key: u64) {
        let Some(served) = self.children.get(&key) else { return };
        let spaces = served.child.spaces.iter();
        let is_gone = spaces.filter(|(_, address_space)| address_space.uffd().is_process_gone());
        let gone: Vec<AddressSpaceId> = is_gone.map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|space| self.close_space(key, space));
        self.prune_stub_queue(key);
    }

    /// Serves a child from now on.
    ///
    /// # Errors
    /// As epoll_ctl(2), socket(2). The child is then not served, and its descriptors are unchanged.
    pub(super) fn serve_child(&mut self, child: Child) -> io::Result<()> {
        let owners = self.attach_owners(&child.sources)?;
        self.insert_child(child, owners)
    }

    /// Serves a child whose owners are attached.
    ///
    /// # Errors
    /// As epoll_ctl(2), if the child's userfaultfd has not arrived.
    pub(super) fn insert_child(&mut self, child: Child, owners: Vec<OwnerKey>) -> io::Result<()> {
        let key = self.next_child_key;
        self.next_child_key += 1;
        if let Some(socket) = &child.uffd_socket {
            self.poller.add(EventSource::UffdSocket(key), &**socket)?;
        }
        let spaces: Vec<AddressSpaceId> = child.spaces.keys().copied().collect();
        self.child_keys.insert(child.id.clone(), key);
        self.children.insert(key, ServedChild { child, owners });
        for space in spaces {
            self.watch_space(key, space);
            self.resolve_fork(key, space);
        }
        self.enqueue_settle(key);
        Ok(())
    }

    /// Attaches the owners of these sources, in their order.
    pub(super) fn attach_owners(&mut self, sources: &[ChildSource]) -> io::Result<Vec<OwnerKey>> {
        let mut owners = Vec::with_capacity(sources.len());
        for source in sources {
            match self.attach_owner(&source.owner, source.key.seed.node()) {
                Ok(owner) => owners.push(owner),
                Err(error) => {
                    self.detach_owners(owners);
                    return Err(error);
                }
            }
        }
        Ok(owners)
    }

    /// Attaches an owner, as one more user of it.
    pub(super) fn attach_owner(&mut self, address: &Address, node: &NodeName) -> io::Result<OwnerKey> {
        let (owner, new) = self.owners.attach(address, node)?;
        for lane in [Lane::Demand, Lane::Bulk].into_iter().filter(|_| new) {
            if let Some(fd) = self.owners.descriptor(owner, lane) {
                self.poller.add(EventSource::Owner(owner, lane), fd)?;
            }
        }
        Ok(owner)
    }

    /// Detaches one user from each owner.
    pub(super) fn detach_owners(&mut self, owners: Vec<OwnerKey>) {
        owners.into_iter().for_each(|owner| self.owners.detach(owner, self.now));
        self.close_idle_owners();
    }

    /// Watches an address space.
    pub(super) fn watch_space(&mut self, key: u64, space: AddressSpaceId) {
        let Some(served) = self.children.get(&key) else { return };
        let Some(address_space) = served.child.spaces.get(&space) else { return };
        if let Err(error) = self.poller.add(EventSource::Space(key, space), address_space) {
            tracing::error!("child {}: its faults cannot be watched: {error}; retrying", served.child.id);
            self.retries.push(RetryTask::WatchSpace { child: key, space }, self.now, FD_TABLE_FULL_BACKOFF, 0);
        }
    }

    /// Closes an address space whose process is gone, or that is no longer served. Removes the child if its release was
    /// requested and no address space is left.
    pub(super) fn close_space(&mut self, key: u64, space: AddressSpaceId) {
        let Some(served) = self.children.get_mut(&key) else { return };
        if let Some(gone) = served.child.spaces.get(&space) {
            self.poller.remove(EventSource::Space(key, space), gone);
            served.child.close_space(space);
        }
        if served.child.release_requested && served.child.has_ended() {
            self.remove_child(key);
        }
    }

    /// Stops serving a child.
    pub(super) fn remove_child(&mut self, key: u64) {
        self.report_accesses(key, true);
        let Some(ServedChild { mut child, owners }) = self.children.remove(&key) else { return };
        self.child_keys.remove(&child.id);
        self.context.registry().remove(&child.id);
        if let Some(socket) = &child.uffd_socket {
            self.poller.remove(EventSource::UffdSocket(key), &**socket);
        }
        child.close_sockets();
        self.detach_owners(owners);
    }

    fn close_idle_owners(&mut self) {
        for owner in self.owners.close_idle(self.now) {
            self.poller.remove_closed(EventSource::Owner(owner, Lane::Demand));
            self.poller.remove_closed(EventSource::Owner(owner, Lane::Bulk));
        }
    }
}
