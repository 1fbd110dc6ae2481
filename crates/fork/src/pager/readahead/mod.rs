//! Readahead: chooses the pages to fetch around a fault. `AddressSpace` calls it. Pure: slots in, ranges out. A fault
//! costs the child a round trip, about twenty times the cost of one more page in a stream. Which pages the child
//! touches next is unknown. `ReadaheadState` predicts them in three ways: windows, runs and streams.

use std::ops::Range;

/// Number of slots per region: 2 MiB of data.
pub(super) const REGION_SLOTS: u64 = 512;

/// Window sizes, in slots, at the first, second and third fault of a region. Windows are aligned to their size.
const WINDOWS_SLOTS: [u64; 3] = [1, 32, REGION_SLOTS];

/// For a process with at most this many slots (4 MiB), a whole region is fetched at its first fault. That costs as much
/// as about ten faults, and each process has more faults before its own code runs.
const SMALL_SLOTS: u64 = 1024;

/// Size in slots of the aligned window that is requested along with a page if the pages around it will be needed. The
/// window costs as much as about three faults.
const FAULT_AROUND_SLOTS: u64 = 32;

/// Index in [`WINDOWS_SLOTS`] of the first window of a region after a completely fetched region: the process may read
/// memory in order.
const WINDOW_AFTER_FULL_REGION: u8 = 1;

/// Number of regions in a neighbourhood: 16 MiB. Small compared with a large process, but large enough that random
/// touches rarely reach twice their average in a neighbourhood.
const NEIGHBOURHOOD_REGIONS: usize = 8;

/// If one in this many slots of a neighbourhood (7 %) was touched, the whole neighbourhood is fetched. If 5 % of memory
/// is touched at random, fewer than one neighbourhood in a million reaches this fraction.
const NEIGHBOURHOOD_TOUCH_FRACTION: u64 = 14;

/// If there was one touch for this many missing slots, all slots are fetched: the faults took as long as fetching the
/// rest takes.
const FULL_FETCH_TOUCH_FRACTION: u64 = 17;

/// The allowance is the number of slots that windows may fetch in advance. Before any touches, it is the square of this
/// constant, divided by the slots of the process. So a process with this many slots (200 MiB, a transfer of a few
/// tenths of a second) may be fetched as a whole. Larger processes get less, because they are less likely to need all
/// of their memory.
const ALLOWANCE_SLOTS: u64 = 51_200;

/// The allowance is at least one in this many slots (4 %). If a twentieth of the slots is touched, at most a tenth is
/// transferred in all.
const ALLOWANCE_FRACTION: u64 = 25;

/// Number of touches that add one slot to the allowance.
const TOUCHES_PER_EARNED_SLOT: u64 = 8;

/// Maximum number of touches that one fault counts for. When few pages are missing, the estimate of unseen touches is
/// mostly noise.
const TOUCHES_PER_FAULT_MAX: u64 = 16;

/// Touches are counted in units of 1/16, because a fault may count for a fraction of a touch. If a tenth of the pages
/// is present, a fault counts for 1/0.9 touches.
const PARTS_PER_TOUCH: u64 = 16;

/// Number of sequential runs that are tracked at once: as many as the threads of a program that usually scan memory.
const TRACKED_RUNS: usize = 4;

/// Minimum and maximum number of slots that are fetched ahead of a run.
const RUN_SLOTS_MIN: u64 = 32;
const RUN_SLOTS_MAX: u64 = 2048;

/// The state of a page at its fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultState {
    /// Not requested yet.
    NotRequested,
    /// Requested, but not yet installed.
    InFlight,
}

/// The slots to fetch at a fault in addition to its page. A range may be empty, and may have slots that are installed or in
/// flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PrefetchRanges {
    /// Slots around the fault that are requested along with its page.
    pub(super) fault_around: Range<u64>,
    /// Slots around or ahead of the fault that are prefetched.
    pub(super) window: Range<u64>,
    /// The next region of the stream.
    pub(super) stream: Range<u64>,
}

