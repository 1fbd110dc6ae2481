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
const ALONG_SLOTS: u64 = 32;

/// First window of a region behind one that is fetched whole: the process may go through memory in order.
const BEHIND_WHOLE: u8 = 1;

/// Regions of a neighbourhood, 16 MiB: small beside what a large process has, and large enough that chance does not
/// make it look twice as full of touches as it is.
const NEIGHBOURHOOD_REGIONS: usize = 8;

/// One in so many slots of a neighbourhood that was touched, 7 %, has all of it fetched. Of touches spread over 5 % of
/// memory at random, not one neighbourhood in a million gets so many.
const NEIGHBOURHOOD_PART: u64 = 14;

/// One touch for so many slots that are missing has everything fetched: its faults took as long as the rest will.
const ALL_PART: u64 = 17;

/// What may be fetched unasked for before anything else is known: everything of a small process, and the less of a
/// larger one, the larger it is, for the less likely it is that it needs all. Here the two are equal, 200 MiB: a
/// transfer of some tenths of a second.
const ALLOWANCE_SLOTS: u64 = 51_200;

/// At least one in so many slots, 4 %. A tenth in all may move for a twentieth that was touched.
const ALLOWANCE_PART: u64 = 25;

/// One more slot may be fetched unasked for with so many that were touched.
const EARNED_PART: u64 = 8;

/// Most touches that one fault stands for: near the end of a stream chance rules.
const TOUCHES_PER_FAULT_MAX: u64 = 16;

/// Touches are counted in parts of one: where a tenth of the pages is there, a fault stands for more than one touch.
const PARTS: u64 = 16;

/// Runs that are followed at once: as many as threads of a program usually scan memory.
const RUNS: usize = 4;

/// Least that is fetched ahead of a run, and most: a few of the longest reads of a link.
const RUN_SLOTS_MIN: u64 = 32;
const RUN_SLOTS_MAX: u64 = 2048;

/// How a fault found its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nobody asked for it yet.
    Missing,
    /// It is on its way.
    Late,
}

/// What is worth fetching at a fault, beside its page. Empty ranges stand for nothing; what is there, or on its way, may
/// be among it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ahead {
    /// Around the fault, to come with its page.
    pub(super) along: Range<u64>,
    /// Around the fault, or ahead of it.
    pub(super) window: Range<u64>,
    /// A region of the stream.
    pub(super) stream: Range<u64>,
}

impl Ahead {
    /// Nothing.
    pub(super) const NOTHING: Self = Self { along: 0..0, window: 0..0, stream: 0..0 };
}

/// A part of the slots.
#[derive(Debug, Clone, Copy, Default)]
struct Region {
    /// Slots that are there or on their way.
    here: u16,
    /// [`PARTS`] of slots that were touched, by estimate.
    touched_parts: u16,
    /// The next of [`WINDOWS_SLOTS`].
    level: u8,
}

/// Slots that are touched in order.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    start: u64,
    /// The last fault.
    last: u64,
    /// Behind what was fetched for it.
    end: u64,
    /// A fault was where the one before it led.
    in_order: bool,
}

/// What the faults of one address space have told.
#[derive(Debug, Clone)]
pub(super) struct Readahead {
    window_slots_max: u64,
    along_slots: u64,
    slots: u64,
    regions: Vec<Region>,
    /// Slots that are there or on their way.
    here: u64,
    /// [`PARTS`] of slots that were touched, by estimate.
    touched_parts: u64,
    /// Slots that windows had fetched unasked for.
    unasked: u64,
    /// The one that was used last stands first.
    runs: [Run; RUNS],
    /// The region at which the stream goes on.
    cursor: usize,
    /// When so many slots are here, another region may come.
    streamed_to: u64,
}

