//! A child that the pager serves: its plan, its journal, and the address spaces of its own processes and of processes
//! that these fork. `settle` makes a child independent of its seed, `templates` lets a capture clone it, and `zygotes`
//! turns the forks of a zygote into children. `stub_recovery` restores a child when keeper, pager and holder were
//! killed together. `server` owns the children; `faults` and `control` call them.

mod loss;
pub(super) mod settle;
mod stub_queue;
mod stub_recovery;
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
use farfork_sys::fork::adopt_raw_fd;
use farfork_sys::userfaultfd::{UffdEvent, Userfaultfd};
use farfork_wire::{ChildId, PAGE_SIZE};

use super::address_space::AddressSpace;
use super::address_space::install::InstallOutcome;
use super::control::protocol::PagerStats;
use super::disk_space_hint;
use super::faults::retry_queue::CompletedRead;
use super::journal::counters::PagerCounters;
use super::journal::replay::{self, ReplayResult};
use super::journal::{AddressSpaceId, AddressSpaceSnapshot, AdoptionState, Journal, JournalContents, JournalSnapshot};
use super::owner_connections::{Lane, PageRead};
use super::page_map::PageMap;
use super::plan::origin::PageSource;
use super::plan::slot_index::{SlotIndex, SlotRun};
use super::plan::strategy::{PagingMode, PagingStrategy};
use super::plan::{MemoryPlan, PlanError};
use super::working_set::{AccessTrace, EarlyFetch};
use settle::SettlePhase;
use stub_queue::StubQueue;
use zygotes::ZygoteCopies;

/// Name of the file in the child's directory that gives the reason if the child's memory is lost.
pub const LOST_FILE: &str = "lost";

