//! Zygotes: processes that are served like children, except that the processes that they fork (*copies*) become
//! separate children. `PagerRequest::Transfer` turns the newest copy of a zygote into a child. A fork event does not
//! say which child it belongs to. So the daemon makes one copy at a time, and transfers it before it makes the next.
//! Therefore all spaces of a zygote, except its own space 0, belong to its newest copy.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use farfork_sys::huge_page::HUGE_PAGE_BYTES;
use farfork_wire::{ChildId, PAGE_SIZE};

use super::{Child, ChildError, ChildSource, LoadedPlan};
use crate::pager::address_space::AddressSpace;
use crate::pager::control::protocol::PagerReply;
use crate::pager::journal::{AddressSpaceId, AddressSpaceSnapshot, AdoptionState, Journal, JournalSnapshot};
use crate::pager::page_map::{MapSegment, PageMap};
use crate::pager::plan::slot_index::SlotIndex;
use crate::pager::plan::strategy::PagingMode;
use crate::pager::plan::{MemoryPlan, PlanFileId};
use crate::pager::server::event_poller::EventSource;
use crate::pager::server::{PagerServer, ServedChild};
use crate::pager::working_set::AccessTrace;

/// Maximum number of pages of a zygote's working set: 16 MiB. Each small page costs up to 100 ns at the fork of a copy,
/// and again at the exit of the copy.
const ZYGOTE_PAGES_MAX: u64 = 4096;

/// Maximum number of pages of a zygote, including the pages that complete huge pages: 32 MiB.
const ZYGOTE_FILLED_PAGES_MAX: u64 = 2 * ZYGOTE_PAGES_MAX;

/// Maximum number of faults of copies that are recorded until the next copy is made.
const COPY_FAULTS_MAX: usize = ZYGOTE_PAGES_MAX as usize;

/// Maximum number of zero pages of a zygote: 2 MiB. Each needs a page table entry, but no memory.
const ZYGOTE_ZERO_PAGES_MAX: u64 = 512;

/// Number of small pages in a huge page.
const HUGE_PAGE_PAGES: u64 = HUGE_PAGE_BYTES / PAGE_SIZE;

/// A zygote that has at least 1/16 of the pages of a huge page gets the rest. The touched pages suggest that more will
/// be touched, and a huge page costs the fork of a copy no more than a small page.
const HUGE_FILL_FRACTION: u64 = 16;

// How a copy becomes a child:
//
//  zygote's space 0 ── fork event ─▶ another space of the zygote, served at once ── Transfer ─▶ the child's space 0
//                                      └ what the copy has forked meanwhile ───────────────────▶ 1, 2, …
//
// Until its transfer a copy is served as a process of the zygote: from the same seed, with the same map.
//
// The copy's journal starts with its userfaultfd, and with a snapshot if its map differs from the plan's. Then the
// zygote's journal records that the space is closed. If a pager is killed between the two, both journals list the
// space. `resolve_transferred_spaces` then assigns it to the child.
//
// A zygote touches no page itself. It gets its pages as follows:
// - When it is adopted it gets the touched pages of its seed's working set.
// - While copies are made, it requests the set again, and fetches the missing pages of incomplete huge pages
//   (`missing_huge_page_slots`). The node turns complete ones into real huge pages: a huge page costs the fork of a
//   copy as little as a small page.
// - When the next copy is made, it gets the pages for which copies waited. A copy's faults are also reported to the
//   owner, like those of any child. A copy has the pages that have arrived before its fork.

/// The copies of a zygote.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::pager) struct ZygoteCopies {
    /// The address space of the newest copy, if this pager has read its fork event.
    pub(in crate::pager) newest_copy: Option<AddressSpaceId>,
    /// Whether copies were made since the zygote last got a working set.
    was_copied: bool,
    /// The plan file that the copies share.
    copy_plan: Option<PlanFileId>,
    /// Number of zero pages that were mapped in the zygote because copies waited for them.
    zero_pages: u64,
}