impl PrefetchRanges {
    /// Nothing.
    pub(super) const NONE: Self = Self { fault_around: 0..0, window: 0..0, stream: 0..0 };
}

/// A region of slots.
#[derive(Debug, Clone, Copy, Default)]
struct ReadaheadRegion {
    /// Slots that are installed or in flight.
    requested: u16,
    /// Estimated touches, in units of 1/[`PARTS_PER_TOUCH`].
    touched_parts: u16,
    /// Index of the next window in [`WINDOWS_SLOTS`].
    window_level: u8,
}

/// Slots that are touched in order.
#[derive(Debug, Clone, Copy, Default)]
struct SequentialRun {
    start: u64,
    /// The last fault.
    last_fault: u64,
    /// The end of the slots that were fetched for the run.
    fetched_end: u64,
    /// Whether a second fault has continued the run.
    is_confirmed: bool,
}

/// Chooses the slots to fetch from the earlier faults of one address space:
///
/// - *Windows.* The slots are divided into regions. The more faults a region has had, the more its next fault fetches:
///   a page, a few pages, the rest. Slots that windows fetch in advance count against an allowance, which depends on
///   the size of the process and grows with the touches.
/// - *Runs.* If a process reads memory in order, as many slots are fetched ahead as it has read so far, up to a limit.
/// - *Streams.* If enough of a neighbourhood, or of all slots, was touched, the rest will be needed, too. Then each
///   fault fetches the next region of the stream, so the stream ends soon after the last fault. The page is requested
///   along with the slots around it, since each page that is requested alone costs a round trip.
///
/// Touches of present pages cannot be seen. If half of the pages are present, a fault in the other half counts as two
/// touches.
#[derive(Debug, Clone)]
pub(super) struct ReadaheadState {
    window_slots_max: u64,
    fault_around_slots: u64,
    slots: u64,
    regions: Vec<ReadaheadRegion>,
    /// Slots that are installed or in flight.
    requested: u64,
    /// Estimated touches, in units of 1/[`PARTS_PER_TOUCH`].
    touched_parts: u64,
    /// Number of slots that windows have fetched in advance.
    speculative_slots: u64,
    /// The most recently used run is first.
    runs: [SequentialRun; TRACKED_RUNS],
    /// The region where the search for the next region of the stream begins.
    stream_region: usize,
    /// The next region of the stream is fetched when `requested` reaches this number.
    next_stream_at: u64,
}

impl ReadaheadState {
    /// Creates the state for a number of slots. Windows have at most `window_slots_max` slots; 1 fetches each page
    /// alone.
    pub(super) fn new(slots: u64, window_slots_max: u64) -> Self {
        Self {
            window_slots_max: window_slots_max.max(1),
            fault_around_slots: window_slots_max.clamp(1, FAULT_AROUND_SLOTS),
            slots,
            regions: vec![ReadaheadRegion::default(); slots.div_ceil(REGION_SLOTS) as usize],
            requested: 0,
            touched_parts: 0,
            speculative_slots: 0,
            runs: [SequentialRun::default(); TRACKED_RUNS],
            stream_region: 0,
            next_stream_at: 0,
        }
    }

    /// Records that missing slots were requested.
    pub(super) fn note_requested(&mut self, slots: Range<u64>) {
        self.requested += slots.end - slots.start;
        for_each_region(slots, |region, count| self.regions[region].requested += count);
    }

    /// Records that requested slots will not arrive.
    pub(super) fn note_dropped(&mut self, slots: Range<u64>) {
        self.requested -= slots.end - slots.start;
        self.next_stream_at = 0;
        for_each_region(slots, |region, count| self.regions[region].requested -= count);
    }

    /// Disables fault-around: from now on each fault requests only its page.
    pub(super) fn disable_fault_around(&mut self) {
        self.fault_around_slots = 1;
    }

