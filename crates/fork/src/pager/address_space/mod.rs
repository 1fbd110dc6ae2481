//! One address space that the pager serves: a process of the child, or a process forked by one. Its state is the page
//! map, which follows the kernel's events, and two sets of slots. `installed` has the slots that are done: filled, or
//! unmapped before their pages arrived. `in_flight` has the slots that were requested. All events are applied before a
//! fault is classified. While an unread event would change the map, the kernel refuses to fill any page
//! (`InstallOutcome::Retry`).

mod fork_map_check;
pub(super) mod install;
mod kernel_filled;
pub(super) mod slot_bitmap;
mod zero_fill;

use std::collections::{BTreeSet, VecDeque};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use farfork_sys::userfaultfd::{UffdEvent, Userfaultfd};
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::USER_SPACE_END;

use super::journal::AddressSpaceId;
use super::page_map::fork_order::{MapChange, UnresolvedFork};
use super::page_map::{MapSegment, PageMap};
use super::plan::slot_index::{SlotIndex, SlotRun};
use super::readahead::{FaultState, PrefetchRanges, ReadaheadState};
use install::{GapPolicy, InstallOutcome, fill_range};
use slot_bitmap::SlotBitmap;
use zero_fill::ZeroFillWindow;

/// Lowest address that a process can map, with the usual value of vm.mmap_min_addr. The kernel refuses to wake a range
/// that starts lower.
const USER_SPACE_START: u64 = 64 << 10;

/// Longest gap of empty pages that is filled along with the pages around it.
const GAP_PAGES_MAX: u64 = 16;

/// Maximum number of changes in `recent_changes`; the oldest is dropped. While one thread's fork event is pending, the
/// other threads are assumed to make fewer changes.
const RECENT_CHANGES_MAX: usize = 64;

/// An address space whose page faults the pager serves.
#[derive(Debug)]
pub(super) struct AddressSpace {
    /// Never closed on drop: when a pager panics or hands over, it stays open in the shared descriptor table.
    uffd: ManuallyDrop<Userfaultfd>,
    page_map: PageMap,
    installed: SlotBitmap,
    in_flight: SlotBitmap,
    readahead: ReadaheadState,
    zero_runs: ZeroFillWindow,
    /// Map changes since the kernel last had no pending event. A fork that is reported later may lack them.
    recent_changes: Vec<MapChange>,
    /// Unregistered ranges, which the kernel fills itself until it has reported their mremap(2) (see `kernel_filled`).
    kernel_filled: Vec<Range<u64>>,
    /// Whether the pager has looked up which memory the fork wiped (`wipe_on_fork`).
    pub(super) is_wipe_checked: bool,
    /// Set while it is unknown which of its parent's changes this forked process has. Meanwhile `page_map` is the
    /// likeliest map.
    unresolved_fork: Option<Box<UnresolvedFork>>,
}

/// How to answer a fault.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FaultAction {
    /// Map zero pages, starting at the page of the fault.
    Zeroes {
        /// Maximum number of pages to map.
        pages: u64,
    },
    /// Fetch a page of the seed.
    Fetch {
        /// The page.
        slot: u64,
        /// The slots to fetch along with it.
        ahead: PrefetchRanges,
    },
    /// Wait for a page that was already requested.
    InFlight {
        /// The page.
        slot: u64,
        /// The slots to fetch after it.
        ahead: PrefetchRanges,
    },
}

impl AddressSpace {
    /// Creates the address space of a userfaultfd, without any installed page.
    pub(super) fn new(uffd: Userfaultfd, map: PageMap, populated: &SlotIndex, window_slots_max: u64) -> Self {
        let slots = populated.slot_count();
        Self {
            uffd: ManuallyDrop::new(uffd),
            page_map: map,
            installed: SlotBitmap::new(slots),
            in_flight: SlotBitmap::new(slots),
            readahead: ReadaheadState::new(slots, window_slots_max),
            zero_runs: ZeroFillWindow::default(),
            recent_changes: Vec::new(),
            kernel_filled: Vec::new(),
            is_wipe_checked: false,
            unresolved_fork: None,
        }
    }

