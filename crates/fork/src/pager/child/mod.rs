//! A child that the pager serves: its plan, its journal, and the address spaces of it and of what it forked.
//!
//! What it may become: independent of its seed (`settle`), a parent (`templates`), or a copy's origin (`zygotes`).

mod loss;
mod reclaiming;
pub(super) mod settle;
mod stub_queue;
mod templates;
pub(super) mod zygotes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::iter;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use farfork_fabric::{Address, SeedKey};
use farfork_sys::fork::take_over;
use farfork_sys::userfaultfd::{Message, Userfaultfd};
use farfork_wire::{ChildId, PAGE_SIZE};

use super::control::protocol::PagerStats;
use super::faults::retries::Delivery;
use super::journal::counters::PagerCounters;
use super::journal::replay::{self, Replayed};
use super::journal::{Journal, Replay, Snapshot, SpaceNumber, SpaceSnapshot, State};
use super::owners::{Lane, Read};
use super::page_map::PageMap;
use super::plan::origin::Source;
use super::plan::populated::{Populated, SlotRun};
use super::plan::strategy::{Paging, Strategy};
use super::plan::{MemoryPlan, PlanError};
use super::room;
use super::space::Space;
use super::space::install::Installed;
use super::working_set::{Early, Trace};
use settle::Settling;
use stub_queue::StubQueue;
use zygotes::Brood;

/// Name of the file in the child's directory that says why its memory is lost, if it is.
pub const LOST_FILE: &str = "lost";

/// Why a child cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    /// There is no usable plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The journal cannot be made or read.
    #[error("the journal in {} cannot be used: {source}{}", dir.display(), room::remedy(source))]
    Journal {
        /// The child's directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A seed that a child's pages come from.
#[derive(Debug, Clone)]
pub(super) struct ChildSource {
    /// What its owner is shown with each read.
    pub(super) key: Arc<SeedKey>,
    /// Where its owner is reached.
    pub(super) owner: Address,
    /// What was not fetched of it raises SIGBUS.
    pub(super) is_lost: bool,
}

impl ChildSource {
    /// As a plan has it.
    pub(super) fn of(source: Source) -> Self {
        let Source { seed, token, owner } = source;
        Self { key: Arc::new(SeedKey { seed, token }), owner, is_lost: false }
    }

    /// Whether its pages come from this host.
    pub(super) fn is_on_this_host(&self) -> bool {
        matches!(self.owner, Address::Shm(_))
    }
}

/// What a plan says of a child, as the pager uses it. A zygote's copies have most of it in common.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) sources: Vec<ChildSource>,
    pub(super) strategy: Strategy,
    pub(super) populated: Arc<Populated>,
    pub(super) maps: Arc<[PageMap]>,
}

impl Planned {
    /// What this plan says.
    pub(super) fn of(plan: MemoryPlan) -> Self {
        let populated = Populated::of(plan.extents.iter().map(|extent| (extent.id, &extent.populated[..])));
        Self {
            sources: plan.sources.into_iter().map(ChildSource::of).collect(),
            strategy: plan.strategy,
            populated: Arc::new(populated),
            maps: iter::once(plan.segments).chain(plan.members).map(PageMap::of).collect(),
        }
    }
}

/// A child that the pager serves.
#[derive(Debug)]
pub(super) struct Child {
    /// Its name.
    pub(super) id: ChildId,
    /// The seeds that its pages come from, as its plan has them.
    pub(super) sources: Vec<ChildSource>,
    /// How its pages are fetched.
    pub(super) strategy: Strategy,
    /// The pages of the seed that hold data.
    pub(super) populated: Arc<Populated>,
    /// What was done for it.
    pub(super) counters: PagerCounters,
    /// The socket on which its userfaultfd will arrive. Like a userfaultfd, never closed by a drop.
    pub(super) socket: Option<ManuallyDrop<OwnedFd>>,
    /// Where its stub holds the userfaultfds of its processes, too.
    pub(super) stub_queue: Option<StubQueue>,
    /// Its own process, where this pager has heard who it is.
    pub(super) pid: Option<i32>,
    /// Its address spaces that live: its own has number 0.
    pub(super) spaces: BTreeMap<SpaceNumber, Space>,
    /// Why its memory is lost, if some is.
    pub(super) lost: Option<String>,
    /// The daemon asked to forget it.
    pub(super) released: bool,
    /// Whether it takes the rest of its pages.
    pub(super) settling: Settling,
    /// What is seen of its touches.
    pub(super) trace: Trace,
    /// Slots that an earlier child of the seed touched, in order, until they are queued.
    pub(super) recalled: VecDeque<Range<u64>>,
    /// What of these is fetched before its userfaultfd has come.
    pub(super) early: Early,
    /// It is a zygote.
    pub(super) zygote: Option<Brood>,
    /// The zygote that it is a copy of, where this pager made it one.
    pub(super) copy_of: Option<u64>,
    /// Its directory.
    pub(super) dir: PathBuf,
    pub(super) journal: Journal,
    /// It was full and could not be replaced, which was said.
    journal_failed: bool,
    /// The maps of its own processes, as its plan has them.
    pub(super) maps: Arc<[PageMap]>,
    pub(super) next_space: SpaceNumber,
    /// Own processes that are still to be heard of.
    missed: SpaceNumber,
    /// Before this it is not asked again why nothing can be installed (`lengthened`).
    pub(super) next_question: Option<Instant>,
    /// Spaces of which it is not known yet which changes of their parents' they have.
    pub(super) doubted: BTreeSet<SpaceNumber>,
}