impl ZygoteCopies {
    /// Returns the state of a zygote without copies, whose files are in `dir`.
    pub(super) fn from_dir(dir: &Path) -> Self {
        Self { copy_plan: PlanFileId::for_copies(dir), ..Self::default() }
    }
}

impl Child {
    /// Returns how many more pages of a working set the zygote may get.
    pub(in crate::pager) fn zygote_pages_left(&self) -> u64 {
        ZYGOTE_PAGES_MAX.saturating_sub(self.zygote_page_count())
    }

    /// Returns the number of installed pages that hold data.
    fn zygote_page_count(&self) -> u64 {
        let slots = self.populated.slot_count();
        self.spaces.get(&0).map_or(0, |address_space| slots - address_space.count_missing_slots(slots))
    }

    /// Maps up to `pages` zero pages in the zygote from `address` on. Stops at a page that holds data or is in no
    /// segment.
    fn map_zeroes_for_copies(&mut self, address: u64, pages: u64) {
        let (Some(zygote_copies), Some(address_space)) = (&mut self.zygote_copies, self.spaces.get_mut(&0)) else {
            return;
        };
        let room = pages.min(ZYGOTE_ZERO_PAGES_MAX.saturating_sub(zygote_copies.zero_pages));
        let is_empty = |page: &u64| address_space.is_empty_at(address + page * PAGE_SIZE, &self.populated);
        let pages = (0..room).take_while(is_empty).count() as u64;
        let before = self.counters.zero_pages;
        // This is only an optimization: failures are ignored.
        let _ = address_space.map_zeroes(address, pages, &mut self.counters.zero_pages);
        zygote_copies.zero_pages += self.counters.zero_pages - before;
    }

    /// Returns the missing slots of partly filled huge pages of the zygote. Once these slots are installed, the node
    /// can make real huge pages.
    fn missing_huge_page_slots(&self) -> Vec<Range<u64>> {
        let Some(address_space) = self.spaces.get(&0) else { return Vec::new() };
        let mut room = ZYGOTE_FILLED_PAGES_MAX.saturating_sub(self.zygote_page_count());
        let mut wanted = Vec::new();
        let partial_units = address_space.partly_filled_units(HUGE_PAGE_BYTES, &self.populated);
        let slots_of_unit = |unit: u64| huge_page_slots(unit, address_space.segment_at(unit)?, &self.populated);
        for unit in partial_units.into_iter().filter_map(slots_of_unit) {
            let (missing, _) = address_space.missing_slots_in(unit, HUGE_PAGE_PAGES);
            let count: u64 = missing.iter().map(|slots| slots.end - slots.start).sum();
            if (1..=HUGE_PAGE_PAGES - HUGE_PAGE_PAGES / HUGE_FILL_FRACTION).contains(&count) && count <= room {
                room -= count;
                wanted.extend(missing);
            }
        }
        wanted
    }

    /// Creates a child for this zygote's newest copy, without address spaces: the caller moves the address spaces.
    fn create_copy(&self, id: &ChildId, dir: &Path) -> Result<Self, String> {
        let planned = self.load_copy_plan(dir)?;
        let first = self.newest_copy_id();
        let next_space = self.next_space.max(first + 1) - first;
        let journal = self.create_copy_journal(dir, &planned.maps, (first, next_space));
        let journal = journal.map_err(|source| ChildError::Journal { dir: dir.to_owned(), source }.to_string())?;
        let mut child = Self::from_loaded_plan(id.clone(), dir, planned, journal);
        child.count_arrived_process();
        child.next_space = next_space;
        if child.strategy.mode != PagingMode::Eager && !child.strategy.ignores_working_set {
            child.trace = AccessTrace::new(child.populated.slot_count());
        }
        Ok(child)
    }