/// Why the pager cannot serve a child.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    /// The plan is missing or invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The journal cannot be created or read.
    #[error("the journal in {} cannot be used: {source}{}", dir.display(), disk_space_hint::disk_space_hint(source))]
    Journal {
        /// The child's directory.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A seed that owns pages of a child.
#[derive(Debug, Clone)]
pub(super) struct ChildSource {
    /// The seed's id and token, sent with each read.
    pub(super) key: Arc<SeedKey>,
    /// The address of its owner.
    pub(super) owner: Address,
    /// Whether the seed is lost: its pages that were not fetched raise SIGBUS.
    pub(super) is_lost: bool,
}

impl ChildSource {
    /// Converts a source of a plan; it is not lost.
    pub(super) fn from_page_source(source: PageSource) -> Self {
        let PageSource { seed, token, owner } = source;
        Self { key: Arc::new(SeedKey { seed, token }), owner, is_lost: false }
    }

    /// Whether its owner is on this host.
    pub(super) fn is_on_this_host(&self) -> bool {
        matches!(self.owner, Address::Shm(_))
    }
}

/// A plan in the form that the pager uses. A zygote's copies share most of it.
#[derive(Debug)]
pub(super) struct LoadedPlan {
    pub(super) sources: Vec<ChildSource>,
    pub(super) strategy: PagingStrategy,
    pub(super) populated: Arc<SlotIndex>,
    pub(super) maps: Arc<[PageMap]>,
}

impl LoadedPlan {
    /// Converts a plan.
    pub(super) fn from_plan(plan: MemoryPlan) -> Self {
        let populated = SlotIndex::from_extents(plan.extents.iter().map(|extent| (extent.id, &extent.populated[..])));
        Self {
            sources: plan.sources.into_iter().map(ChildSource::from_page_source).collect(),
            strategy: plan.strategy,
            populated: Arc::new(populated),
            maps: iter::once(plan.segments).chain(plan.member_segments).map(PageMap::from_segments).collect(),
        }
    }
}

/// A child that the pager serves.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) id: ChildId,
    /// The seeds that own its pages, in the order of its plan.
    pub(super) sources: Vec<ChildSource>,
    /// How its pages are fetched.
    pub(super) strategy: PagingStrategy,
    /// The pages of the seed that hold data.
    pub(super) populated: Arc<SlotIndex>,
    /// Counters of the pager's work for it.
    pub(super) counters: PagerCounters,
    /// The socket on which its userfaultfd will arrive. Like a userfaultfd, the socket is never closed on drop.
    pub(super) uffd_socket: Option<ManuallyDrop<OwnedFd>>,
    /// The queue of its stub, which also holds the userfaultfds of its processes.
    pub(super) stub_queue: Option<StubQueue>,
    /// The pid of its first process, if this pager knows it.
    pub(super) pid: Option<i32>,
    /// The existing address spaces of its processes, by number. Its first process has number 0.
    pub(super) spaces: BTreeMap<AddressSpaceId, AddressSpace>,
    /// The reason if its memory is lost.
    pub(super) loss_reason: Option<String>,
    /// Whether the daemon has requested the child's release.
    pub(super) release_requested: bool,
    /// The state of the child's settling.
    pub(super) settling: SettlePhase,
    /// The pages that the child has touched, as far as its faults show.
    pub(super) trace: AccessTrace,
    /// Slots to prefetch, in order: those that earlier children of the seed touched. A zygote also prefetches pages for
    /// its copies and for huge pages. Slots are removed when they are queued for prefetching.
    pub(super) pending_set_slots: VecDeque<Range<u64>>,
    /// Reads of `pending_set_slots` that are made before the child's userfaultfd has arrived.
    pub(super) early_fetch: EarlyFetch,
    /// The state of the child's copies if the child is a zygote.
    pub(super) zygote_copies: Option<ZygoteCopies>,
    /// The key of the zygote that the child is a copy of, if this pager made the copy a child.
    pub(super) copy_of: Option<u64>,
    pub(super) dir: PathBuf,
    pub(super) journal: Journal,
    /// Whether the journal was full and could not be replaced. Prevents a second log message.
    journal_failed: bool,
    /// The maps of the child's own processes, in the order of the plan.
    pub(super) planned_maps: Arc<[PageMap]>,
    pub(super) next_space: AddressSpaceId,
    /// Number of the child's own processes whose userfaultfds have not arrived yet.
    awaited_processes: AddressSpaceId,
    /// When the pager may next check why no page can be installed (`faults::mremap_growth`).
    pub(super) next_growth_check: Option<Instant>,
    /// Address spaces whose fork is unresolved: it is not known yet which of their parents' changes they have.
    pub(super) unresolved_forks: BTreeSet<AddressSpaceId>,
}

impl Child {
    /// Adopts a child whose userfaultfd will arrive on `socket`.
    ///
    /// # Errors
    /// [`ChildError`]; the socket is then closed.
    pub(super) fn adopt(id: ChildId, dir: &Path, socket: OwnedFd) -> Result<Self, ChildError> {
        let plan = MemoryPlan::read(dir)?;
        let state = AdoptionState::AwaitingUffd { socket: socket.as_raw_fd() };
        let journal =
            Journal::create(dir, state).map_err(|source| ChildError::Journal { dir: dir.to_owned(), source })?;
        let mut child = Self::from_plan(id, dir, plan, journal);
        child.uffd_socket = Some(ManuallyDrop::new(socket));
        // A child that fetches everything shows no touches, and a zygote touches nothing. A recovered child has no
        // trace either: this pager does not know the earlier touches.
        if child.strategy.mode != PagingMode::Eager
            && !child.strategy.ignores_working_set
            && child.zygote_copies.is_none()
        {
            child.trace = AccessTrace::new(child.populated.slot_count());
        }
        Ok(child)
    }

    /// Continues with a child as the previous pager left it.
    ///
    /// # Errors
    /// [`ChildError`].
    pub(super) fn recover(id: ChildId, dir: &Path) -> Result<Self, ChildError> {
        let plan = MemoryPlan::read(dir)?;
        let (journal, contents) =
            Journal::open(dir).map_err(|source| ChildError::Journal { dir: dir.to_owned(), source })?;
        let mut child = Self::from_plan(id, dir, plan, journal);
        child.loss_reason = fs::read_to_string(dir.join(LOST_FILE)).ok();
        // The file does not say which source was lost. If the child has several sources, the next failing read marks
        // the lost source again.
        if let (Some(_), [only]) = (&child.loss_reason, &mut child.sources[..]) {
            only.is_lost = true;
        }
        child.restore_from_journal(contents);
        child.settling = SettlePhase::recover(dir);
        if child.settling.is_settled() {
            child.spaces.values_mut().for_each(AddressSpace::mark_settled);
        }
        Ok(child)
    }