    /// Records the fault at `slot`, and returns the slots to fetch. `follows` says whether the slot before it is installed.
    pub(super) fn on_fault(&mut self, slot: u64, found: FaultState, follows: bool) -> PrefetchRanges {
        let alone = slot..slot + 1;
        if self.window_slots_max == 1 {
            return PrefetchRanges { fault_around: alone.clone(), window: alone, stream: 0..0 };
        }
        let region = (slot / REGION_SLOTS) as usize;
        self.note_touch(region);
        let run = if follows { self.extend_run(slot, found) } else { None };
        let all = self.touched_parts * FULL_FETCH_TOUCH_FRACTION >= (self.slots - self.requested) * PARTS_PER_TOUCH;
        let unlocked = all || self.is_neighbourhood_hot(region);
        let window = match (run, found) {
            (Some(run), _) => run,
            (None, FaultState::InFlight) => alone.clone(),
            (None, FaultState::NotRequested) if unlocked || self.has_allowance() => self.grow_window(slot),
            (None, FaultState::NotRequested) => alone.clone(),
        };
        let fault_around = if unlocked { aligned_window(slot, self.fault_around_slots, self.slots) } else { alone };
        let goes_on = self.runs[0].last_fault == slot && self.runs[0].fetched_end > slot;
        if found == FaultState::NotRequested && !goes_on {
            self.runs.rotate_right(1);
            self.runs[0] =
                SequentialRun { start: slot, last_fault: slot, fetched_end: window.end, is_confirmed: false };
        }
        let stream = if unlocked { self.next_stream_region(region, all) } else { 0..0 };
        PrefetchRanges { fault_around, window, stream }
    }

    fn note_touch(&mut self, region: usize) {
        let size = self.region_slots(region);
        let ReadaheadRegion { requested, touched_parts, .. } = &mut self.regions[region];
        let parts = touch_estimate(size, u64::from(*requested));
        *touched_parts = (u64::from(*touched_parts) + parts).min(size * PARTS_PER_TOUCH) as u16;
        self.touched_parts += touch_estimate(self.slots, self.requested);
    }

    /// Returns the slots to fetch if this fault continues a run.
    fn extend_run(&mut self, slot: u64, found: FaultState) -> Option<Range<u64>> {
        // A process that reads pages in order faults on pages in flight. Only at the end of the run, it faults on a
        // page that was not requested.
        let at = self.runs.iter().position(|run| match found {
            FaultState::NotRequested => slot == run.fetched_end || slot == run.last_fault + 1,
            FaultState::InFlight => run.is_confirmed && run.last_fault < slot && slot < run.fetched_end,
        })?;
        self.runs[..=at].rotate_right(1);
        let run = &mut self.runs[0];
        run.is_confirmed = true;
        let ahead = (slot - run.start).clamp(RUN_SLOTS_MIN, RUN_SLOTS_MAX).min(self.window_slots_max);
        // The touch of this slot was already counted: add only the touches of the slots since the last fault.
        self.touched_parts += slot.saturating_sub(run.last_fault + 1) * PARTS_PER_TOUCH;
        run.last_fault = slot;
        if run.fetched_end.saturating_sub(slot) < ahead / 2 {
            run.fetched_end = (slot + ahead).min(self.slots);
        }
        Some(slot..run.fetched_end.max(slot + 1))
    }

    /// Whether the allowance is not used up.
    fn has_allowance(&self) -> bool {
        let allowance = ALLOWANCE_SLOTS * ALLOWANCE_SLOTS / self.slots.max(1);
        self.speculative_slots
            < allowance.max(self.slots / ALLOWANCE_FRACTION)
                + self.touched_parts / (TOUCHES_PER_EARNED_SLOT * PARTS_PER_TOUCH)
    }