impl Child {
    /// Takes a child on, whose userfaultfd will arrive on `socket`.
    ///
    /// # Errors
    /// [`ChildError`]; the socket is then closed.
    pub(super) fn adopt(id: ChildId, dir: &Path, socket: OwnedFd) -> Result<Self, ChildError> {
        let plan = MemoryPlan::read(dir)?;
        let state = State::Waiting { socket: socket.as_raw_fd() };
        let journal =
            Journal::create(dir, state).map_err(|source| ChildError::Journal { dir: dir.to_owned(), source })?;
        let mut child = Self::of(id, dir, plan, journal);
        child.socket = Some(ManuallyDrop::new(socket));
        // A successor would not know what came before, and of who has everything at once nothing is seen.
        // No more is of a zygote, which touches nothing.
        if child.strategy.paging != Paging::Eager && !child.strategy.first && child.zygote.is_none() {
            child.trace = Trace::new(child.populated.slots());
        }
        Ok(child)
    }

    /// Goes on with a child where a predecessor left it.
    ///
    /// # Errors
    /// [`ChildError`].
    pub(super) fn recover(id: ChildId, dir: &Path) -> Result<Self, ChildError> {
        let plan = MemoryPlan::read(dir)?;
        let (journal, replay) =
            Journal::open(dir).map_err(|source| ChildError::Journal { dir: dir.to_owned(), source })?;
        let mut child = Self::of(id, dir, plan, journal);
        child.lost = fs::read_to_string(dir.join(LOST_FILE)).ok();
        // Of several sources it is not known which was lost: each that still is will be found so again.
        if let (Some(_), [only]) = (&child.lost, &mut child.sources[..]) {
            only.is_lost = true;
        }
        child.replay(replay);
        child.settling = Settling::recover(dir);
        if child.settling.is_settled() {
            child.spaces.values_mut().for_each(Space::settle);
        }
        Ok(child)
    }

    pub(super) fn of(id: ChildId, dir: &Path, plan: MemoryPlan, journal: Journal) -> Self {
        let zygote = plan.is_zygote.then(|| Brood::of(dir));
        Self { zygote, ..Self::planned(id, dir, Planned::of(plan), journal) }
    }

    /// A child of which nothing is known yet but its plan.
    pub(super) fn planned(id: ChildId, dir: &Path, planned: Planned, journal: Journal) -> Self {
        let Planned { sources, strategy, populated, maps } = planned;
        Self {
            id,
            sources,
            strategy,
            populated,
            counters: PagerCounters::default(),
            socket: None,
            stub_queue: None,
            pid: None,
            spaces: BTreeMap::new(),
            lost: None,
            released: false,
            settling: Settling::Idle,
            trace: Trace::default(),
            recalled: VecDeque::new(),
            early: Early::default(),
            zygote: None,
            copy_of: None,
            dir: dir.to_owned(),
            journal,
            journal_failed: false,
            // Those of its own processes come first, in whatever order they arrive.
            next_space: maps.len() as SpaceNumber,
            missed: maps.len() as SpaceNumber,
            maps,
            next_question: None,
            doubted: BTreeSet::new(),
        }
    }

    /// How many processes it was made of.
    pub(super) fn own_spaces(&self) -> SpaceNumber {
        self.maps.len() as SpaceNumber
    }

    /// One more of its own processes was heard of. Tells whether it was the last.
    pub(super) fn miss_one(&mut self) -> bool {
        self.missed = self.missed.saturating_sub(1);
        self.missed == 0
    }