impl Readahead {
    /// For so many slots; windows have at most `window_slots_max` (1: each page on demand).
    pub(super) fn new(slots: u64, window_slots_max: u64) -> Self {
        Self {
            window_slots_max: window_slots_max.max(1),
            along_slots: window_slots_max.clamp(1, ALONG_SLOTS),
            slots,
            regions: vec![Region::default(); slots.div_ceil(REGION_SLOTS) as usize],
            here: 0,
            touched_parts: 0,
            unasked: 0,
            runs: [Run::default(); RUNS],
            cursor: 0,
            streamed_to: 0,
        }
    }

    /// Slots were asked for that were not here.
    pub(super) fn asked(&mut self, slots: Range<u64>) {
        self.here += slots.end - slots.start;
        for_regions(slots, |region, count| self.regions[region].here += count);
    }

    /// Slots that were asked for will not come.
    pub(super) fn dropped(&mut self, slots: Range<u64>) {
        self.here -= slots.end - slots.start;
        self.streamed_to = 0;
        for_regions(slots, |region, count| self.regions[region].here -= count);
    }

    /// Has pages come alone from now on.
    pub(super) fn bring_alone(&mut self) {
        self.along_slots = 1;
    }

    /// What the fault at `slot` calls for. `follows`: the slot before it is there.
    pub(super) fn fault(&mut self, slot: u64, found: Found, follows: bool) -> Ahead {
        let alone = slot..slot + 1;
        if self.window_slots_max == 1 {
            return Ahead { along: alone.clone(), window: alone, stream: 0..0 };
        }
        let region = (slot / REGION_SLOTS) as usize;
        self.note_touch(region);
        let run = if follows { self.goes_on(slot, found) } else { None };
        let all = self.touched_parts * ALL_PART >= (self.slots - self.here) * PARTS;
        let unlocked = all || self.is_wanted(region);
        let window = match (run, found) {
            (Some(run), _) => run,
            (None, Found::Late) => alone.clone(),
            (None, Found::Missing) if unlocked || self.is_allowed() => self.window(slot),
            (None, Found::Missing) => alone.clone(),
        };
        let along = if unlocked { aligned(slot, self.along_slots, self.slots) } else { alone };
        let goes_on = self.runs[0].last == slot && self.runs[0].end > slot;
        if found == Found::Missing && !goes_on {
            self.runs.rotate_right(1);
            self.runs[0] = Run { start: slot, last: slot, end: window.end, in_order: false };
        }
        let stream = if unlocked { self.stream(region, all) } else { 0..0 };
        Ahead { along, window, stream }
    }

    fn note_touch(&mut self, region: usize) {
        let size = self.size(region);
        let Region { here, touched_parts, .. } = &mut self.regions[region];
        let parts = parts_touched(size, u64::from(*here));
        *touched_parts = (u64::from(*touched_parts) + parts).min(size * PARTS) as u16;
        self.touched_parts += parts_touched(self.slots, self.here);
    }

    /// What to fetch where this fault goes on from an earlier one.
    fn goes_on(&mut self, slot: u64, found: Found) -> Option<Range<u64>> {
        // Who goes through pages that come one after the other is late for the next, but misses none before the end.
        let at = self.runs.iter().position(|run| match found {
            Found::Missing => slot == run.end || slot == run.last + 1,
            Found::Late => run.in_order && run.last < slot && slot < run.end,
        })?;
        self.runs[..=at].rotate_right(1);
        let run = &mut self.runs[0];
        run.in_order = true;
        let ahead = (slot - run.start).clamp(RUN_SLOTS_MIN, RUN_SLOTS_MAX).min(self.window_slots_max);
        // The touch of this slot is counted already.
        self.touched_parts += slot.saturating_sub(run.last + 1) * PARTS;
        run.last = slot;
        if run.end.saturating_sub(slot) < ahead / 2 {
            run.end = (slot + ahead).min(self.slots);
        }
        Some(slot..run.end.max(slot + 1))
    }

