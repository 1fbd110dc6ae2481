//! What to fetch around a fault. Pure: slots in, ranges out.
//!
//! A fault costs the child a round trip, some twenty times what one more page of a stream costs, and nobody knows which
//! pages it will touch next. Three answers, each with the evidence that it asks for:
//!
//! - *Windows.* The slots are divided into regions. The more faults a region has had, the more is fetched at the next:
//!   a page, a few, the rest. What windows bring unasked for is paid from an allowance: an amount that does not matter,
//!   and what was touched since.
//! - *Runs.* Who goes through memory in order gets as much ahead as it went through so far, up to a limit.
//! - *Streams.* Where so large a part of a neighbourhood, or of all, was touched that the rest will be wanted too, each
//!   fault lets another region come, wherever it is. The faults keep it going: it ends soon after the last. And what
//!   lies around the page comes along with it: whoever waits for single pages meanwhile pays a round trip for each.
//!
//! Touches of pages that are there already cannot be seen. Where half of the pages are, a fault among the other half
//! stands for two touches.

use std::ops::Range;

/// Slots per region: 2 MiB of data.
pub(super) const REGION_SLOTS: u64 = 512;

/// Slots fetched at the first, second … fault of a region, aligned to their own size.
const WINDOWS_SLOTS: [u64; 3] = [1, 32, REGION_SLOTS];

/// A process of so many slots, 4 MiB, has a whole region fetched at the first fault: that costs as much as some ten faults,
/// and each process has more than that before it does anything of its own.
const SMALL_SLOTS: u64 = 1024;

/// Slots that come along with a page where all around it will be wanted, aligned: they cost some three faults.
const FAULT_AROUND_SLOTS: u64 = 32;

/// First window of a region behind one that is fetched whole: the process may go through memory in order.
const WINDOW_AFTER_FULL_REGION: u8 = 1;

/// Regions of a neighbourhood, 16 MiB: small beside what a large process has, and large enough that chance does not
/// make it look twice as full of touches as it is.
const NEIGHBOURHOOD_REGIONS: usize = 8;

/// One in so many slots of a neighbourhood that was touched, 7 %, has all of it fetched. Of touches spread over 5 % of
/// memory at random, not one neighbourhood in a million gets so many.
const NEIGHBOURHOOD_TOUCH_FRACTION: u64 = 14;

/// One touch for so many slots that are missing has everything fetched: its faults took as long as the rest will.
const FULL_FETCH_TOUCH_FRACTION: u64 = 17;

/// What may be fetched unasked for before anything else is known: everything of a small process, and the less of a
/// larger one, the larger it is, for the less likely it is that it needs all. Here the two are equal, 200 MiB: a
/// transfer of some tenths of a second.
const ALLOWANCE_SLOTS: u64 = 51_200;

/// At least one in so many slots, 4 %. A tenth in all may move for a twentieth that was touched.
const ALLOWANCE_FRACTION: u64 = 25;

/// One more slot may be fetched unasked for with so many that were touched.
const TOUCHES_PER_EARNED_SLOT: u64 = 8;

/// Most touches that one fault stands for: near the end of a stream chance rules.
const TOUCHES_PER_FAULT_MAX: u64 = 16;

/// Touches are counted in parts of one: where a tenth of the pages is there, a fault stands for more than one touch.
const PARTS_PER_TOUCH: u64 = 16;

/// Runs that are followed at once: as many as threads of a program usually scan memory.
const TRACKED_RUNS: usize = 4;

/// Least that is fetched ahead of a run, and most: a few of the longest reads of a link.
const RUN_SLOTS_MIN: u64 = 32;
const RUN_SLOTS_MAX: u64 = 2048;

/// How a fault found its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultState {
    /// Nobody asked for it yet.
    NotRequested,
    /// It is on its way.
    InFlight,
}

/// What is worth fetching at a fault, beside its page. Empty ranges stand for nothing; what is there, or on its way, may
/// be among it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PrefetchRanges {
    /// Around the fault, to come with its page.
    pub(super) fault_around: Range<u64>,
    /// Around the fault, or ahead of it.
    pub(super) window: Range<u64>,
    /// A region of the stream.
    pub(super) stream: Range<u64>,
}

impl PrefetchRanges {
    /// Nothing.
    pub(super) const NONE: Self = Self { fault_around: 0..0, window: 0..0, stream: 0..0 };
}

/// A part of the slots.
#[derive(Debug, Clone, Copy, Default)]
struct ReadaheadRegion {
    /// Slots that are there or on their way.
    requested: u16,
    /// [`PARTS`] of slots that were touched, by estimate.
    touched_parts: u16,
    /// The next of [`WINDOWS_SLOTS`].
    window_level: u8,
}

