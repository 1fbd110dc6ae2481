//! How much to fetch around a fault. Pure: slots and addresses in, ranges out.
//!
//! A fault costs the child a round trip, about fifty times what one more page costs. Nobody knows which pages it will
//! touch next, so that the rule is that of hiring or buying skis: the slots are divided into regions, and the more
//! faults a region has had, the more is fetched at the next, until its rest has been paid for. A process that touches
//! little fetches little; one that touches everything, in whatever order, has four faults per region, however large
//! it is.

use std::ops::Range;

use farfork_wire::PAGE_SIZE;

/// Slots per region: 2 MiB of data.
pub(super) const REGION_SLOTS: u64 = 512;

/// Slots fetched at the first, second … fault of a region, aligned to their own size.
const WINDOWS_SLOTS: [u64; 4] = [1, 16, 64, REGION_SLOTS];

/// First window of a region when the page beside the fault, or the region before, is there already: the process goes
/// through memory in order.
const IN_ORDER: u8 = 1;

/// Pages zeroed at the first fault of a run. Zeroing costs a tenth of a microsecond a page, a fault ten.
const ZERO_PAGES_MIN: u64 = 16;

/// Most pages zeroed at once, which takes about 50 µs: as long as other children may have to wait for a fetch.
const ZERO_PAGES_MAX: u64 = 512;

/// The windows of one address space.
#[derive(Debug, Clone)]
pub(super) struct Readahead {
    window_slots_max: u64,
    slots: u64,
    /// Faults that each region has had, up to the number of windows.
    faults: Vec<u8>,
}

impl Readahead {
    /// For so many slots; windows have at most `window_slots_max` (1: each page on demand).
    pub(super) fn new(slots: u64, window_slots_max: u64) -> Self {
        let regions = slots.div_ceil(REGION_SLOTS) as usize;
        Self { window_slots_max: window_slots_max.max(1), slots, faults: vec![0; regions] }
    }

    /// The slots that the fault at `slot` should bring, itself among them. `in_order` tells that the slot before it
    /// is there or on its way.
    pub(super) fn window(&mut self, slot: u64, in_order: bool) -> Range<u64> {
        let region = (slot / REGION_SLOTS) as usize;
        let after_whole_region = region > 0 && self.faults[region - 1] as usize >= WINDOWS_SLOTS.len();
        let least = if in_order || after_whole_region { IN_ORDER } else { 0 };
        let level = self.faults[region].max(least);
        self.faults[region] = (level + 1).min(WINDOWS_SLOTS.len() as u8);
        let window = WINDOWS_SLOTS[(level as usize).min(WINDOWS_SLOTS.len() - 1)].min(self.window_slots_max);
        let start = slot / window * window;
        start..(start + window).min(self.slots)
    }
}

/// How many zeroes to map at once.
#[derive(Debug, Clone, Default)]
pub(super) struct ZeroRuns {
    /// Address behind the last run.
    end: u64,
    pages: u64,
}

impl ZeroRuns {
    /// How many pages to zero from `address` on: twice as many as before where it goes on from the last run.
    pub(super) fn pages_from(&mut self, address: u64) -> u64 {
        let goes_on = address == self.end;
        self.pages = if goes_on { (2 * self.pages).min(ZERO_PAGES_MAX) } else { ZERO_PAGES_MIN };
        self.end = address + self.pages * PAGE_SIZE;
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lone_touch_brings_one_page_and_the_fourth_the_region() {
        let mut readahead = Readahead::new(4 * REGION_SLOTS, REGION_SLOTS);
        assert_eq!(readahead.window(700, false), 700..701);
        assert_eq!(readahead.window(900, false), 896..912);
        assert_eq!(readahead.window(520, false), 512..576);
        assert_eq!(readahead.window(1000, false), 512..1024);
        assert_eq!(readahead.window(1100, false), 1088..1104, "the region behind a whole one starts larger");
        assert_eq!(Readahead::new(9, REGION_SLOTS).window(8, true), 0..9, "nothing lies behind the last slot");
    }

    #[test]
    fn one_page_at_a_time_when_told_so() {
        let mut readahead = Readahead::new(100, 1);
        (0..100).for_each(|slot| assert_eq!(readahead.window(slot, true), slot..slot + 1));
    }

    #[test]
    fn zero_runs_grow_only_in_order() {
        let mut runs = ZeroRuns::default();
        assert_eq!(runs.pages_from(0x10000), 16);
        assert_eq!(runs.pages_from(0x20000), 32);
        assert_eq!(runs.pages_from(0x40000), 64);
        assert_eq!(runs.pages_from(0x10000), 16);
    }

    proptest! {
        #[test]
        fn windows_hold_the_fault_and_stay_inside(
            slots in 1u64..5000, window in 0u64..600, touched in prop::collection::vec((any::<u64>(), any::<bool>()), 1..50),
        ) {
            let mut readahead = Readahead::new(slots, window);
            for (slot, in_order) in touched {
                let slot = slot % slots;
                let range = readahead.window(slot, in_order);
                prop_assert!(range.contains(&slot) && range.end <= slots);
                prop_assert!(range.end - range.start <= window.max(1));
            }
        }
    }
}