    pub(super) fn from_plan(id: ChildId, dir: &Path, plan: MemoryPlan, journal: Journal) -> Self {
        let zygote_copies = plan.is_zygote.then(|| ZygoteCopies::from_dir(dir));
        Self { zygote_copies, ..Self::from_loaded_plan(id, dir, LoadedPlan::from_plan(plan), journal) }
    }

    /// Creates a child from its plan, without any userfaultfd.
    pub(super) fn from_loaded_plan(id: ChildId, dir: &Path, planned: LoadedPlan, journal: Journal) -> Self {
        let LoadedPlan { sources, strategy, populated, maps } = planned;
        Self {
            id,
            sources,
            strategy,
            populated,
            counters: PagerCounters::default(),
            uffd_socket: None,
            stub_queue: None,
            pid: None,
            spaces: BTreeMap::new(),
            loss_reason: None,
            release_requested: false,
            settling: SettlePhase::Idle,
            trace: AccessTrace::default(),
            pending_set_slots: VecDeque::new(),
            early_fetch: EarlyFetch::default(),
            zygote_copies: None,
            copy_of: None,
            dir: dir.to_owned(),
            journal,
            journal_failed: false,
            // The child's own processes have the first numbers, in any order of arrival.
            next_space: maps.len() as AddressSpaceId,
            awaited_processes: maps.len() as AddressSpaceId,
            planned_maps: maps,
            next_growth_check: None,
            unresolved_forks: BTreeSet::new(),
        }
    }

    /// Returns the number of the child's own processes.
    pub(super) fn process_count(&self) -> AddressSpaceId {
        self.planned_maps.len() as AddressSpaceId
    }

    /// Counts the arrival of the userfaultfd of one of the child's own processes. Returns whether it was the last.
    pub(super) fn count_arrived_process(&mut self) -> bool {
        self.awaited_processes = self.awaited_processes.saturating_sub(1);
        self.awaited_processes == 0
    }

    /// Adds the userfaultfd of one of the child's own processes, and records it in the journal. `pid` is the process
    /// that sent the userfaultfd; only the pid of process 0 is kept. Returns whether the userfaultfd is new.
    pub(super) fn add_userfaultfd(&mut self, number: AddressSpaceId, uffd: Userfaultfd, pid: Option<i32>) -> bool {
        self.pid = pid.filter(|_| number == 0).or(self.pid);
        let known = self.spaces.contains_key(&number);
        let Some(map) = self.planned_maps.get(number as usize).filter(|_| !known) else { return false };
        if self.planned_maps.len() == 1 {
            self.journal.set_state(AdoptionState::Active { uffd: uffd.as_raw_fd() });
        } else {
            self.journal.record_uffd_arrived(number, uffd.as_raw_fd());
        }
        let address_space = AddressSpace::new(uffd, map.clone(), &self.populated, self.strategy.window_slots_max());
        self.spaces.insert(number, address_space);
        true
    }

    /// Closes the socket for userfaultfds, because all have arrived.
    pub(super) fn finish_adoption(&mut self) {
        let uffd = self.spaces.get(&0).map_or(-1, AddressSpace::raw_fd);
        self.journal.set_state(AdoptionState::Active { uffd });
        self.close_uffd_socket();
    }

    /// Closes its sockets when it is no longer served.
    pub(super) fn close_sockets(&mut self) {
        self.close_uffd_socket();
        self.stub_queue.take().into_iter().for_each(StubQueue::close);
    }