/// Slots that are touched in order.
#[derive(Debug, Clone, Copy, Default)]
struct SequentialRun {
    start: u64,
    /// The last fault.
    last_fault: u64,
    /// Behind what was fetched for it.
    fetched_end: u64,
    /// A fault was where the one before it led.
    is_confirmed: bool,
}

/// What the faults of one address space have told.
#[derive(Debug, Clone)]
pub(super) struct ReadaheadState {
    window_slots_max: u64,
    fault_around_slots: u64,
    slots: u64,
    regions: Vec<ReadaheadRegion>,
    /// Slots that are there or on their way.
    requested: u64,
    /// [`PARTS`] of slots that were touched, by estimate.
    touched_parts: u64,
    /// Slots that windows had fetched unasked for.
    speculative_slots: u64,
    /// The one that was used last stands first.
    runs: [SequentialRun; TRACKED_RUNS],
    /// The region at which the stream goes on.
    stream_region: usize,
    /// When so many slots are here, another region may come.
    next_stream_at: u64,
}

impl ReadaheadState {
    /// For so many slots; windows have at most `window_slots_max` (1: each page on demand).
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

    /// Slots were asked for that were not here.
    pub(super) fn note_requested(&mut self, slots: Range<u64>) {
        self.requested += slots.end - slots.start;
        for_each_region(slots, |region, count| self.regions[region].requested += count);
    }

    /// Slots that were asked for will not come.
    pub(super) fn note_dropped(&mut self, slots: Range<u64>) {
        self.requested -= slots.end - slots.start;
        self.next_stream_at = 0;
        for_each_region(slots, |region, count| self.regions[region].requested -= count);
    }

    /// Has pages come alone from now on.
    pub(super) fn disable_fault_around(&mut self) {
        self.fault_around_slots = 1;
    }

