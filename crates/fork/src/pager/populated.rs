//! The pages of a seed that hold data, numbered without gaps: a page's number here is its *slot*. Whatever is kept
//! per page (installed, in flight) is kept per slot, so that its size follows the data, not the address space: a
//! sparse terabyte costs nothing.

use std::ops::Range;

use farfork_wire::descriptor::{ExtentId, PageRun};

/// Neighbouring pages of one extent, with the slot of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotRun {
    /// The extent.
    pub(super) extent: ExtentId,
    /// Number of the first page in the extent.
    pub(super) first_page: u64,
    /// How many pages.
    pub(super) count: u64,
    /// Slot of the first page.
    pub(super) first_slot: u64,
}

/// All populated pages of a plan, in ascending order of extent and page.
#[derive(Debug, Clone, Default)]
pub(super) struct Populated {
    runs: Vec<SlotRun>,
    slots: u64,
}

impl Populated {
    /// Numbers the pages of these extents, which come in ascending order, each once, with ascending runs.
    pub(super) fn of<'a>(extents: impl IntoIterator<Item = (ExtentId, &'a [PageRun])>) -> Self {
        let mut all = Self::default();
        for (extent, runs) in extents {
            for run in runs {
                let (first_page, count, first_slot) = (run.first, run.count, all.slots);
                all.runs.push(SlotRun { extent, first_page, count, first_slot });
                all.slots += count;
            }
        }
        all
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    /// The slot of a page; `None` when it holds no data.
    pub(super) fn slot_of(&self, extent: ExtentId, page: u64) -> Option<u64> {
        let behind = self.runs.partition_point(|run| (run.extent, run.first_page) <= (extent, page));
        let run = self.runs[..behind].last()?;
        let ahead = page - run.first_page.min(page);
        (run.extent == extent && ahead < run.count).then_some(run.first_slot + ahead)
    }

    /// The first page at or behind `page` that holds data.
    pub(super) fn next_page(&self, extent: ExtentId, page: u64) -> Option<u64> {
        if self.slot_of(extent, page).is_some() {
            return Some(page);
        }
        let behind = self.runs.partition_point(|run| (run.extent, run.first_page) <= (extent, page));
        self.runs.get(behind).filter(|run| run.extent == extent).map(|run| run.first_page)
    }

    /// The pages of a range of slots, as runs of neighbours.
    pub(super) fn runs_of(&self, slots: Range<u64>) -> impl Iterator<Item = SlotRun> {
        let first = self.runs.partition_point(|run| run.first_slot + run.count <= slots.start);
        self.runs[first..].iter().map_while(move |run| {
            let start = run.first_slot.max(slots.start);
            let end = (run.first_slot + run.count).min(slots.end);
            let first_page = run.first_page + (start - run.first_slot.min(start));
            let clipped = SlotRun { first_page, count: end.saturating_sub(start), first_slot: start, ..*run };
            (start < end).then_some(clipped)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbered(extents: &[Vec<(u64, u64)>]) -> (Populated, Vec<(ExtentId, u64)>) {
        let mut pages = Vec::new();
        let mut runs = Vec::new();
        for (extent, gaps_and_counts) in extents.iter().enumerate() {
            let (id, mut next, mut list) = (ExtentId(2 * extent as u32), 0, Vec::new());
            for (gap, count) in gaps_and_counts {
                let first = next + gap;
                list.push(PageRun { first, count: *count });
                pages.extend((first..first + count).map(|page| (id, page)));
                next = first + count + 1;
            }
            runs.push((id, list));
        }
        (Populated::of(runs.iter().map(|(id, list)| (*id, &list[..]))), pages)
    }

    proptest! {
        #[test]
        fn slots_count_the_pages(
            extents in prop::collection::vec(prop::collection::vec((0u64..5, 1u64..5), 0..6), 0..4),
            from in 0u64..40, count in 0u64..40,
        ) {
            let (populated, pages) = numbered(&extents);
            prop_assert_eq!(populated.slots() as usize, pages.len());
            for (slot, (extent, page)) in pages.iter().enumerate() {
                prop_assert_eq!(populated.slot_of(*extent, *page), Some(slot as u64));
            }
            for extent in 0..8 {
                for page in 0..60 {
                    let known = pages.iter().position(|known| *known == (ExtentId(extent), page));
                    prop_assert_eq!(populated.slot_of(ExtentId(extent), page), known.map(|slot| slot as u64));
                    let next = pages.iter().find(|(id, number)| *id == ExtentId(extent) && *number >= page);
                    prop_assert_eq!(populated.next_page(ExtentId(extent), page), next.map(|(_, number)| *number));
                }
            }
            let asked = from..from + count;
            let flat: Vec<_> = populated.runs_of(asked.clone()).flat_map(|run| {
                (0..run.count).map(move |page| (run.first_slot + page, (run.extent, run.first_page + page)))
            }).collect();
            let expected: Vec<_> = pages.iter().enumerate().map(|(slot, page)| (slot as u64, *page))
                .filter(|(slot, _)| asked.contains(slot)).collect();
            prop_assert_eq!(flat, expected);
        }
    }
}