    /// Returns the plan of a copy. Most copies have the shared plan, which the zygote has loaded.
    fn load_copy_plan(&self, dir: &Path) -> Result<LoadedPlan, String> {
        let (populated, maps) = (self.populated.clone(), self.planned_maps.clone());
        let shared_plan = self.zygote_copies.and_then(|zygote_copies| zygote_copies.copy_plan);
        if shared_plan.is_some() && shared_plan == PlanFileId::for_child(dir) {
            return Ok(LoadedPlan { sources: self.sources.clone(), strategy: self.strategy, populated, maps });
        }
        let loaded = LoadedPlan::from_plan(MemoryPlan::read(dir).map_err(|error| error.to_string())?);
        let keys = |sources: &[ChildSource]| sources.iter().map(|source| source.key.clone()).collect::<Vec<_>>();
        if loaded.populated != populated || keys(&loaded.sources) != keys(&self.sources) {
            return Err("its memory plan differs from its zygote's".to_owned());
        }
        Ok(LoadedPlan { populated, ..loaded })
    }

    /// Creates the journal of a copy whose address spaces have the numbers from `first` on. Needs no snapshot if the
    /// copy has a single address space, with the map of the plan.
    fn create_copy_journal(
        &self,
        dir: &Path,
        maps: &[PageMap],
        (first, next_space): (AddressSpaceId, AddressSpaceId),
    ) -> io::Result<Journal> {
        let uffd = self.spaces.get(&first).map_or(-1, AddressSpace::raw_fd);
        let is_as_planned =
            |address_space: &AddressSpace| maps.first().is_some_and(|map| address_space.segments().eq(map.segments()));
        if next_space == 1 && maps.len() == 1 && self.spaces.get(&first).is_some_and(is_as_planned) {
            return Journal::create(dir, AdoptionState::Active { uffd });
        }
        let spaces = self.spaces.range(first..).map(|(number, address_space)| AddressSpaceSnapshot {
            id: number - first,
            uffd: address_space.raw_fd(),
            segments: address_space.segments().copied().collect(),
        });
        Journal::create_with_snapshot(
            dir,
            AdoptionState::Active { uffd },
            &JournalSnapshot { spaces: spaces.collect(), next_space },
        )
    }

    /// Returns the number of the newest copy's address space. If an earlier pager has read the copy's fork event, this
    /// is the oldest address space after the zygote's own space 0.
    fn newest_copy_id(&self) -> AddressSpaceId {
        let oldest = self.spaces.range(1..).next().map(|(number, _)| *number);
        self.zygote_copies.and_then(|zygote_copies| zygote_copies.newest_copy).or(oldest).unwrap_or(1)
    }
}

/// Returns the slots of the huge page at address `unit`, if it is within the segment and all its pages hold data.
fn huge_page_slots(unit: u64, segment: &MapSegment, populated: &SlotIndex) -> Option<Range<u64>> {
    if unit < segment.start || unit + HUGE_PAGE_BYTES > segment.end {
        return None;
    }
    let page = segment.page_at(unit);
    let slot = populated.slot_of(segment.extent, page)?;
    let last = populated.slot_of(segment.extent, page + HUGE_PAGE_PAGES - 1)?;
    (last - slot == HUGE_PAGE_PAGES - 1).then_some(slot..last + 1)
}

