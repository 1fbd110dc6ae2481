//! `SlotIndex`: the pages of a seed that hold data, numbered without gaps. A page's number is its *slot*. State of
//! pages (installed, in flight) is kept per slot, so its size depends on the data and not on the address space: a
//! sparse terabyte costs nothing.

use std::ops::Range;

use farfork_wire::descriptor::ExtentId;

use super::origin::{PageOrigin, PopulatedRun};

/// Consecutive pages of one extent, with the slot of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pager) struct SlotRun {
    /// The extent.
    pub(in crate::pager) extent: ExtentId,
    /// Number of the first page in the extent.
    pub(in crate::pager) first_page: u64,
    /// Number of pages.
    pub(in crate::pager) count: u64,
    /// Slot of the first page.
    pub(in crate::pager) first_slot: u64,
    /// The origin of the first page.
    pub(in crate::pager) origin: PageOrigin,
}

/// All populated pages of a plan, in ascending order of extent and page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::pager) struct SlotIndex {
    runs: Vec<SlotRun>,
    slots: u64,
    /// Whether the pages have more than one source.
    has_several_sources: bool,
}

impl SlotIndex {
    /// Numbers the pages of these extents. Extents, and the runs of each, must be in ascending order, without
    /// duplicates.
    pub(in crate::pager) fn from_extents<'a>(
        extents: impl IntoIterator<Item = (ExtentId, &'a [PopulatedRun])>,
    ) -> Self {
        let mut all = Self::default();
        for (extent, runs) in extents {
            for run in runs {
                let PopulatedRun { first: first_page, count, origin } = *run;
                all.runs.push(SlotRun { extent, first_page, count, first_slot: all.slots, origin });
                all.slots += count;
            }
        }
        all.has_several_sources = all.runs.windows(2).any(|pair| pair[0].origin.source != pair[1].origin.source);
        all
    }

    /// Returns the number of slots.
    pub(in crate::pager) fn slot_count(&self) -> u64 {
        self.slots
    }

    /// The slot of a page; `None` when it holds no data.
    pub(in crate::pager) fn slot_of(&self, extent: ExtentId, page: u64) -> Option<u64> {
        let end = self.runs.partition_point(|run| (run.extent, run.first_page) <= (extent, page));
        let run = self.runs[..end].last()?;
        let ahead = page - run.first_page.min(page);
        (run.extent == extent && ahead < run.count).then_some(run.first_slot + ahead)
    }

    /// The slots of a range of pages.
    pub(in crate::pager) fn slots_of(&self, extent: ExtentId, pages: Range<u64>) -> Range<u64> {
        let slots_before = |page: u64| {
            let end = self.runs.partition_point(|run| (run.extent, run.first_page) <= (extent, page));
            self.runs[..end].last().map_or(0, |run| {
                let is_same_extent = run.extent == extent;
                run.first_slot + if is_same_extent { run.count.min(page - run.first_page) } else { run.count }
            })
        };
        slots_before(pages.start)..slots_before(pages.end)
    }

    /// The first page at or after `page` that holds data.
    pub(in crate::pager) fn next_populated_page(&self, extent: ExtentId, page: u64) -> Option<u64> {
        if self.slot_of(extent, page).is_some() {
            return Some(page);
        }
        let next = self.runs.partition_point(|run| (run.extent, run.first_page) <= (extent, page));
        self.runs.get(next).filter(|run| run.extent == extent).map(|run| run.first_page)
    }

    /// The pages of a range of slots, as runs of consecutive pages.
    pub(in crate::pager) fn runs_of(&self, slots: Range<u64>) -> impl Iterator<Item = SlotRun> {
        let first = self.runs.partition_point(|run| run.first_slot + run.count <= slots.start);
        self.runs[first..].iter().map_while(move |run| {
            let start = run.first_slot.max(slots.start);
            let end = (run.first_slot + run.count).min(slots.end);
            let first_page = run.first_page + (start - run.first_slot.min(start));
            let origin = run.origin.offset_by(first_page - run.first_page);
            let clipped = SlotRun { first_page, count: end.saturating_sub(start), first_slot: start, origin, ..*run };
            (start < end).then_some(clipped)
        })
    }

    /// The source of a slot's page.
    pub(in crate::pager) fn source_of(&self, slot: u64) -> usize {
        let first = self.runs.partition_point(|run| run.first_slot + run.count <= slot);
        self.runs.get(first).map_or(0, |run| run.origin.source as usize)
    }