    /// Closes the socket on which its userfaultfds arrived.
    fn close_uffd_socket(&mut self) {
        drop(self.uffd_socket.take().map(ManuallyDrop::into_inner));
    }

    /// Whether all its processes have ended, or it never started.
    pub(super) fn has_ended(&self) -> bool {
        self.uffd_socket.is_none() && self.spaces.is_empty()
    }

    /// The numbers of its descriptors in the shared descriptor table.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let socket = self.uffd_socket.as_ref().map(|socket| socket.as_raw_fd());
        let queue = self.stub_queue.as_ref().map(StubQueue::raw_fd);
        self.spaces.values().map(AddressSpace::raw_fd).chain(socket).chain(queue)
    }

    /// Reads the messages of an address space into `messages`, and records the events in the journal.
    ///
    /// # Errors
    /// As `Userfaultfd::read_messages`.
    pub(super) fn read_messages(&mut self, space: AddressSpaceId, messages: &mut Vec<UffdEvent>) -> io::Result<()> {
        // A snapshot cannot store displaced ranges and unresolved forks.
        if self.journal.needs_compaction(|| self.spaces.values().all(AddressSpace::is_map_certain)) {
            self.compact_journal();
        }
        match self.spaces.get_mut(&space) {
            Some(known) => {
                known.reregister_ranges();
                let (first, read) = (messages.len(), self.journal.read_messages(space, known.uffd(), messages));
                self.queue_forked_userfaultfds(&messages[first..]);
                read
            }
            None => Ok(()),
        }
    }

    /// Installs the remaining pages of a completed read, at most `slots_max`, and removes the finished slots from the
    /// read.
    pub(super) fn install_pages(&mut self, completed_read: &mut CompletedRead, slots_max: u64) -> InstallOutcome {
        let CompletedRead { read, data, offset } = completed_read;
        let Some(address_space) = self.spaces.get_mut(&read.target.space) else { return InstallOutcome::ProcessGone };
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
                return InstallOutcome::Failed(io::Error::other("the owner's reply is too short"));
            };
            let outcome = address_space.install_run(&run, pages, &mut self.counters.pages_fetched);
            let done = match outcome {
                InstallOutcome::Complete => bytes as u64,
                InstallOutcome::Retry { from, .. } => from,
                InstallOutcome::ProcessGone | InstallOutcome::Failed(_) => return outcome,
            };
            slots.start += done / PAGE_SIZE;
            *offset += done as usize;
            if matches!(outcome, InstallOutcome::Retry { .. }) {
                return outcome;
            }
            if read.lane == Lane::Bulk {
                address_space.zero_following_gap(&run, &self.populated, &mut self.counters.zero_pages);
            }
        }
        InstallOutcome::Complete
    }

    /// Counts a reply.
    pub(super) fn count_reply(&mut self, read: &PageRead, bytes: u64) {
        let same_host = self.sources[read.target.source].is_on_this_host();
        let counters = &mut self.counters;
        counters.round_trips += 1;
        counters.round_trips_demand += u64::from(read.lane == Lane::Demand);
        counters.bytes_fetched += bytes;
        counters.bytes_same_host += if same_host { bytes } else { 0 };
    }

    /// Counts the work of a call of [`Self::install_pages`] that began at `began`. `fetched` is the number of fetched
    /// pages at that time.
    pub(super) fn count_installed_pages(
        &mut self,
        read: &PageRead,
        outcome: &InstallOutcome,
        began: Instant,
        fetched: u64,
    ) {
        let now = Instant::now();
        let micros = |since: Instant| now.saturating_duration_since(since).as_micros() as u64;
        self.counters.install_us += micros(began);
        if read.lane == Lane::Demand && matches!(outcome, InstallOutcome::Complete) {
            self.counters.demand_us += micros(read.submitted_at);
        }
        let pages = self.counters.pages_fetched - fetched;
        if self.sources[read.target.source].is_on_this_host() {
            self.counters.pages_same_host += pages;
        }
        if read.target.source > 0 {
            self.counters.pages_inherited += pages;
        }
    }

    /// The seed that owns the pages of a run.
    pub(super) fn source_of_run(&self, run: &SlotRun) -> &ChildSource {
        &self.sources[run.origin.source as usize]
    }

    /// Adds the address space of a process that a process of the child has forked. Returns the number of the new
    /// address space.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such descriptor.
    pub(super) fn add_forked_space(&mut self, parent: AddressSpaceId, number: RawFd) -> io::Result<AddressSpaceId> {
        let new = self.next_space;
        self.next_space += 1;
        let uffd = Userfaultfd::from_number(number)?;
        if let Some(zygote_copies) = self.zygote_copies.as_mut().filter(|_| parent == 0) {
            zygote_copies.newest_copy = Some(new);
        }
        if let Some(known) = self.spaces.get(&parent) {
            let mut forked = known.new_forked(uffd, self.populated.slot_count());
            if !self.is_fork_unambiguous(parent) {
                forked.set_unresolved_fork(parent, known.recent_changes());
                self.unresolved_forks.insert(new);
            }
            self.spaces.insert(new, forked);
        }
        Ok(new)
    }

    /// The number of the next address space.
    pub(super) fn next_space_id(&self) -> AddressSpaceId {
        self.next_space
    }

    /// Closes an address space whose process is gone, or that is no longer served.
    pub(super) fn close_space(&mut self, space: AddressSpaceId) {
        self.unresolved_forks.remove(&space);
        if let Some(gone) = self.spaces.remove(&space) {
            // Recorded before the close: afterwards another file may get the descriptor's number.
            self.journal.record_space_closed(space);
            gone.close();
        }
    }

    /// Writes the counters to the journal.
    pub(super) fn save_counters(&mut self) {
        self.journal.set_counters(&self.counters);
    }

    /// Returns the counters of the pager's work for the child, and the reason if the child's memory is lost.
    pub(super) fn stats(&self) -> PagerStats {
        PagerStats { counters: self.counters, loss_reason: self.loss_reason.clone() }
    }

    /// Replaces the journal's records by a snapshot of the current address spaces.
    pub(super) fn compact_journal(&mut self) {
        let take_snapshot = |(number, address_space): (&AddressSpaceId, &AddressSpace)| AddressSpaceSnapshot {
            id: *number,
            uffd: address_space.raw_fd(),
            segments: address_space.segments().copied().collect(),
        };
        let snapshot =
            JournalSnapshot { spaces: self.spaces.iter().map(take_snapshot).collect(), next_space: self.next_space };
        let uffd = self.spaces.get(&0).map_or(-1, AddressSpace::raw_fd);
        let compacted = self.journal.compact(AdoptionState::Active { uffd }, &snapshot);
        if let Err(error) = &compacted
            && !self.journal_failed
        {
            let dir = self.dir.display();
            tracing::error!(
                "the full journal in {dir} cannot be replaced: {error}; make room: until then, a killed pager loses changes of the child's memory map"
            );
        }
        self.journal_failed = compacted.is_err();
    }

    fn restore_from_journal(&mut self, contents: JournalContents) {
        self.counters = contents.counters;
        self.stub_queue = contents.stub_queue().and_then(|number| adopt_raw_fd(number).ok()).map(StubQueue::new);
        if let AdoptionState::AwaitingUffd { socket } = contents.state {
            self.uffd_socket = adopt_raw_fd(socket).ok().map(ManuallyDrop::new);
        }
        let ReplayResult { spaces, next_space } = replay::replay_journal(contents, &self.planned_maps);
        self.next_space = next_space;
        self.awaited_processes -=
            self.awaited_processes.min(spaces.range(..self.awaited_processes).count() as AddressSpaceId);
        for (number, (uffd, map)) in spaces {
            match Userfaultfd::from_number(uffd) {
                Ok(uffd) => {
                    let address_space = AddressSpace::new(uffd, map, &self.populated, self.strategy.window_slots_max());
                    self.spaces.insert(number, address_space);
                }
                Err(error) => tracing::warn!("child {}: address space {number} is lost: {error}", self.id),
            }
        }
    }
}