    /// Takes the userfaultfd of one of its own processes, noting it for a successor, and the pid of the process that sent it,
    /// where that is the first. Tells whether it is new.
    pub(super) fn activate(&mut self, number: SpaceNumber, uffd: Userfaultfd, pid: Option<i32>) -> bool {
        self.pid = pid.filter(|_| number == 0).or(self.pid);
        let known = self.spaces.contains_key(&number);
        let Some(map) = self.maps.get(number as usize).filter(|_| !known) else { return false };
        if self.maps.len() == 1 {
            self.journal.set_state(State::Active { uffd: uffd.as_raw_fd() });
        } else {
            self.journal.open_space(number, uffd.as_raw_fd());
        }
        let space = Space::new(uffd, map.clone(), &self.populated, self.strategy.window_slots_max());
        self.spaces.insert(number, space);
        true
    }

    /// All that are to come have: the socket is closed, and maps are needed no more.
    pub(super) fn complete(&mut self) {
        let uffd = self.spaces.get(&0).map_or(-1, Space::number);
        self.journal.set_state(State::Active { uffd });
        self.drop_socket();
    }

    /// Closes its sockets: it is served no more.
    pub(super) fn close_sockets(&mut self) {
        self.drop_socket();
        self.stub_queue.take().into_iter().for_each(StubQueue::close);
    }

    /// Closes the socket on which nothing more is expected.
    fn drop_socket(&mut self) {
        drop(self.socket.take().map(ManuallyDrop::into_inner));
    }

    /// Whether all its processes have ended, or it never began.
    pub(super) fn is_over(&self) -> bool {
        self.socket.is_none() && self.spaces.is_empty()
    }

