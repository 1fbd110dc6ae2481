//! The pager's loop: waits for faults, replies, requests and time, and has each answered. One loop serves all children;
//! a second one, on another core, would have children of its own.
//!
//! Each round: single pages first (they end somebody's wait), then what children say, then what is to be done again, then
//! what may be fetched ahead; then what somebody waits for is asked for. Last comes one step of a stream: some of it is
//! received, or installed. Whoever waits for a page waits for one such step before it is asked for; others' streams then stand still
//! until it has come, where that is soon.
//! While nobody has waited for a single page lately, a round takes several steps.

mod placement;
pub(super) mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use farfork_fabric::{Address, Completion, Spin};
use farfork_sys::allocator;
use farfork_sys::userfaultfd::{Message, Userfaultfd};
use farfork_wire::{ChildId, NodeName, SeedId};

use super::cache::{CACHED_SLOTS_MAX, PageCache};
use super::child::{Child, ChildSource};
use super::control::Clients;
use super::faults::retries::{Delivery, Retries, Task};
use super::journal::SpaceNumber;
use super::keeper::station::Station;
use super::keeper::trusting::Trusting;
use super::owners::{Connect, Lane, OwnerKey, Owners};
use super::working_set::{RecentSets, Warming};
use crate::rest::Rest;
use placement::Placement;
use watch::{Source, Watch};

/// A process that ended says nothing; this often the pager looks who is gone.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How long to look for the rest of a stream before sleeping. It is on its way: an owner needs some 100 µs for a reply,
/// and whoever sleeps meanwhile may be woken on the owner's CPU.
const STREAM_LOOK: Duration = Duration::from_micros(200);

/// Steps of a stream in a round while nobody waits for single pages: what else a round does is done once for all of them.
const CALM_STEPS: u32 = 4;

/// How long after somebody waited for a single page the next such wait is expected: who thinks between two touches of memory
/// far away does so for a millisecond or two.
const CALM_AFTER: Duration = Duration::from_millis(10);

/// How long a stream stands still for a page that somebody waits for: an owner nearby has sent it by then.
const ANSWER_LIMIT: Duration = Duration::from_micros(100);

/// For how long no stream stands still after one did in vain: an owner far away costs it no more than a twentieth.
const IN_VAIN_PAUSE: Duration = Duration::from_millis(2);

/// How long a space is left alone whose messages cannot be read for want of a descriptor.
pub(super) const TABLE_FULL_PAUSE: Duration = Duration::from_millis(50);

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// A client asked for it.
    Stopped,
    /// A client asked for another pager in its place.
    Replaced,
    /// The keeper is gone: this process has to be the keeper now.
    KeeperGone,
}

/// A child and the owners of its pages, in the order of its sources.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) child: Child,
    pub(super) owners: Vec<OwnerKey>,
}

/// A page was asked for that a thread waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedForOne {
    /// The thread's child.
    pub(super) child: u64,
    /// Its process, where that is known.
    pub(super) pid: Option<i32>,
    /// Who was asked.
    pub(super) owner: OwnerKey,
    /// Whether nothing comes along with it.
    pub(super) is_alone: bool,
}

/// The pager.
pub(super) struct Server<'a> {
    pub(super) station: &'a Station,
    pub(super) watch: Watch,
    pub(super) children: BTreeMap<u64, Served>,
    /// Theirs, by name.
    pub(super) keys: BTreeMap<ChildId, u64>,
    pub(super) owners: Owners,
    pub(super) retries: Retries,
    pub(super) clients: Clients,
    pub(super) now: Instant,
    /// Lanes on which something was asked for in this round.
    pub(super) to_poll: BTreeSet<(OwnerKey, Lane)>,
    /// Pages fetched ahead that arrived and are to be installed, some in each round.
    pub(super) arrived: VecDeque<Delivery>,
    pub(super) messages: Vec<Message>,
    /// Pages of seeds of other nodes, for children to come.
    pub(super) cache: PageCache,
    /// Seeds whose working sets are being put there.
    pub(super) warming: BTreeMap<SeedId, Warming>,
    /// Working sets that were read a moment ago.
    pub(super) recent_sets: RecentSets,
    /// How many slots may still be installed from there in this round.
    pub(super) cached_room: u64,
    /// What led to the holder when it was last looked.
    pub(super) holder: RawFd,
    /// Of processes that a predecessor left no word of.
    pub(super) unclaimed: Vec<ManuallyDrop<Userfaultfd>>,
    /// Children that take the rest of their pages, in the order of their turns.
    pub(super) settling: VecDeque<u64>,
    pub(super) next_child: u64,
    /// Why it is to end, once it is.
    pub(super) end: Option<Ended>,
    /// Whom it trusts.
    pub(super) trusting: Trusting,
    /// Who was asked in this round for a page that a thread waits for.
    pub(super) asked_for_one: Option<AskedForOne>,
    /// The child to which such a page came in this round, alone.
    pub(super) brought_one: Option<u64>,
    /// When a stream last stood still for such a page in vain.
    in_vain_at: Option<Instant>,
    /// When somebody last waited for a single page.
    pub(super) single_at: Option<Instant>,
    /// Whether the last step of a stream received some.
    received_last: bool,
    completions: Vec<Completion>,
    placement: Placement,
    spin: Spin,
    pub(super) next_sweep: Instant,
    rest: Rest,
}

