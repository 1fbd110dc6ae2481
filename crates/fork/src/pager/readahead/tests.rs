//! Tests of readahead on access patterns: sequential, random and mixed.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const GIB_SLOTS: u64 = 1 << 18;

/// A simulated process with its link and its costs.
struct ReadingProcess {
    readahead: ReadaheadState,
    present: Vec<bool>,
    /// The slots to prefetch, and how many of them arrive before the next fault.
    queue: VecDeque<u64>,
    slots_per_fault: usize,
    faults: u64,
    moved: u64,
}

impl ReadingProcess {
    fn new(slots: u64, slots_per_fault: usize) -> Self {
        let (readahead, present) = (ReadaheadState::new(slots, REGION_SLOTS), vec![false; slots as usize]);
        Self { readahead, present, queue: VecDeque::new(), slots_per_fault, faults: 0, moved: 0 }
    }

    fn touch(&mut self, slot: u64) {
        if self.present[slot as usize] {
            return;
        }
        self.faults += 1;
        let follows = slot > 0 && self.present[slot as usize - 1];
        let PrefetchRanges { fault_around, window, stream } =
            self.readahead.on_fault(slot, FaultState::NotRequested, follows);
        assert!(fault_around.contains(&slot) && fault_around.end <= self.present.len() as u64);
        assert!(window.contains(&slot) && window.end <= self.present.len() as u64);
        assert!(stream.end <= self.present.len() as u64);
        fault_around.for_each(|slot| self.fetch(slot));
        self.queue.extend(window.chain(stream));
        for _ in 0..self.slots_per_fault.min(self.queue.len()) {
            let next = self.queue.pop_front().unwrap();
            self.fetch(next);
        }
    }

    fn fetch(&mut self, slot: u64) {
        if !std::mem::replace(&mut self.present[slot as usize], true) {
            self.readahead.note_requested(slot..slot + 1);
            self.moved += 1;
        }
    }
}

/// All slots in a pseudo-random order.
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
fn repeated_faults_of_a_region_fetch_growing_windows() {
    let mut readahead = ReadaheadState::new(4 * REGION_SLOTS, REGION_SLOTS);
    let mut window = |slot| readahead.on_fault(slot, FaultState::NotRequested, false).window;
    assert_eq!(window(700), 700..701);
    assert_eq!(window(900), 896..928);
    assert_eq!(window(520), 512..1024);
    assert_eq!(window(1100), 1088..1120, "the region after a complete one starts with a larger window");
    assert_eq!(window(1600), 1600..1601);
}

#[test]
fn a_window_of_one_fetches_single_pages() {
    let mut readahead = ReadaheadState::new(100, 1);
    for slot in 0..100 {
        let ahead = readahead.on_fault(slot, FaultState::NotRequested, slot > 0);
        assert_eq!((ahead.window, ahead.stream), (slot..slot + 1, 0..0));
        readahead.note_requested(slot..slot + 1);
    }
}

#[test]
fn a_sequential_read_fetches_at_most_twice_its_pages() {
    let mut process = ReadingProcess::new(GIB_SLOTS, usize::MAX);
    for slot in 0..GIB_SLOTS / 20 {
        process.touch(slot);
        assert!(process.moved <= 2 * (slot + 1) + RUN_SLOTS_MIN, "{} at {slot}", process.moved);
    }
    assert!(process.faults < 40, "{}", process.faults);
}

#[test]
fn a_process_that_touches_all_pages_gets_all_with_few_faults() {
    for (slots, part) in [(256, 16), (1024, 32), (16 << 10, 60), (64 << 10, 40), (GIB_SLOTS, 16)] {
        let mut process = ReadingProcess::new(slots, usize::MAX);
        shuffled(slots, slots).into_iter().for_each(|slot| process.touch(slot));
        assert!(process.faults <= slots / part, "{} faults for {slots} pages", process.faults);
    }
}