    /// Its descriptors in the shared table.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let socket = self.socket.as_ref().map(|socket| socket.as_raw_fd());
        let queue = self.stub_queue.as_ref().map(StubQueue::number);
        self.spaces.values().map(Space::number).chain(socket).chain(queue)
    }

    /// Reads what the kernel has to tell of a space into `messages`, noting the events for a successor.
    ///
    /// # Errors
    /// As `Userfaultfd::read_messages`.
    pub(super) fn read(&mut self, space: SpaceNumber, messages: &mut Vec<Message>) -> io::Result<()> {
        // A snapshot has no room for what was displaced, nor for doubts.
        if self.journal.is_due(|| self.spaces.values().all(Space::is_known)) {
            self.restart_journal();
        }
        match self.spaces.get_mut(&space) {
            Some(known) => {
                known.take_back();
                let (first, read) = (messages.len(), self.journal.read(space, known.uffd(), messages));
                self.hold_forked(&messages[first..]);
                read
            }
            None => Ok(()),
        }
    }

    /// Installs what is left of a delivery, or `slots_max` of it, and cuts from it what is done.
    pub(super) fn install(&mut self, delivery: &mut Delivery, slots_max: u64) -> Installed {
        let Delivery { read, data, offset } = delivery;
        let Some(space) = self.spaces.get_mut(&read.space) else { return Installed::Gone };
        let mut room = slots_max;
        while let Some(slots) = read.slots.first_mut().filter(|slots| room > 0 || slots.is_empty()) {
            let Some(run) = self.populated.runs_of(slots.start..slots.end.min(slots.start.saturating_add(room))).next()
            else {
                read.slots.remove(0);
                continue;
            };
            room -= run.count;
            let bytes = (run.count * PAGE_SIZE) as usize;
            let Some(pages) = data.get(*offset..*offset + bytes) else {
                return Installed::Failed(io::Error::other("the owner's reply is too short"));
            };
            let outcome = space.put(&run, pages, &mut self.counters.pages_fetched);
            let done = match outcome {
                Installed::All => bytes as u64,
                Installed::Later { from, .. } => from,
                Installed::Gone | Installed::Failed(_) => return outcome,
            };
            slots.start += done / PAGE_SIZE;
            *offset += done as usize;
            if matches!(outcome, Installed::Later { .. }) {
                return outcome;
            }
            if read.lane == Lane::Bulk {
                space.zero_gap_behind(&run, &self.populated, &mut self.counters.zero_pages);
            }
        }
        Installed::All
    }

    /// Counts a reply.
    pub(super) fn received(&mut self, read: &Read, bytes: u64) {
        let same_host = self.sources[read.source].is_on_this_host();
        let counters = &mut self.counters;
        counters.round_trips += 1;
        counters.round_trips_demand += u64::from(read.lane == Lane::Demand);
        counters.bytes_fetched += bytes;
        counters.bytes_same_host += if same_host { bytes } else { 0 };
    }

    /// Counts what [`Self::install`] did, which began at `began`, when so many pages had been fetched.
    pub(super) fn installed(&mut self, read: &Read, outcome: &Installed, (began, fetched): (Instant, u64)) {
        let now = Instant::now();
        let micros = |since: Instant| now.saturating_duration_since(since).as_micros() as u64;
        self.counters.install_us += micros(began);
        if read.lane == Lane::Demand && matches!(outcome, Installed::All) {
            self.counters.demand_us += micros(read.asked_at);
        }
        let pages = self.counters.pages_fetched - fetched;
        if self.sources[read.source].is_on_this_host() {
            self.counters.pages_same_host += pages;
        }
        if read.source > 0 {
            self.counters.pages_inherited += pages;
        }
    }

    /// The seed that pages belong to.
    pub(super) fn source_of(&self, run: &SlotRun) -> &ChildSource {
        &self.sources[run.origin.source as usize]
    }

    /// Takes the userfaultfd of a process that one of the child's forked; gives the new space's number.
    ///
    /// # Errors
    /// `InvalidInput` when there is no such descriptor.
    pub(super) fn fork(&mut self, parent: SpaceNumber, number: RawFd) -> io::Result<SpaceNumber> {
        let new = self.next_space;
        self.next_space += 1;
        let uffd = Userfaultfd::from_number(number)?;
        if let Some(brood) = self.zygote.as_mut().filter(|_| parent == 0) {
            brood.copy = Some(new);
        }
        if let Some(known) = self.spaces.get(&parent) {
            let mut forked = known.forked(uffd, self.populated.slots());
            if !self.changes_nothing(parent) {
                forked.doubt(parent, known.recent());
                self.doubted.insert(new);
            }
            self.spaces.insert(new, forked);
        }
        Ok(new)
    }

    /// The number that the next space gets.
    pub(super) fn next_space(&self) -> SpaceNumber {
        self.next_space
    }

    /// Closes a space whose process is gone, or is served no more.
    pub(super) fn close_space(&mut self, space: SpaceNumber) {
        self.doubted.remove(&space);
        if let Some(gone) = self.spaces.remove(&space) {
            // Noted first: the number may mean something else as soon as it is closed.
            self.journal.close_space(space);
            gone.close();
        }
    }

    /// Notes for a successor what was done so far.
    pub(super) fn note_counters(&mut self) {
        self.journal.set_counters(&self.counters);
    }

    /// What was done for it.
    pub(super) fn stats(&self) -> PagerStats {
        PagerStats { counters: self.counters, lost: self.lost.clone() }
    }

    /// Puts what its spaces are at now in the place of all that its journal tells.
    pub(super) fn restart_journal(&mut self) {
        let space = |(number, space): (&SpaceNumber, &Space)| SpaceSnapshot {
            number: *number,
            uffd: space.number(),
            segments: space.segments().copied().collect(),
        };
        let snapshot = Snapshot { spaces: self.spaces.iter().map(space).collect(), next_space: self.next_space };
        let uffd = self.spaces.get(&0).map_or(-1, Space::number);
        let restarted = self.journal.restart(State::Active { uffd }, &snapshot);
        if let Err(error) = &restarted
            && !self.journal_failed
        {
            let dir = self.dir.display();
            tracing::error!(
                "the full journal in {dir} cannot be replaced: {error}; make room, for until then a pager that is killed loses changes of the child's memory map"
            );
        }
        self.journal_failed = restarted.is_err();
    }

    fn replay(&mut self, replay: Replay) {
        self.counters = replay.counters;
        self.stub_queue = replay.queue().and_then(|number| take_over(number).ok()).map(StubQueue::new);
        if let State::Waiting { socket } = replay.state {
            self.socket = take_over(socket).ok().map(ManuallyDrop::new);
        }
        let Replayed { spaces, next_space } = replay::spaces_of(replay, &self.maps);
        self.next_space = next_space;
        self.missed -= self.missed.min(spaces.range(..self.missed).count() as SpaceNumber);
        for (number, (uffd, map)) in spaces {
            match Userfaultfd::from_number(uffd) {
                Ok(uffd) => {
                    let space = Space::new(uffd, map, &self.populated, self.strategy.window_slots_max());
                    self.spaces.insert(number, space);
                }
                Err(error) => tracing::warn!("child {}: space {number} is gone: {error}", self.id),
            }
        }
    }
}