impl<'a> Server<'a> {
    /// A pager that serves nobody yet.
    pub(super) fn new(station: &'a Station) -> io::Result<Self> {
        let trusting = station.trusting()?;
        let credentials = trusting.open()?;
        let connect: Connect =
            Box::new(move |address, node| farfork_fabric::connect_node(address, node, credentials.as_ref()));
        Self::with_owners(station, trusting, Owners::new(connect), Instant::now())
    }

    /// One that begins at `now`, and reaches owners in this way.
    pub(super) fn with_owners(
        station: &'a Station,
        trusting: Trusting,
        owners: Owners,
        now: Instant,
    ) -> io::Result<Self> {
        let mut watch = Watch::new()?;
        watch.add(Source::Listener, station.listener())?;
        watch.add(Source::Keeper, station.keeper())?;
        Ok(Self {
            station,
            watch,
            children: BTreeMap::new(),
            keys: BTreeMap::new(),
            owners,
            retries: Retries::default(),
            clients: Clients::default(),
            now,
            to_poll: BTreeSet::new(),
            arrived: VecDeque::new(),
            messages: Vec::new(),
            cache: PageCache::new(station.cache_bytes_max()),
            warming: BTreeMap::new(),
            recent_sets: RecentSets::default(),
            cached_room: CACHED_SLOTS_MAX,
            holder: station.holder(),
            unclaimed: Vec::new(),
            settling: VecDeque::new(),
            next_child: 0,
            end: None,
            trusting,
            asked_for_one: None,
            brought_one: None,
            in_vain_at: None,
            single_at: None,
            received_last: false,
            completions: Vec::new(),
            placement: Placement::default(),
            spin: Spin::new(now),
            next_sweep: now + SWEEP_INTERVAL,
            rest: Rest::new(now),
        })
    }

    /// Serves until it is to end.
    pub(super) fn run(&mut self) -> io::Result<Ended> {
        let mut ready = Vec::new();
        loop {
            let patience = self.patience();
            self.watch.wait(patience, &mut ready)?;
            self.now = Instant::now();
            if !ready.is_empty() {
                self.spin.came(self.now);
            } else if patience.is_zero() && self.arrived.is_empty() {
                // Whoever is waited for may need this CPU.
                self.spin.give_way();
            }
            if ready.contains(&Source::Keeper) {
                return Ok(Ended::KeeperGone);
            }
            self.round(&ready);
            if !ready.is_empty() {
                self.spin.done(Instant::now());
                ready.clear();
            }
            if let Some(end) = self.end.take() {
                return Ok(end);
            }
        }
    }

    /// Does what is ready and what is due.
    pub(super) fn round(&mut self, ready: &[Source]) {
        let lanes = ready.iter().filter_map(|source| match source {
            Source::Owner(owner, lane) => Some((*owner, *lane)),
            _ => None,
        });
        self.to_poll.extend(lanes);
        self.note_due();
        self.poll_owners(Lane::Demand);
        for source in ready {
            match *source {
                Source::Space(child, space) => self.hear(child, space),
                Source::Socket(child) => self.welcome(child),
                Source::Listener => self.accept(),
                Source::Client(client) => self.converse(client),
                Source::Owner(..) | Source::Keeper => {}
            }
        }
        for (task, paused_tries) in self.retries.take_due(self.now) {
            match task {
                Task::Fault(fault) => self.answer(fault, paused_tries),
                Task::Delivery(delivery) => self.deliver(delivery, paused_tries),
                Task::Listen { child, space } => self.listen(child, space),
                Task::Doubt { child, space } => self.settle_doubt(child, space),
                Task::Ahead(owner, wish) => self.owners.queue(owner, wish),
            }
        }
        self.fetch_ahead();
        self.poll_owners(Lane::Demand);
        let streams = !self.arrived.is_empty() || self.owners.is_streaming();
        match self.asked_for_one.take() {
            Some(asked) if asked.is_alone && self.streams_to_others(asked.child) => self.stand_back(asked.owner),
            Some(_) if streams => self.let_run(),
            Some(asked) => self.placement.waits_for_one(asked.pid, self.now),
            None => {}
        }
        if self.brought_one.take().is_some_and(|child| self.streams_to_others(child)) {
            self.let_run();
        }
        self.advance_stream();
        if self.now >= self.next_sweep {
            self.sweep();
        }
    }