impl PagerServer<'_> {
    /// Makes the newest copy of a zygote a child.
    pub(in crate::pager) fn handle_transfer(
        &mut self,
        zygote: &ChildId,
        id: &ChildId,
        dir: &Path,
        pid: i32,
        stub_queue: Option<OwnedFd>,
    ) -> PagerReply {
        // If the child is known, the request was repeated because a reply was lost.
        if self.child_key(id).is_none()
            && let Err(reason) = self.adopt_copy(zygote, id, dir, pid)
        {
            return PagerReply::Refused(format!("child {id} is not served: {reason}"));
        }
        let served = self.child_key(id).and_then(|key| self.children.get_mut(&key));
        let filled = match (served, stub_queue) {
            (Some(served), Some(stub_queue)) => served.child.fill_stub_queue(stub_queue),
            // The child has ended already.
            _ => Ok(()),
        };
        match filled {
            Ok(()) => PagerReply::Done,
            Err(error) => {
                PagerReply::Refused(format!("child {id}: its userfaultfd cannot be added to its stub's queue: {error}"))
            }
        }
    }

    fn adopt_copy(&mut self, zygote: &ChildId, id: &ChildId, dir: &Path, pid: i32) -> Result<(), String> {
        let key = self.child_key(zygote).ok_or_else(|| format!("its zygote {zygote} is not known to the pager"))?;
        let Some(served) = self.children.get(&key) else { return Err("its zygote is gone".to_owned()) };
        if let Some(lost) = &served.child.loss_reason {
            return Err(lost.trim_end().to_owned());
        }
        let mut child = served.child.create_copy(id, dir)?;
        child.pid = Some(pid);
        child.copy_of = Some(key);
        let owners = self.attach_owners(&child.sources).map_err(|error| error.to_string())?;
        if let Err(error) = self.context.registry().insert(id, dir) {
            self.detach_owners(owners);
            return Err(error.to_string());
        }
        self.move_copy_spaces(key, &mut child);
        self.fill_zygote_from_copies(key);
        self.insert_child(child, owners).map_err(|error| error.to_string())?;
        let moved = self.child_key(id).and_then(|key| self.children.get(&key));
        // Wake the threads, so that they fault again: replies to their earlier requests go to the zygote's spaces, not
        // to the child's.
        moved.into_iter().flat_map(|served| served.child.spaces.values()).for_each(AddressSpace::wake_all);
        Ok(())
    }

    fn move_copy_spaces(&mut self, key: u64, child: &mut Child) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let zygote = &mut served.child;
        let first = zygote.newest_copy_id();
        for (number, address_space) in zygote.spaces.split_off(&first.max(1)) {
            self.poller.remove(EventSource::Space(key, number), &address_space);
            zygote.journal.record_space_closed(number);
            if zygote.unresolved_forks.remove(&number) {
                child.unresolved_forks.insert(number - first);
            }
            child.spaces.insert(number - first, address_space.moved_to_child(child.populated.slot_count(), first));
        }
        if let Some(zygote_copies) = &mut zygote.zygote_copies {
            (zygote_copies.newest_copy, zygote_copies.was_copied) = (None, true);
        }
    }

    /// Records a page for which a copy waits, so that the zygote, and thus later copies, get it.
    pub(in crate::pager) fn add_fault_to_zygote(&mut self, key: u64, slot: u64) {
        let zygote = self.children.get(&key).and_then(|served| served.child.copy_of);
        let Some(ServedChild { child: zygote, .. }) = zygote.and_then(|key| self.children.get_mut(&key)) else {
            return;
        };
        if zygote.pending_set_slots.len() < COPY_FAULTS_MAX {
            zygote.pending_set_slots.push_back(slot..slot + 1);
        }
    }

    /// Maps, in the zygote of a copy, the zero pages for which the copy waits, so that later copies have them.
    pub(in crate::pager) fn add_zeroes_to_zygote(&mut self, key: u64, address: u64, pages: u64) {
        let zygote = self.children.get(&key).and_then(|served| served.child.copy_of);
        if let Some(ServedChild { child: zygote, .. }) = zygote.and_then(|key| self.children.get_mut(&key)) {
            zygote.map_zeroes_for_copies(address, pages);
        }
    }

    /// Fetches for a zygote the pages on which its copies have faulted since the previous copy was made.
    fn fill_zygote_from_copies(&mut self, key: u64) {
        let Some(ServedChild { child: zygote, .. }) = self.children.get_mut(&key) else { return };
        if zygote.pending_set_slots.is_empty() {
            return;
        }
        if zygote.zygote_pages_left() < zygote.pending_set_slots.len() as u64 {
            zygote.pending_set_slots.clear();
        }
        self.queue_working_set(key);
    }

    /// Whether a zygote still gets pages: its userfaultfd, its working set, or queued or requested pages have not
    /// arrived. False if pages of the zygote are lost.
    pub(in crate::pager) fn is_zygote_filling(&self, key: u64) -> bool {
        let Some(ServedChild { child, .. }) = self.children.get(&key) else { return false };
        let is_to_come = child.uffd_socket.is_some()
            || child.spaces.get(&0).is_some_and(AddressSpace::has_slots_in_flight)
            || self.owners.is_awaiting_set(key)
            || self.owners.has_queued_prefetch(key);
        is_to_come && child.loss_reason.is_none()
    }

    /// Fetches pages for the zygotes that were copied since the last call: the pages that were added to the working
    /// sets of their seeds, and the rest of incomplete huge pages.
    pub(in crate::pager) fn fill_zygotes(&mut self) {
        let mut due = Vec::new();
        for child in self.children.values_mut().map(|served| &mut served.child) {
            let was_used =
                child.zygote_copies.as_mut().is_some_and(|zygote_copies| std::mem::take(&mut zygote_copies.was_copied));
            if was_used {
                due.push(child.id.clone());
            }
        }
        due.iter().for_each(|zygote| self.fill_zygote(zygote));
    }

    fn fill_zygote(&mut self, id: &ChildId) {
        let Some(key) = self.child_key(id) else { return };
        if let Some(child) = self.children.get_mut(&key).map(|served| &mut served.child) {
            child.pending_set_slots.extend(child.missing_huge_page_slots());
        }
        self.queue_working_set(key);
        if self.children.get(&key).is_some_and(|served| served.child.zygote_pages_left() > 0) {
            self.request_working_set(id);
        }
    }
}