    /// Creates the address space of a process that this one has just forked. The caller marks its fork as unresolved if
    /// needed.
    pub(super) fn new_forked(&self, uffd: Userfaultfd, slots: u64) -> Self {
        let mut readahead = self.readahead.clone();
        self.in_flight.runs_not_in(&self.installed, 0..slots).for_each(|expected| readahead.note_dropped(expected));
        Self {
            uffd: ManuallyDrop::new(uffd),
            page_map: self.page_map.clone(),
            installed: self.installed.clone(),
            in_flight: SlotBitmap::new(slots),
            readahead,
            zero_runs: self.zero_runs.clone(),
            recent_changes: Vec::new(),
            kernel_filled: Vec::new(),
            is_wipe_checked: false,
            unresolved_fork: None,
        }
    }

    /// Moves the address space to another child, whose address space ids are lower by `id_offset`. Replies to earlier
    /// requests do not reach that child, so the slots in flight count as missing again.
    pub(super) fn moved_to_child(mut self, slots: u64, id_offset: AddressSpaceId) -> Self {
        self.note_dropped(0..slots);
        if let Some(unresolved_fork) = &mut self.unresolved_fork {
            unresolved_fork.parent = unresolved_fork.parent.saturating_sub(id_offset);
        }
        self
    }

    /// Closes the userfaultfd of an address space that is no longer served.
    pub(super) fn close(self) {
        drop(ManuallyDrop::into_inner(self.uffd));
    }

    pub(super) fn uffd(&self) -> &Userfaultfd {
        &self.uffd
    }