    /// Has the lanes polled that want it though their descriptors are silent.
    fn note_due(&mut self) {
        if self.owners.next_timeout().is_some_and(|due| due <= self.now) {
            let keys = self.owners.keys();
            self.to_poll.extend(keys.into_iter().flat_map(|key| [(key, Lane::Demand), (key, Lane::Bulk)]));
        }
    }

    /// Whether anything comes to other children that nobody waits for. A child's own stream it wants as much as the page.
    fn streams_to_others(&self, child: u64) -> bool {
        self.arrived.iter().any(|delivery| delivery.read.child != child) || self.owners.streams_to_others(child)
    }

    /// An owner was asked for a page that a thread waits for: the stream stands still until it has come, where that is soon.
    fn stand_back(&mut self, owner: OwnerKey) {
        let was_in_vain = self.in_vain_at.is_some_and(|at| self.now.saturating_duration_since(at) < IN_VAIN_PAUSE);
        if was_in_vain || self.owners.descriptor(owner, Lane::Demand).is_none() {
            return self.let_run();
        }
        let until = Instant::now() + ANSWER_LIMIT;
        while self.owners.is_waited_for(owner) {
            let now = Instant::now();
            if now >= until {
                self.in_vain_at = Some(self.now);
                return;
            }
            if self.spin.shares_cpu(now) {
                self.owners.wait(owner, Lane::Demand, until - now);
            } else {
                self.spin.give_way();
            }
            self.to_poll.insert((owner, Lane::Demand));
            self.poll_owners(Lane::Demand);
        }
    }

    /// Who is to send a page that is waited for, or has got one, may have to run on this CPU: does so before the stream goes on.
    fn let_run(&mut self) {
        if self.spin.look_again_for(self.now, STREAM_LOOK) {
            self.spin.give_way();
        }
    }

    /// One step of what is fetched ahead, or several where nobody is likely to wait for them.
    fn advance_stream(&mut self) {
        self.step_stream();
        let is_calm = self.single_at.is_none_or(|at| self.now.saturating_duration_since(at) >= CALM_AFTER);
        for _ in 1..if is_calm { CALM_STEPS } else { 1 } {
            self.note_due();
            if self.to_poll.is_empty() && self.arrived.is_empty() {
                return;
            }
            self.step_stream();
        }
    }

    /// One step of what is fetched ahead: sends and receives, or installs what was received, in turns where there is both to do.
    fn step_stream(&mut self) {
        let installs = !self.arrived.is_empty() && (self.to_poll.is_empty() || self.received_last);
        self.received_last = !installs;
        if !installs {
            self.poll_owners(Lane::Bulk);
        } else if let Some(delivery) = self.arrived.pop_front() {
            self.deliver(delivery, 0);
        }
    }

    /// Sends and receives on the lanes of this kind that have something to do.
    fn poll_owners(&mut self, lane: Lane) {
        let mut completions = std::mem::take(&mut self.completions);
        let lanes: Vec<_> = self.to_poll.extract_if(.., |(_, of)| *of == lane).collect();
        for (owner, lane) in lanes {
            self.owners.poll(owner, lane, self.now, &mut completions);
            if lane == Lane::Bulk && !completions.is_empty() {
                self.placement.stream_came(self.owners.incoming_cpu(owner), self.now);
            }
            completions.drain(..).for_each(|completion| self.complete(owner, lane, completion));
        }
        self.completions = completions;
    }

    /// How long the next wait may be.
    fn patience(&mut self) -> Duration {
        let now = Instant::now();
        let has_work = !self.to_poll.is_empty() || !self.arrived.is_empty() || self.cached_room == 0;
        if has_work || self.looks_again(now) {
            return Duration::ZERO;
        }
        let until = |due: Instant| due.saturating_duration_since(now);
        let dues = [self.owners.next_timeout().map(until), self.retries.patience(now)];
        dues.into_iter().flatten().fold(until(self.next_sweep), Duration::min)
    }

    /// Whether to look for something to do rather than sleep.
    fn looks_again(&self, now: Instant) -> bool {
        self.spin.look_again(now) || self.owners.is_streaming() && self.spin.look_again_for(now, STREAM_LOOK)
    }

    /// Closes the spaces of processes that are gone.
    fn sweep(&mut self) {
        self.next_sweep = self.now + SWEEP_INTERVAL;
        self.children.keys().copied().collect::<Vec<u64>>().into_iter().for_each(|key| self.sweep_child(key));
        self.close_unclaimed();
        self.close_former_holders();
        self.keep_up_cache();
        self.report_all();
        self.fill_zygotes();
        self.close_idle_owners();
        if self.rest.has_begun(self.now) {
            allocator::give_back();
        }
        if self.children.is_empty() && !self.station.is_reachable() {
            tracing::warn!("the run directory is gone and nobody is served: the pager ends");
            self.end = Some(Ended::Stopped);
        }
    }