    /// Whether more may be fetched unasked for.
    fn is_allowed(&self) -> bool {
        let allowance = ALLOWANCE_SLOTS * ALLOWANCE_SLOTS / self.slots.max(1);
        self.unasked < allowance.max(self.slots / ALLOWANCE_PART) + self.touched_parts / (EARNED_PART * PARTS)
    }

    /// Whether so much around a region was touched that the rest of it will be wanted.
    fn is_wanted(&self, region: usize) -> bool {
        let neighbourhood = self.neighbourhood(region);
        let slots = neighbourhood.len() as u64 * REGION_SLOTS;
        let parts: u64 = self.regions[neighbourhood].iter().map(|region| u64::from(region.touched_parts)).sum();
        parts * NEIGHBOURHOOD_PART >= slots * PARTS
    }

    fn window(&mut self, slot: u64) -> Range<u64> {
        let region = (slot / REGION_SLOTS) as usize;
        let levels = WINDOWS_SLOTS.len() as u8;
        let behind_whole = region > 0 && self.regions[region - 1].level >= levels;
        let least = match (self.slots <= SMALL_SLOTS, behind_whole) {
            (true, _) => levels - 1,
            (false, true) => BEHIND_WHOLE,
            (false, false) => 0,
        };
        let level = self.regions[region].level.max(least);
        self.regions[region].level = (level + 1).min(levels);
        let window = WINDOWS_SLOTS[level.min(levels - 1) as usize].min(self.window_slots_max);
        self.unasked += window.saturating_sub(u64::from(self.regions[region].here) + 1);
        aligned(slot, window, self.slots)
    }

    /// The next region of the stream, when the one before has been asked for mostly.
    fn stream(&mut self, region: usize, all: bool) -> Range<u64> {
        if self.here < self.streamed_to {
            return 0..0;
        }
        let within = if all { 0..self.regions.len() } else { self.neighbourhood(region) };
        let first = if within.contains(&self.cursor) { self.cursor } else { within.start };
        let mut candidates = (first..within.end).chain(within.start..first);
        let Some(next) = candidates.find(|region| u64::from(self.regions[*region].here) < self.size(*region)) else {
            self.streamed_to = if all { u64::MAX } else { 0 };
            return 0..0;
        };
        self.cursor = next + 1;
        self.regions[next].level = WINDOWS_SLOTS.len() as u8;
        self.streamed_to = self.here + (self.size(next) - u64::from(self.regions[next].here)) / 2;
        let start = next as u64 * REGION_SLOTS;
        start..start + self.size(next)
    }

    fn neighbourhood(&self, region: usize) -> Range<usize> {
        let start = region / NEIGHBOURHOOD_REGIONS * NEIGHBOURHOOD_REGIONS;
        start..(start + NEIGHBOURHOOD_REGIONS).min(self.regions.len())
    }

    fn size(&self, region: usize) -> u64 {
        REGION_SLOTS.min(self.slots - region as u64 * REGION_SLOTS)
    }
}

/// The window of this size, aligned to it, that a slot lies in.
fn aligned(slot: u64, window: u64, slots: u64) -> Range<u64> {
    let start = slot / window * window;
    start..(start + window).min(slots)
}

/// How many parts of touches a fault stands for, where `here` of so many slots are there, which nobody sees touched.
fn parts_touched(slots: u64, here: u64) -> u64 {
    let missing = slots.saturating_sub(here).max(1);
    (slots * PARTS / missing).clamp(PARTS, TOUCHES_PER_FAULT_MAX * PARTS)
}