    /// Returns the number of the userfaultfd in the shared descriptor table.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.uffd.as_raw_fd()
    }

    /// The segments of its page map.
    pub(super) fn segments(&self) -> impl Iterator<Item = &MapSegment> {
        self.page_map.segments()
    }

    /// Applies a change of the memory map. Threads that wait in the affected ranges are woken, so that they fault again.
    pub(super) fn apply_event(&mut self, message: &UffdEvent) {
        if !matches!(message, UffdEvent::Fault { .. } | UffdEvent::Fork { .. }) {
            self.recent_changes.push(MapChange::apply(*message, &mut self.page_map));
            if self.recent_changes.len() > RECENT_CHANGES_MAX && self.is_map_certain() {
                self.recent_changes.remove(0);
            }
        }
        match *message {
            UffdEvent::Remap { from, to, bytes } => {
                self.kernel_filled.retain(|range| range.start != to + bytes);
                self.wake_range(from, bytes);
                self.wake_range(to, bytes);
            }
            UffdEvent::Remove { start, end } | UffdEvent::Unmap { start, end } => self.wake_range(start, end - start),
            UffdEvent::Fault { .. } | UffdEvent::Fork { .. } => {}
        }
    }

    /// Wakes every waiting thread, so that it faults again.
    pub(super) fn wake_all(&self) {
        self.wake_range(USER_SPACE_START, USER_SPACE_END - USER_SPACE_START);
    }

    fn wake_range(&self, start: u64, bytes: u64) {
        // Fails only for ranges outside of user space, where no thread waits.
        let _ = self.uffd.wake(start, bytes);
    }

    /// Returns how to answer the fault at `address`. If `is_first`, also returns the slots to fetch ahead. The map must
    /// be up to date.
    pub(super) fn classify_fault(&mut self, address: u64, is_first: bool, populated: &SlotIndex) -> FaultAction {
        let Some(segment) = self.page_map.segment_at(address) else {
            let limit = self.page_map.next_segment_start(address).unwrap_or(USER_SPACE_END);
            return self.zero_fill_action(address, limit);
        };
        let page = segment.page_at(address);
        let Some(slot) = populated.slot_of(segment.extent, page) else {
            let next = populated.next_populated_page(segment.extent, page).unwrap_or(u64::MAX);
            let limit = segment.end.min(address.saturating_add((next - page).saturating_mul(PAGE_SIZE)));
            return self.zero_fill_action(address, limit);
        };
        let found = if self.in_flight.contains(slot) { FaultState::InFlight } else { FaultState::NotRequested };
        if found == FaultState::NotRequested {
            self.note_missing(slot);
        }
        let follows = slot.checked_sub(1).is_some_and(|before| self.installed.contains(before));
        let ahead = if is_first { self.readahead.on_fault(slot, found, follows) } else { PrefetchRanges::NONE };
        match found {
            FaultState::InFlight => FaultAction::InFlight { slot, ahead },
            FaultState::NotRequested => FaultAction::Fetch { slot, ahead },
        }
    }

    /// Whether the page at the address of a fault is marked as installed, although the fault shows that it is missing.
    pub(super) fn is_installed_missing(&self, address: u64, populated: &SlotIndex) -> bool {
        let slot =
            self.page_map.segment_at(address).and_then(|found| populated.slot_of(found.extent, found.page_at(address)));
        slot.is_some_and(|slot| self.installed.contains(slot))
    }

    /// Unmarks a slot that is marked as installed. A thread waits for the page, so it is missing.
    fn note_missing(&mut self, slot: u64) {
        if self.installed.contains(slot) {
            self.installed.remove(slot..slot + 1);
            self.readahead.note_dropped(slot..slot + 1);
        }
    }

    fn zero_fill_action(&mut self, address: u64, limit: u64) -> FaultAction {
        let pages = self.zero_runs.next_window(address);
        FaultAction::Zeroes { pages: pages.min((limit - address) / PAGE_SIZE).max(1) }
    }

    /// Returns the first slots of `range`, at most `slots_max`, that are neither installed nor in flight. Also returns
    /// the part of `range` after these slots.
    pub(super) fn missing_slots_in(&self, range: Range<u64>, slots_max: u64) -> (Vec<Range<u64>>, Range<u64>) {
        self.collect_missing_slots(std::iter::once(range.clone()), range, slots_max)
    }

    /// As `missing_slots_in`, but only slots of one source.
    pub(super) fn missing_slots_from(
        &self,
        source: usize,
        populated: &SlotIndex,
        range: Range<u64>,
        slots_max: u64,
    ) -> (Vec<Range<u64>>, Range<u64>) {
        self.collect_missing_slots(populated.slots_from_source(source, range.clone()), range, slots_max)
    }

    /// Takes the first slots of `source` that are neither installed nor in flight, at most `slots_max`. Removes the
    /// searched ranges from `slots`.
    pub(super) fn take_missing_slots(
        &self,
        source: usize,
        populated: &SlotIndex,
        slots: &mut VecDeque<Range<u64>>,
        slots_max: u64,
    ) -> Vec<Range<u64>> {
        let (mut wanted, mut room) = (Vec::new(), slots_max);
        while room > 0
            && let Some(range) = slots.pop_front()
        {
            let (some, rest) = self.missing_slots_from(source, populated, range, room);
            room -= some.iter().map(|run| run.end - run.start).sum::<u64>();
            wanted.extend(some);
            if !rest.is_empty() {
                slots.push_front(rest);
            }
        }
        wanted
    }

    fn collect_missing_slots(
        &self,
        parts: impl Iterator<Item = Range<u64>>,
        range: Range<u64>,
        slots_max: u64,
    ) -> (Vec<Range<u64>>, Range<u64>) {
        let mut wanted = Vec::new();
        let mut room = slots_max;
        for run in parts.flat_map(|part| self.installed.runs_in_neither(&self.in_flight, part)) {
            let taken = run.start..run.end.min(run.start + room);
            room -= taken.end - taken.start;
            let next = taken.end;
            wanted.push(taken);
            if room == 0 {
                return (wanted, next..range.end);
            }
        }
        (wanted, range.end..range.end)
    }

    /// Records that slots were requested.
    pub(super) fn note_requested(&mut self, slots: &[Range<u64>]) {
        for range in slots {
            self.installed
                .runs_in_neither(&self.in_flight, range.clone())
                .for_each(|new| self.readahead.note_requested(new));
            self.in_flight.insert(range.clone());
        }
    }

    /// Records that requested slots will not arrive, or are no longer mapped.
    pub(super) fn note_dropped(&mut self, slots: Range<u64>) {
        self.in_flight.runs_not_in(&self.installed, slots.clone()).for_each(|lost| self.readahead.note_dropped(lost));
        self.in_flight.remove(slots);
    }

    /// Disables readahead around faults, because the neighbours cannot be fetched: each fault requests only its own
    /// page.
    pub(super) fn disable_fault_around(&mut self) {
        self.readahead.disable_fault_around();
    }

    /// Empties the page map, because all pages of the seed are installed. From now on, a fault on a missing page maps
    /// zeroes.
    pub(super) fn mark_settled(&mut self) {
        self.page_map = PageMap::default();
        self.recent_changes.clear();
    }

    /// Returns the number of slots below `slots` that are not installed.
    pub(super) fn count_missing_slots(&self, slots: u64) -> u64 {
        let none = SlotBitmap::default();
        self.installed.runs_in_neither(&none, 0..slots).map(|run| run.end - run.start).sum()
    }

    pub(super) fn has_slots_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// The segment that covers an address.
    pub(super) fn segment_at(&self, address: u64) -> Option<&MapSegment> {
        self.page_map.segment_at(address)
    }

    /// Whether the address is in a segment, and its page holds no data.
    pub(super) fn is_empty_at(&self, address: u64, populated: &SlotIndex) -> bool {
        let shown = self.page_map.segment_at(address);
        shown.is_some_and(|segment| populated.slot_of(segment.extent, segment.page_at(address)).is_none())
    }

    /// Returns the start addresses of the units in which at least one page is installed. A unit has `bytes` bytes and
    /// is aligned.
    pub(super) fn partly_filled_units(&self, bytes: u64, populated: &SlotIndex) -> BTreeSet<u64> {
        let none = SlotBitmap::default();
        let installed_runs =
            self.installed.runs_not_in(&none, 0..populated.slot_count()).flat_map(|slots| populated.runs_of(slots));
        let units = installed_runs.filter_map(|run| {
            let (address, pages) = self.page_map.address_of(run.extent, run.first_page)?;
            let end = address + pages.min(run.count) * PAGE_SIZE;
            Some((address - address % bytes..end).step_by(bytes as usize))
        });
        units.flatten().collect()
    }

    /// Returns the wanted slots that are still mapped. Marks the others as installed.
    pub(super) fn retain_mapped_slots(&mut self, wanted: Vec<Range<u64>>, populated: &SlotIndex) -> Vec<Range<u64>> {
        let mut mapped_slots: Vec<Range<u64>> = Vec::new();
        for run in wanted.into_iter().flat_map(|slots| populated.runs_of(slots)) {
            let mut page = 0;
            while page < run.count {
                let mapped = self.page_map.address_of(run.extent, run.first_page + page);
                let pages = mapped.map_or(1, |(_, pages)| pages.min(run.count - page));
                let slots = run.first_slot + page..run.first_slot + page + pages;
                match mapped_slots.last_mut() {
                    _ if mapped.is_none() => self.installed.insert(slots),
                    Some(last) if last.end == slots.start => last.end = slots.end,
                    _ => mapped_slots.push(slots),
                }
                page += pages;
            }
        }
        mapped_slots
    }

    /// Maps `pages` zero pages from `address` on.
    pub(super) fn map_zeroes(&mut self, address: u64, pages: u64, filled: &mut u64) -> InstallOutcome {
        let fill = |from, bytes| self.uffd.zero(address + from, bytes);
        let outcome = fill_range(&self.uffd, address, pages * PAGE_SIZE, GapPolicy::Stop, filled, fill);
        self.clear_after_install(&outcome);
        outcome
    }

    /// Poisons one page: access to it raises SIGBUS.
    pub(super) fn poison_page(&self, address: u64) -> InstallOutcome {
        fill_range(&self.uffd, address, PAGE_SIZE, GapPolicy::Stop, &mut 0, |from, bytes| {
            self.uffd.poison(address + from, bytes)
        })
    }

    /// Installs a run of pages at their current addresses; `data` has the bytes of all of them. Drops pages that are no
    /// longer mapped.
    pub(super) fn install_run(&mut self, run: &SlotRun, data: &[u8], filled: &mut u64) -> InstallOutcome {
        let mut page = 0;
        while page < run.count {
            if !self.check_map_certain() {
                return InstallOutcome::Retry { from: page * PAGE_SIZE, pause: Duration::ZERO };
            }
            let Some((address, pages)) = self.page_map.address_of(run.extent, run.first_page + page) else {
                // The page counts as installed: once unmapped, it is never needed again.
                let slot = run.first_slot + page;
                self.in_flight.remove(slot..slot + 1);
                self.installed.insert(slot..slot + 1);
                page += 1;
                continue;
            };
            let pages = pages.min(run.count - page);
            let bytes = &data[(page * PAGE_SIZE) as usize..((page + pages) * PAGE_SIZE) as usize];
            let fill = |at: u64, size: u64| self.uffd.copy(address + at, &bytes[at as usize..(at + size) as usize]);
            let outcome = fill_range(&self.uffd, address, pages * PAGE_SIZE, GapPolicy::Skip, filled, fill);
            self.clear_after_install(&outcome);
            let done = match &outcome {
                InstallOutcome::Complete => pages,
                InstallOutcome::Retry { from, .. } => from / PAGE_SIZE,
                InstallOutcome::ProcessGone | InstallOutcome::Failed(_) => return outcome,
            };
            let slots = run.first_slot + page..run.first_slot + page + done;
            self.in_flight.remove(slots.clone());
            self.installed.insert(slots);
            page += done;
            if let InstallOutcome::Retry { pause, .. } = outcome {
                return InstallOutcome::Retry { from: page * PAGE_SIZE, pause };
            }
        }
        InstallOutcome::Complete
    }
}