    /// Closes the spaces of a child's processes that are gone.
    pub(super) fn sweep_child(&mut self, key: u64) {
        let Some(served) = self.children.get(&key) else { return };
        let spaces = served.child.spaces.iter();
        let is_gone = spaces.filter(|(_, space)| space.uffd().is_gone());
        let gone: Vec<SpaceNumber> = is_gone.map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|space| self.close_space(key, space));
        self.rotate_stub_queue(key);
    }

    /// Serves a child from now on.
    ///
    /// # Errors
    /// As epoll_ctl(2), socket(2). It is then not served, its descriptors are as before.
    pub(super) fn take_in(&mut self, child: Child) -> io::Result<()> {
        let owners = self.attach_all(&child.sources)?;
        self.seat(child, owners)
    }

    /// Serves a child whose owners are connected to.
    ///
    /// # Errors
    /// As epoll_ctl(2), of a child whose userfaultfd has not come.
    pub(super) fn seat(&mut self, child: Child, owners: Vec<OwnerKey>) -> io::Result<()> {
        let key = self.next_child;
        self.next_child += 1;
        if let Some(socket) = &child.socket {
            self.watch.add(Source::Socket(key), &**socket)?;
        }
        let spaces: Vec<SpaceNumber> = child.spaces.keys().copied().collect();
        self.keys.insert(child.id.clone(), key);
        self.children.insert(key, Served { child, owners });
        for space in spaces {
            self.listen(key, space);
            self.settle_doubt(key, space);
        }
        self.note_settling(key);
        Ok(())
    }

    /// Connects to the owners of these sources, in their order.
    pub(super) fn attach_all(&mut self, sources: &[ChildSource]) -> io::Result<Vec<OwnerKey>> {
        let mut owners = Vec::with_capacity(sources.len());
        for source in sources {
            match self.attach(&source.owner, source.key.seed.node()) {
                Ok(owner) => owners.push(owner),
                Err(error) => {
                    self.detach(owners);
                    return Err(error);
                }
            }
        }
        Ok(owners)
    }

    /// Connects to an owner, for one more user.
    pub(super) fn attach(&mut self, address: &Address, node: &NodeName) -> io::Result<OwnerKey> {
        let (owner, new) = self.owners.attach(address, node)?;
        for lane in [Lane::Demand, Lane::Bulk].into_iter().filter(|_| new) {
            if let Some(fd) = self.owners.descriptor(owner, lane) {
                self.watch.add(Source::Owner(owner, lane), fd)?;
            }
        }
        Ok(owner)
    }

    /// Ends one user's use of each.
    pub(super) fn detach(&mut self, owners: Vec<OwnerKey>) {
        owners.into_iter().for_each(|owner| self.owners.detach(owner, self.now));
        self.close_idle_owners();
    }

    /// Watches a space.
    pub(super) fn listen(&mut self, key: u64, space: SpaceNumber) {
        let Some(served) = self.children.get(&key) else { return };
        let Some(known) = served.child.spaces.get(&space) else { return };
        if let Err(error) = self.watch.add(Source::Space(key, space), known) {
            tracing::error!("child {}: its faults cannot be watched: {error}: it is tried again", served.child.id);
            self.retries.push(Task::Listen { child: key, space }, self.now, TABLE_FULL_PAUSE, 0);
        }
    }

    /// Closes a space whose process is gone, or is served no more.
    pub(super) fn close_space(&mut self, key: u64, space: SpaceNumber) {
        let Some(served) = self.children.get_mut(&key) else { return };
        if let Some(gone) = served.child.spaces.get(&space) {
            self.watch.remove(Source::Space(key, space), gone);
            served.child.close_space(space);
        }
        if served.child.released && served.child.is_over() {
            self.forget(key);
        }
    }

    /// Serves a child no more.
    pub(super) fn forget(&mut self, key: u64) {
        self.report(key, true);
        let Some(Served { mut child, owners }) = self.children.remove(&key) else { return };
        self.keys.remove(&child.id);
        self.station.registry().strike(&child.id);
        if let Some(socket) = &child.socket {
            self.watch.remove(Source::Socket(key), &**socket);
        }
        child.close_sockets();
        self.detach(owners);
    }

    fn close_idle_owners(&mut self) {
        for owner in self.owners.close_idle(self.now) {
            self.watch.forget(Source::Owner(owner, Lane::Demand));
            self.watch.forget(Source::Owner(owner, Lane::Bulk));
        }
    }
}