/// Calls `apply` with each region that slots lie in, and how many.
fn for_regions(slots: Range<u64>, mut apply: impl FnMut(usize, u16)) {
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
        readahead: Readahead,
        here: Vec<bool>,
        /// What is to be fetched ahead, and how much of it comes until the next fault.
        queue: VecDeque<u64>,
        slots_per_fault: usize,
        faults: u64,
        moved: u64,
    }

    impl Process {
        fn new(slots: u64, slots_per_fault: usize) -> Self {
            let (readahead, here) = (Readahead::new(slots, REGION_SLOTS), vec![false; slots as usize]);
            Self { readahead, here, queue: VecDeque::new(), slots_per_fault, faults: 0, moved: 0 }
        }

        fn touch(&mut self, slot: u64) {
            if self.here[slot as usize] {
                return;
            }
            self.faults += 1;
            let follows = slot > 0 && self.here[slot as usize - 1];
            let Ahead { along, window, stream } = self.readahead.fault(slot, Found::Missing, follows);
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
                self.readahead.asked(slot..slot + 1);
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
        let mut readahead = Readahead::new(4 * REGION_SLOTS, REGION_SLOTS);
        let mut window = |slot| readahead.fault(slot, Found::Missing, false).window;
        assert_eq!(window(700), 700..701);
        assert_eq!(window(900), 896..928);
        assert_eq!(window(520), 512..1024);
        assert_eq!(window(1100), 1088..1120, "the region behind a whole one starts larger");
        assert_eq!(window(1600), 1600..1601);
    }

    #[test]
    fn one_page_at_a_time_when_told_so() {
        let mut readahead = Readahead::new(100, 1);
        for slot in 0..100 {
            let ahead = readahead.fault(slot, Found::Missing, slot > 0);
            assert_eq!((ahead.window, ahead.stream), (slot..slot + 1, 0..0));
            readahead.asked(slot..slot + 1);
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
            let most = GIB_SLOTS / ALL_PART + GIB_SLOTS / (ALONG_SLOTS + slots_per_fault as u64);
            assert!(process.faults <= most, "{}", process.faults);
        }
    }

    #[test]
    fn pages_come_alone_once_others_could_not() {
        let mut readahead = Readahead::new(4 * REGION_SLOTS, REGION_SLOTS);
        let mut along = |slot| readahead.fault(slot, Found::Missing, false).along;
        assert_eq!(along(700), 700..701);
        assert_eq!((0..200).map(|touch| along(10 * touch + 5)).last(), Some(1984..2016), "all will be wanted");
        readahead.bring_alone();
        assert_eq!(readahead.fault(1700, Found::Missing, false).along, 1700..1701);
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
            let mut readahead = Readahead::new(slots, window);
            let mut here = vec![false; slots as usize];
            for step in steps {
                match step {
                    Step::Fault(slot, late, follows) => {
                        let slot = slot % slots;
                        let found = if late { Found::Late } else { Found::Missing };
                        let ahead = readahead.fault(slot, found, follows);
                        prop_assert!(ahead.window.contains(&slot) && ahead.window.end <= slots);
                        prop_assert!(ahead.window.end - ahead.window.start <= window.max(1).max(RUN_SLOTS_MAX));
                        prop_assert!(ahead.stream.end <= slots && ahead.stream.end - ahead.stream.start <= REGION_SLOTS);
                        prop_assert!(window > 1 || (ahead.window.end - ahead.window.start == 1 && ahead.stream.is_empty()));
                    }
                    Step::Ask(start, count) => {
                        let start = start % slots;
                        for slot in start..(start + count).min(slots) {
                            if !std::mem::replace(&mut here[slot as usize], true) {
                                readahead.asked(slot..slot + 1);
                            }
                        }
                    }
                    Step::Drop(start, count) => {
                        let start = start % slots;
                        for slot in start..(start + count).min(slots) {
                            if std::mem::replace(&mut here[slot as usize], false) {
                                readahead.dropped(slot..slot + 1);
                            }
                        }
                    }
                }
                prop_assert_eq!(readahead.here, here.iter().filter(|here| **here).count() as u64);
                let in_regions: u64 = readahead.regions.iter().map(|region| u64::from(region.here)).sum();
                prop_assert_eq!(readahead.here, in_regions);
            }
        }
    }
}