impl AddressSpace {
    /// Maps zeroes after a run of pages, up to the next page that holds data, if that page is near. Without these
    /// zeroes, each empty page of the gap would cost a fault. This is only an optimization: failures are ignored.
    pub(super) fn zero_following_gap(&mut self, run: &SlotRun, populated: &SlotIndex, filled: &mut u64) {
        let first = run.first_page + run.count;
        let gap = populated.next_populated_page(run.extent, first).map_or(0, |next| next - first);
        if !(1..=GAP_PAGES_MAX).contains(&gap) {
            return;
        }
        if let Some((address, pages)) = self.page_map.address_of(run.extent, first) {
            let _ = self.map_zeroes(address, pages.min(gap), filled);
        }
    }
}

impl AsFd for AddressSpace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.uffd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use farfork_sys::userfaultfd::UffdFeatures;
    use farfork_wire::descriptor::ExtentId;

    use super::*;
    use crate::pager::plan::origin::{PageOrigin, PopulatedRun};

    #[test]
    fn a_page_that_a_thread_waits_for_is_always_installed() {
        let (start, extent, bytes) = (1 << 40, ExtentId(1), PAGE_SIZE);
        let map = PageMap::from_segments([MapSegment { start, end: start + bytes, extent, first_page: 0 }]);
        let runs = [PopulatedRun { first: 0, count: 1, origin: PageOrigin { source: 0, extent, page: 0 } }];
        let populated = SlotIndex::from_extents([(extent, &runs[..])]);
        let uffd = Userfaultfd::create().unwrap();
        uffd.enable(UffdFeatures::ALL_EVENTS).unwrap();
        let mut address_space = AddressSpace::new(uffd, map, &populated, 512);
        let slots: Vec<Range<u64>> = std::iter::once(0..1).collect();
        address_space.note_requested(&slots);
        // The page is not mapped, so it is dropped.
        let run = populated.runs_of(0..1).next().unwrap();
        assert!(matches!(address_space.install_run(&run, &[1; 4096], &mut 0), InstallOutcome::Complete));
        assert_eq!(address_space.count_missing_slots(1), 0);
        assert!(matches!(address_space.classify_fault(start, true, &populated), FaultAction::Fetch { slot: 0, .. }));
        assert_eq!(address_space.missing_slots_in(0..1, 32).0, slots);
        address_space.note_requested(&slots);
        assert!(matches!(
            address_space.classify_fault(start, false, &populated),
            FaultAction::InFlight { slot: 0, .. }
        ));
    }
}