    /// The sources of a range of slots, each once.
    pub(in crate::pager) fn sources_of(&self, slots: Range<u64>) -> Vec<usize> {
        if !self.has_several_sources {
            return vec![self.source_of(slots.start)];
        }
        let mut sources: Vec<usize> = self.runs_of(slots).map(|run| run.origin.source as usize).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// The parts of a range of slots that belong to one source, ascending and as long as possible.
    pub(in crate::pager) fn slots_from_source(
        &self,
        source: usize,
        slots: Range<u64>,
    ) -> impl Iterator<Item = Range<u64>> {
        let is_whole = !self.has_several_sources && self.source_of(slots.start) == source;
        let whole = is_whole.then(|| slots.clone());
        let mut runs = (if is_whole { None } else { Some(self.runs_of(slots)) })
            .into_iter()
            .flatten()
            .filter(move |run| run.origin.source as usize == source)
            .map(|run| run.first_slot..run.first_slot + run.count)
            .peekable();
        whole.into_iter().chain(std::iter::from_fn(move || {
            let mut part = runs.next()?;
            while let Some(next) = runs.next_if(|next| next.start == part.end) {
                part.end = next.end;
            }
            Some(part)
        }))
    }
}

impl SlotIndex {
    /// Returns the source of slot `first`, the slots of `ranges` (ascending) that belong to this source, and the first
    /// slot of `ranges` that belongs to another source.
    pub(in crate::pager) fn split_first_source(
        &self,
        first: u64,
        ranges: Vec<Range<u64>>,
    ) -> (usize, Vec<Range<u64>>, Option<u64>) {
        let source = self.source_of(first);
        if !self.has_several_sources {
            return (source, ranges, None);
        }
        let of_it: Vec<Range<u64>> =
            ranges.iter().flat_map(|range| self.slots_from_source(source, range.clone())).collect();
        let is_of_another = |run: &SlotRun| run.origin.source as usize != source;
        let others = ranges.into_iter().flat_map(|range| self.runs_of(range)).find(is_of_another);
        (source, of_it, others.map(|run| run.first_slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbered(extents: &[Vec<(u64, u64)>]) -> (SlotIndex, Vec<(ExtentId, u64, PageOrigin)>) {
        let mut pages = Vec::new();
        let mut runs = Vec::new();
        for (extent, gaps_and_counts) in extents.iter().enumerate() {
            let (id, mut next, mut list) = (ExtentId(2 * extent as u32), 0, Vec::new());
            for (gap, count) in gaps_and_counts {
                let first = next + gap;
                // The source and page number differ from those of the neighbours.
                let origin = PageOrigin { source: (first % 3) as u32, extent: ExtentId(7), page: 1000 * first };
                list.push(PopulatedRun { first, count: *count, origin });
                pages.extend((0..*count).map(|page| (id, first + page, origin.offset_by(page))));
                next = first + count + 1;
            }
            runs.push((id, list));
        }
        (SlotIndex::from_extents(runs.iter().map(|(id, list)| (*id, &list[..]))), pages)
    }

    proptest! {
        #[test]
        fn slots_number_the_populated_pages(
            extents in prop::collection::vec(prop::collection::vec((0u64..5, 1u64..5), 0..6), 0..4),
            from in 0u64..40, count in 0u64..40,
        ) {
            let (populated, pages) = numbered(&extents);
            prop_assert_eq!(populated.slot_count() as usize, pages.len());
            for (slot, (extent, page, origin)) in pages.iter().enumerate() {
                prop_assert_eq!(populated.slot_of(*extent, *page), Some(slot as u64));
                prop_assert_eq!(populated.source_of(slot as u64), origin.source as usize);
            }
            for extent in 0..8 {
                for page in 0..60 {
                    let known = pages.iter().position(|known| (known.0, known.1) == (ExtentId(extent), page));
                    prop_assert_eq!(populated.slot_of(ExtentId(extent), page), known.map(|slot| slot as u64));
                    let next = pages.iter().find(|(id, number, _)| *id == ExtentId(extent) && *number >= page);
                    prop_assert_eq!(populated.next_populated_page(ExtentId(extent), page), next.map(|(_, number, _)| *number));
                }
            }
            for extent in 0..8 {
                let of_it = populated.slots_of(ExtentId(extent), from..from + count);
                let expected: Vec<u64> = (0..).zip(&pages).filter(|(_, (id, page, _))| {
                    *id == ExtentId(extent) && (from..from + count).contains(page)
                }).map(|(slot, _)| slot).collect();
                prop_assert_eq!(of_it.collect::<Vec<_>>(), expected);
            }
            let range = from..from + count;
            let flat: Vec<_> = populated.runs_of(range.clone()).flat_map(|run| {
                (0..run.count).map(move |page| {
                    (run.first_slot + page, (run.extent, run.first_page + page, run.origin.offset_by(page)))
                })
            }).collect();
            let expected: Vec<_> = pages.iter().enumerate().map(|(slot, page)| (slot as u64, *page))
                .filter(|(slot, _)| range.contains(slot)).collect();
            prop_assert_eq!(&flat, &expected);
            let mut sources: Vec<usize> = expected.iter().map(|(_, page)| page.2.source as usize).collect();
            sources.sort_unstable();
            sources.dedup();
            if !sources.is_empty() {
                prop_assert_eq!(populated.sources_of(range.clone()), sources);
            }
            if range.start < populated.slot_count() {
                let all: Vec<_> = std::iter::once(range.start..range.end.min(populated.slot_count())).collect();
                let (source, of_it, others) = populated.split_first_source(range.start, all);
                let is_of_it = |slot: &u64| pages[*slot as usize].2.source as usize == source;
                prop_assert!(of_it.iter().cloned().flatten().all(|slot| is_of_it(&slot)));
                let count = expected.iter().filter(|(slot, _)| is_of_it(slot)).count();
                prop_assert_eq!(of_it.into_iter().flatten().count(), count);
                prop_assert_eq!(others, expected.iter().map(|(slot, _)| *slot).find(|slot| !is_of_it(slot)));
            }
            for source in 0..3 {
                let parts: Vec<_> = populated.slots_from_source(source, range.clone()).collect();
                prop_assert!(parts.windows(2).all(|pair| pair[0].end < pair[1].start));
                let slots: Vec<u64> = parts.into_iter().flatten().filter(|slot| *slot < populated.slot_count()).collect();
                let of_it = expected.iter().filter(|(_, page)| page.2.source as usize == source);
                prop_assert_eq!(slots, of_it.map(|(slot, _)| *slot).collect::<Vec<_>>());
            }
        }
    }
}