/// If the journals of a child and of a zygote list the same address space, assigns the space to the child. This occurs
/// if a pager was killed during the transfer.
pub(in crate::pager) fn resolve_transferred_spaces(children: &mut [Child]) {
    let of_children = children.iter().filter(|child| child.zygote_copies.is_none());
    let child_fds: BTreeSet<i32> =
        of_children.flat_map(|child| child.spaces.values().map(AddressSpace::raw_fd)).collect();
    for zygote in children.iter_mut().filter(|child| child.zygote_copies.is_some()) {
        let moved = zygote.spaces.iter().filter(|(_, address_space)| child_fds.contains(&address_space.raw_fd()));
        let moved: Vec<AddressSpaceId> = moved.map(|(number, _)| *number).collect();
        for number in moved {
            zygote.spaces.remove(&number);
            zygote.journal.record_space_closed(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use farfork_wire::descriptor::ExtentId;

    use super::*;
    use crate::pager::plan::origin::{PageOrigin, PopulatedRun};

    #[test]
    fn huge_page_slots_are_found_only_without_holes() {
        let extent = ExtentId(3);
        let run = |first, count| PopulatedRun { first, count, origin: PageOrigin { source: 0, extent, page: first } };
        // The third huge page has a hole.
        let populated = SlotIndex::from_extents([(extent, &[run(0, 1300), run(1301, 1000)][..])]);
        let segment = |start: u64, pages: u64, first_page| MapSegment {
            start,
            end: start + pages * PAGE_SIZE,
            extent,
            first_page,
        };
        let base = 40 * HUGE_PAGE_BYTES;
        let unit =
            |number: u64, segment: &MapSegment| huge_page_slots(base + number * HUGE_PAGE_BYTES, segment, &populated);
        let whole = segment(base, 2301, 0);
        assert_eq!([0, 1, 3].map(|number| unit(number, &whole)), [Some(0..512), Some(512..1024), Some(1535..2047)]);
        assert_eq!(unit(2, &whole), None, "a page is empty");
        assert_eq!(unit(4, &whole), None, "the segment ends before the end of the huge page");
        assert_eq!(unit(0, &segment(base - PAGE_SIZE, 2000, 0)), Some(1..513));
        assert_eq!(
            unit(0, &segment(base + PAGE_SIZE, 2000, 0)),
            None,
            "the segment begins after the start of the huge page"
        );
        assert_eq!(unit(0, &segment(base, 2000, 1790)), None, "there is no data at its end");
    }
}