    /// Whether enough of a region's neighbourhood was touched that the rest will be needed.
    fn is_neighbourhood_hot(&self, region: usize) -> bool {
        let neighbourhood = self.neighbourhood(region);
        let slots = neighbourhood.len() as u64 * REGION_SLOTS;
        let parts: u64 = self.regions[neighbourhood].iter().map(|region| u64::from(region.touched_parts)).sum();
        parts * NEIGHBOURHOOD_TOUCH_FRACTION >= slots * PARTS_PER_TOUCH
    }

    fn grow_window(&mut self, slot: u64) -> Range<u64> {
        let region = (slot / REGION_SLOTS) as usize;
        let levels = WINDOWS_SLOTS.len() as u8;
        let follows_whole = region > 0 && self.regions[region - 1].window_level >= levels;
        let least = match (self.slots <= SMALL_SLOTS, follows_whole) {
            (true, _) => levels - 1,
            (false, true) => WINDOW_AFTER_FULL_REGION,
            (false, false) => 0,
        };
        let level = self.regions[region].window_level.max(least);
        self.regions[region].window_level = (level + 1).min(levels);
        let window = WINDOWS_SLOTS[level.min(levels - 1) as usize].min(self.window_slots_max);
        self.speculative_slots += window.saturating_sub(u64::from(self.regions[region].requested) + 1);
        aligned_window(slot, window, self.slots)
    }

    /// Returns the next region of the stream, or an empty range until half of the previous region was requested.
    fn next_stream_region(&mut self, region: usize, all: bool) -> Range<u64> {
        if self.requested < self.next_stream_at {
            return 0..0;
        }
        let within = if all { 0..self.regions.len() } else { self.neighbourhood(region) };
        let first = if within.contains(&self.stream_region) { self.stream_region } else { within.start };
        let mut candidates = (first..within.end).chain(within.start..first);
        let Some(next) =
            candidates.find(|region| u64::from(self.regions[*region].requested) < self.region_slots(*region))
        else {
            self.next_stream_at = if all { u64::MAX } else { 0 };
            return 0..0;
        };
        self.stream_region = next + 1;
        self.regions[next].window_level = WINDOWS_SLOTS.len() as u8;
        self.next_stream_at = self.requested + (self.region_slots(next) - u64::from(self.regions[next].requested)) / 2;
        let start = next as u64 * REGION_SLOTS;
        start..start + self.region_slots(next)
    }

    fn neighbourhood(&self, region: usize) -> Range<usize> {
        let start = region / NEIGHBOURHOOD_REGIONS * NEIGHBOURHOOD_REGIONS;
        start..(start + NEIGHBOURHOOD_REGIONS).min(self.regions.len())
    }

    fn region_slots(&self, region: usize) -> u64 {
        REGION_SLOTS.min(self.slots - region as u64 * REGION_SLOTS)
    }
}

/// Returns the aligned window of `window` slots around a slot.
fn aligned_window(slot: u64, window: u64, slots: u64) -> Range<u64> {
    let start = slot / window * window;
    start..(start + window).min(slots)
}

/// Returns the number of touches that a fault counts for, in units of 1/[`PARTS_PER_TOUCH`], if `present` of `slots`
/// are present.
fn touch_estimate(slots: u64, present: u64) -> u64 {
    let missing = slots.saturating_sub(present).max(1);
    (slots * PARTS_PER_TOUCH / missing).clamp(PARTS_PER_TOUCH, TOUCHES_PER_FAULT_MAX * PARTS_PER_TOUCH)
}

/// Calls `apply` with each region of these slots, and the number of these slots in the region.
fn for_each_region(slots: Range<u64>, mut apply: impl FnMut(usize, u16)) {
    let mut next = slots.start;
    while next < slots.end {
        let region = next / REGION_SLOTS;
        let end = slots.end.min((region + 1) * REGION_SLOTS);
        apply(region as usize, (end - next) as u16);
        next = end;
    }
}

#[cfg(test)]
mod tests;