#[test]
fn a_fault_next_to_a_stream_fetches_a_window() {
    for slots_per_fault in [0, 10, 40] {
        let mut process = ReadingProcess::new(GIB_SLOTS, slots_per_fault);
        shuffled(GIB_SLOTS, 1).into_iter().for_each(|slot| process.touch(slot));
        let most = GIB_SLOTS / FULL_FETCH_TOUCH_FRACTION + GIB_SLOTS / (FAULT_AROUND_SLOTS + slots_per_fault as u64);
        assert!(process.faults <= most, "{}", process.faults);
    }
}

#[test]
fn faults_fetch_single_pages_after_windows_failed() {
    let mut readahead = ReadaheadState::new(4 * REGION_SLOTS, REGION_SLOTS);
    let mut fault_around = |slot| readahead.on_fault(slot, FaultState::NotRequested, false).fault_around;
    assert_eq!(fault_around(700), 700..701);
    assert_eq!((0..200).map(|touch| fault_around(10 * touch + 5)).last(), Some(1984..2016), "all will be needed");
    readahead.disable_fault_around();
    assert_eq!(readahead.on_fault(1700, FaultState::NotRequested, false).fault_around, 1700..1701);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn a_process_that_touches_few_pages_gets_few(seed in any::<u64>(), part in prop_oneof![Just(20), 20u64..400], slots_per_fault in 0usize..80) {
        let mut process = ReadingProcess::new(GIB_SLOTS, slots_per_fault);
        let touched = (GIB_SLOTS / part) as usize;
        shuffled(GIB_SLOTS, seed).into_iter().take(touched).for_each(|slot| process.touch(slot));
        prop_assert!(process.moved <= GIB_SLOTS / 10, "{} of {touched}", process.moved);
    }
}

#[derive(Debug, Clone)]
enum ReadaheadStep {
    Fault(u64, bool, bool),
    Ask(u64, u64),
    Drop(u64, u64),
}

proptest! {
    #[test]
    fn readahead_windows_stay_in_the_map_and_counts_are_correct(
        slots in 1u64..5000, window in 0u64..600,
        steps in prop::collection::vec(prop_oneof![
            (any::<u64>(), any::<bool>(), any::<bool>()).prop_map(|(slot, late, follows)| ReadaheadStep::Fault(slot, late, follows)),
            (any::<u64>(), 1u64..900).prop_map(|(start, count)| ReadaheadStep::Ask(start, count)),
            (any::<u64>(), 1u64..900).prop_map(|(start, count)| ReadaheadStep::Drop(start, count)),
        ], 1..80),
    ) {
        let mut readahead = ReadaheadState::new(slots, window);
        let mut present = vec![false; slots as usize];
        for step in steps {
            match step {
                ReadaheadStep::Fault(slot, late, follows) => {
                    let slot = slot % slots;
                    let found = if late { FaultState::InFlight } else { FaultState::NotRequested };
                    let ahead = readahead.on_fault(slot, found, follows);
                    prop_assert!(ahead.window.contains(&slot) && ahead.window.end <= slots);
                    prop_assert!(ahead.window.end - ahead.window.start <= window.max(1).max(RUN_SLOTS_MAX));
                    prop_assert!(ahead.stream.end <= slots && ahead.stream.end - ahead.stream.start <= REGION_SLOTS);
                    prop_assert!(window > 1 || (ahead.window.end - ahead.window.start == 1 && ahead.stream.is_empty()));
                }
                ReadaheadStep::Ask(start, count) => {
                    let start = start % slots;
                    for slot in start..(start + count).min(slots) {
                        if !std::mem::replace(&mut present[slot as usize], true) {
                            readahead.note_requested(slot..slot + 1);
                        }
                    }
                }
                ReadaheadStep::Drop(start, count) => {
                    let start = start % slots;
                    for slot in start..(start + count).min(slots) {
                        if std::mem::replace(&mut present[slot as usize], false) {
                            readahead.note_dropped(slot..slot + 1);
                        }
                    }
                }
            }
            prop_assert_eq!(readahead.requested, present.iter().filter(|present| **present).count() as u64);
            let in_regions: u64 = readahead.regions.iter().map(|region| u64::from(region.requested)).sum();
            prop_assert_eq!(readahead.requested, in_regions);
        }
    }
}