    /// What the fault at `slot` calls for. `follows`: the slot before it is there.
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
        let along = if unlocked { aligned_window(slot, self.fault_around_slots, self.slots) } else { alone };
        let goes_on = self.runs[0].last_fault == slot && self.runs[0].fetched_end > slot;
        if found == FaultState::NotRequested && !goes_on {
            self.runs.rotate_right(1);
            self.runs[0] =
                SequentialRun { start: slot, last_fault: slot, fetched_end: window.end, is_confirmed: false };
        }
        let stream = if unlocked { self.next_stream_region(region, all) } else { 0..0 };
        PrefetchRanges { fault_around: along, window, stream }
    }

    fn note_touch(&mut self, region: usize) {
        let size = self.region_slots(region);
        let ReadaheadRegion { requested: here, touched_parts, .. } = &mut self.regions[region];
        let parts = touch_estimate(size, u64::from(*here));
        *touched_parts = (u64::from(*touched_parts) + parts).min(size * PARTS_PER_TOUCH) as u16;
        self.touched_parts += touch_estimate(self.slots, self.requested);
    }

    /// What to fetch where this fault goes on from an earlier one.
    fn extend_run(&mut self, slot: u64, found: FaultState) -> Option<Range<u64>> {
        // Who goes through pages that come one after the other is late for the next, but misses none before the end.
        let at = self.runs.iter().position(|run| match found {
            FaultState::NotRequested => slot == run.fetched_end || slot == run.last_fault + 1,
            FaultState::InFlight => run.is_confirmed && run.last_fault < slot && slot < run.fetched_end,
        })?;
        self.runs[..=at].rotate_right(1);
        let run = &mut self.runs[0];
        run.is_confirmed = true;
        let ahead = (slot - run.start).clamp(RUN_SLOTS_MIN, RUN_SLOTS_MAX).min(self.window_slots_max);
        // The touch of this slot is counted already.
        self.touched_parts += slot.saturating_sub(run.last_fault + 1) * PARTS_PER_TOUCH;
        run.last_fault = slot;
        if run.fetched_end.saturating_sub(slot) < ahead / 2 {
            run.fetched_end = (slot + ahead).min(self.slots);
        }
        Some(slot..run.fetched_end.max(slot + 1))
    }

    /// Whether more may be fetched unasked for.
    fn has_allowance(&self) -> bool {
        let allowance = ALLOWANCE_SLOTS * ALLOWANCE_SLOTS / self.slots.max(1);
        self.speculative_slots
            < allowance.max(self.slots / ALLOWANCE_FRACTION)
                + self.touched_parts / (TOUCHES_PER_EARNED_SLOT * PARTS_PER_TOUCH)
    }

    /// Whether so much around a region was touched that the rest of it will be wanted.
    fn is_neighbourhood_hot(&self, region: usize) -> bool {
        let neighbourhood = self.neighbourhood(region);
        let slots = neighbourhood.len() as u64 * REGION_SLOTS;
        let parts: u64 = self.regions[neighbourhood].iter().map(|region| u64::from(region.touched_parts)).sum();
        parts * NEIGHBOURHOOD_TOUCH_FRACTION >= slots * PARTS_PER_TOUCH
    }

    fn grow_window(&mut self, slot: u64) -> Range<u64> {
        let region = (slot / REGION_SLOTS) as usize;
        let levels = WINDOWS_SLOTS.len() as u8;
        let behind_whole = region > 0 && self.regions[region - 1].window_level >= levels;
        let least = match (self.slots <= SMALL_SLOTS, behind_whole) {
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

    /// The next region of the stream, when the one before has been asked for mostly.
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

/// The window of this size, aligned to it, that a slot lies in.
fn aligned_window(slot: u64, window: u64, slots: u64) -> Range<u64> {
    let start = slot / window * window;
    start..(start + window).min(slots)
}

/// How many parts of touches a fault stands for, where `here` of so many slots are there, which nobody sees touched.
fn touch_estimate(slots: u64, here: u64) -> u64 {
    let missing = slots.saturating_sub(here).max(1);
    (slots * PARTS_PER_TOUCH / missing).clamp(PARTS_PER_TOUCH, TOUCHES_PER_FAULT_MAX * PARTS_PER_TOUCH)
}

/// Calls `apply` with each region that slots lie in, and how many.
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const GIB_SLOTS: u64 = 1 << 18;

    /// A process, its link, and what it costs.
    struct Process {
        readahead: ReadaheadState,
        here: Vec<bool>,
        /// What is to be fetched ahead, and how much of it comes until the next fault.
        queue: VecDeque<u64>,
        slots_per_fault: usize,
        faults: u64,
        moved: u64,
    }

    impl Process {
        fn new(slots: u64, slots_per_fault: usize) -> Self {
            let (readahead, here) = (ReadaheadState::new(slots, REGION_SLOTS), vec![false; slots as usize]);
            Self { readahead, here, queue: VecDeque::new(), slots_per_fault, faults: 0, moved: 0 }
        }

        fn touch(&mut self, slot: u64) {
            if self.here[slot as usize] {
                return;
            }
            self.faults += 1;
            let follows = slot > 0 && self.here[slot as usize - 1];
            let PrefetchRanges { fault_around: along, window, stream } =
                self.readahead.on_fault(slot, FaultState::NotRequested, follows);
            assert!(along.contains(&slot) && along.end <= self.here.len() as u64);
            assert!(window.contains(&slot) && window.end <= self.here.len() as u64);
            assert!(stream.end <= self.here.len() as u64);
            along.for_each(|slot| self.fetch(slot));
            self.queue.extend(window.chain(stream));
            for _ in 0..self.slots_per_fault.min(self.queue.len()) {
                let next = self.queue.pop_front().unwrap();
                self.fetch(next);
            }
        }

        fn fetch(&mut self, slot: u64) {
            if !std::mem::replace(&mut self.here[slot as usize], true) {
                self.readahead.note_requested(slot..slot + 1);
                self.moved += 1;
            }
        }
    }

    /// All slots, in an order that has none.
    fn shuffled(slots: u64, seed: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..slots).collect();
        let mut state = seed | 1;
        for index in (1..slots as usize).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(index, (state % (index as u64 + 1)) as usize);
        }
        order
    }

    #[test]
    fn a_lone_touch_brings_one_page_and_the_third_the_region() {
        let mut readahead = ReadaheadState::new(4 * REGION_SLOTS, REGION_SLOTS);
        let mut window = |slot| readahead.on_fault(slot, FaultState::NotRequested, false).window;
        assert_eq!(window(700), 700..701);
        assert_eq!(window(900), 896..928);
        assert_eq!(window(520), 512..1024);
        assert_eq!(window(1100), 1088..1120, "the region behind a whole one starts larger");
        assert_eq!(window(1600), 1600..1601);
    }

    #[test]
    fn one_page_at_a_time_when_told_so() {
        let mut readahead = ReadaheadState::new(100, 1);
        for slot in 0..100 {
            let ahead = readahead.on_fault(slot, FaultState::NotRequested, slot > 0);
            assert_eq!((ahead.window, ahead.stream), (slot..slot + 1, 0..0));
            readahead.note_requested(slot..slot + 1);
        }
    }

    #[test]
    fn a_run_has_as_much_ahead_as_behind() {
        let mut process = Process::new(GIB_SLOTS, usize::MAX);
        for slot in 0..GIB_SLOTS / 20 {
            process.touch(slot);
            assert!(process.moved <= 2 * (slot + 1) + RUN_SLOTS_MIN, "{} at {slot}", process.moved);
        }
        assert!(process.faults < 40, "{}", process.faults);
    }

    #[test]
    fn everything_comes_to_who_touches_everything() {
        for (slots, part) in [(256, 16), (1024, 32), (16 << 10, 60), (64 << 10, 40), (GIB_SLOTS, 16)] {
            let mut process = Process::new(slots, usize::MAX);
            shuffled(slots, slots).into_iter().for_each(|slot| process.touch(slot));
            assert!(process.faults <= slots / part, "{} faults for {slots} pages", process.faults);
        }
    }

    #[test]
    fn who_waits_beside_its_own_stream_is_brought_a_window() {
        for slots_per_fault in [0, 10, 40] {
            let mut process = Process::new(GIB_SLOTS, slots_per_fault);
            shuffled(GIB_SLOTS, 1).into_iter().for_each(|slot| process.touch(slot));
            let most =
                GIB_SLOTS / FULL_FETCH_TOUCH_FRACTION + GIB_SLOTS / (FAULT_AROUND_SLOTS + slots_per_fault as u64);
            assert!(process.faults <= most, "{}", process.faults);
        }
    }

    #[test]
    fn pages_come_alone_once_others_could_not() {
        let mut readahead = ReadaheadState::new(4 * REGION_SLOTS, REGION_SLOTS);
        let mut along = |slot| readahead.on_fault(slot, FaultState::NotRequested, false).fault_around;
        assert_eq!(along(700), 700..701);
        assert_eq!((0..200).map(|touch| along(10 * touch + 5)).last(), Some(1984..2016), "all will be wanted");
        readahead.disable_fault_around();
        assert_eq!(readahead.on_fault(1700, FaultState::NotRequested, false).fault_around, 1700..1701);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn who_touches_little_gets_little(seed in any::<u64>(), part in prop_oneof![Just(20), 20u64..400], slots_per_fault in 0usize..80) {
            let mut process = Process::new(GIB_SLOTS, slots_per_fault);
            let touched = (GIB_SLOTS / part) as usize;
            shuffled(GIB_SLOTS, seed).into_iter().take(touched).for_each(|slot| process.touch(slot));
            prop_assert!(process.moved <= GIB_SLOTS / 10, "{} of {touched}", process.moved);
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Fault(u64, bool, bool),
        Ask(u64, u64),
        Drop(u64, u64),
    }

    proptest! {
        #[test]
        fn ranges_stay_inside_and_counts_are_right(
            slots in 1u64..5000, window in 0u64..600,
            steps in prop::collection::vec(prop_oneof![
                (any::<u64>(), any::<bool>(), any::<bool>()).prop_map(|(slot, late, follows)| Step::Fault(slot, late, follows)),
                (any::<u64>(), 1u64..900).prop_map(|(start, count)| Step::Ask(start, count)),
                (any::<u64>(), 1u64..900).prop_map(|(start, count)| Step::Drop(start, count)),
            ], 1..80),
        ) {
            let mut readahead = ReadaheadState::new(slots, window);
            let mut here = vec![false; slots as usize];
            for step in steps {
                match step {
                    Step::Fault(slot, late, follows) => {
                        let slot = slot % slots;
                        let found = if late { FaultState::InFlight } else { FaultState::NotRequested };
                        let ahead = readahead.on_fault(slot, found, follows);
                        prop_assert!(ahead.window.contains(&slot) && ahead.window.end <= slots);
                        prop_assert!(ahead.window.end - ahead.window.start <= window.max(1).max(RUN_SLOTS_MAX));
                        prop_assert!(ahead.stream.end <= slots && ahead.stream.end - ahead.stream.start <= REGION_SLOTS);
                        prop_assert!(window > 1 || (ahead.window.end - ahead.window.start == 1 && ahead.stream.is_empty()));
                    }
                    Step::Ask(start, count) => {
                        let start = start % slots;
                        for slot in start..(start + count).min(slots) {
                            if !std::mem::replace(&mut here[slot as usize], true) {
                                readahead.note_requested(slot..slot + 1);
                            }
                        }
                    }
                    Step::Drop(start, count) => {
                        let start = start % slots;
                        for slot in start..(start + count).min(slots) {
                            if std::mem::replace(&mut here[slot as usize], false) {
                                readahead.note_dropped(slot..slot + 1);
                            }
                        }
                    }
                }
                prop_assert_eq!(readahead.requested, here.iter().filter(|here| **here).count() as u64);
                let in_regions: u64 = readahead.regions.iter().map(|region| u64::from(region.requested)).sum();
                prop_assert_eq!(readahead.requested, in_regions);
            }
        }
    }
}
