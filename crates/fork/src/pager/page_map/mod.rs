//! `PageMap`: the current addresses of the seed's pages in an address space. It begins with the plan's ranges. Ranges
//! that the process unmaps or discards are removed, and ranges that it moves are moved. Memory that is registered but
//! not in this map has no page to fetch and reads as zeroes: a stack that grew, the end of a mapping that mremap(2)
//! grew, memory after MADV_DONTNEED. Changes may be read in another order than they were made (`late_events`). Pure:
//! `address_space` feeds it the events.

pub(super) mod fork_order;
mod fork_page_probes;
mod late_events;
#[cfg(test)]
pub(super) mod test_blocks;

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;

use farfork_sys::userfaultfd::UffdEvent;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::ExtentId;
use serde::{Deserialize, Serialize};

use late_events::{AddressSet, LateEvents};

/// A range of addresses that shows consecutive pages of an extent. Addresses are multiples of the page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapSegment {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// The extent of the pages.
    pub extent: ExtentId,
    /// Number of the extent's page at `start`.
    pub first_page: u64,
}

impl MapSegment {
    /// The part within `start..end`, if any.
    pub(super) fn clipped(&self, start: u64, end: u64) -> Option<MapSegment> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        (from < to).then(|| MapSegment { start: from, end: to, first_page: self.page_at(from), ..*self })
    }

    /// Number of the extent's page at an address of the segment.
    pub fn page_at(&self, address: u64) -> u64 {
        self.first_page + (address - self.start) / PAGE_SIZE
    }

    /// Number of pages that the segment shows.
    pub fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE_SIZE
    }
}

/// The segments of one address space. They never overlap, neither in addresses nor in pages: memory moves, but is never
/// mapped twice.
#[derive(Debug, Clone, Default)]
pub(super) struct PageMap {
    /// Segments by first address.
    segments: BTreeMap<u64, MapSegment>,
    /// First addresses by extent and first page.
    address_by_page: BTreeMap<(ExtentId, u64), u64>,
    /// Mapped ranges that show nothing because they were discarded.
    discarded: AddressSet,
    /// Late messages that are still expected.
    late_events: LateEvents,
}

/// The contents of a range that was removed from a page map.
#[derive(Debug, Clone, Default)]
pub(super) struct RemovedContents {
    /// The segments, clipped to the range.
    pub(super) segments: Vec<MapSegment>,
    /// Parts of the range that had been discarded.
    discarded: Vec<Range<u64>>,
}

/// The contents that a page map lost by a change, and the data to undo the change.
#[derive(Debug, Clone, Default)]
pub(super) struct AppliedChange {
    /// Contents that the change removed.
    pub(super) removed: RemovedContents,
    /// Whether the change is the unmap that a move was expected to report, and so changes nothing.
    pub(super) was_expected: bool,
    /// The map before the change, if the change involved late events. Other changes can be reverted without the old
    /// map.
    saved_map: Option<Box<PageMap>>,
}

impl PageMap {
    /// Creates the map of these segments, which must not overlap.
    pub(super) fn from_segments(segments: impl IntoIterator<Item = MapSegment>) -> Self {
        let mut map = Self::default();
        segments.into_iter().for_each(|segment| map.insert(segment));
        map
    }

    /// The segments, in ascending order of address.
    pub(super) fn segments(&self) -> impl Iterator<Item = &MapSegment> {
        self.segments.values()
    }

    /// The segment that covers an address.
    pub(super) fn segment_at(&self, address: u64) -> Option<&MapSegment> {
        let (_, segment) = self.segments.range(..=address).next_back()?;
        (address < segment.end).then_some(segment)
    }

    /// The start of the next segment above an address.
    pub(super) fn next_segment_start(&self, address: u64) -> Option<u64> {
        self.segments.range((Excluded(address), Unbounded)).next().map(|(start, _)| *start)
    }

    /// Returns the current address of a page, and the number of consecutive pages from this page on, including it.
    pub(super) fn address_of(&self, extent: ExtentId, page: u64) -> Option<(u64, u64)> {
        let (_, start) = self.address_by_page.range((extent, 0)..=(extent, page)).next_back()?;
        let segment = &self.segments[start];
        let ahead = page - segment.first_page;
        let pages_left = segment.pages().checked_sub(ahead).filter(|pages| *pages > 0)?;
        Some((segment.start + ahead * PAGE_SIZE, pages_left))
    }

    /// The first address of a range that shows a page.
    pub(super) fn first_mapped_in(&self, start: u64, end: u64) -> Option<u64> {
        let first = if self.segment_at(start).is_some() { Some(start) } else { self.next_segment_start(start) };
        first.filter(|first| *first < end)
    }

    /// Returns the parts of segments within a range.
    fn segments_in(&self, start: u64, end: u64) -> impl Iterator<Item = MapSegment> {
        let first = self.segment_at(start).map_or(start, |segment| segment.start);
        self.segments.range(first..end.max(first)).filter_map(move |(_, segment)| segment.clipped(start, end))
    }

    /// Applies a change of the memory map.
    pub(super) fn apply_event(&mut self, message: &UffdEvent) -> AppliedChange {
        let overtakes = matches!(*message, UffdEvent::Remap { to, bytes, .. } if self.has_any_in(to..to + bytes));
        let obsolete = self.obsolete_expected_ranges(message);
        let is_involved = overtakes || self.has_displaced_ranges() || !obsolete.is_empty();
        let before = is_involved.then(|| Box::new(self.clone()));
        self.late_events.drop_expected(&obsolete);
        let mut applied = AppliedChange { saved_map: before, ..AppliedChange::default() };
        match *message {
            UffdEvent::Remap { from, to, bytes } => self.apply_remap(from, to, bytes),
            UffdEvent::Unmap { start, end } => {
                applied.was_expected = self.late_events.take_expected_unmap(start..end);
                if !applied.was_expected {
                    applied.removed = self.remove_left_range(start, end);
                }
            }
            // Discards apply to the current contents: the thread that discards owns the range, and waits until its message
            // is read.
            UffdEvent::Remove { start, end } => {
                applied.removed = self.remove_range(start, end);
                self.discarded.insert(start..end);
            }
            UffdEvent::Fault { .. } | UffdEvent::Fork { .. } => {}
        }
        applied
    }

    /// Returns expected ranges that a move has left mapped (MREMAP_DONTUNMAP), so that no unmap of them will be
    /// reported. This shows when a message moves, unmaps or discards a part of such a range, although nothing is known
    /// to be mapped in it.
    fn obsolete_expected_ranges(&self, message: &UffdEvent) -> Vec<Range<u64>> {
        let range = match *message {
            UffdEvent::Remap { from, bytes, .. } => from..from + bytes,
            UffdEvent::Unmap { start, end } if self.late_events.is_expected_unmap(&(start..end)) => return Vec::new(),
            UffdEvent::Unmap { start, end } | UffdEvent::Remove { start, end } => start..end,
            UffdEvent::Fault { .. } | UffdEvent::Fork { .. } => return Vec::new(),
        };
        let is_empty =
            |expected: &Range<u64>| !self.has_any_in(expected.start.max(range.start)..expected.end.min(range.end));
        self.late_events.expected_overlapping(&range).filter(|expected| is_empty(expected)).cloned().collect()
    }

    /// Reverts the change that was applied last.
    pub(super) fn revert_event(&mut self, message: &UffdEvent, applied: &AppliedChange) {
        match (&applied.saved_map, *message) {
            (Some(before), _) => *self = Self::clone(before),
            (None, UffdEvent::Remap { from, to, bytes }) => {
                let moved = self.remove_range(to, to + bytes);
                self.insert_moved(moved, to, from);
                self.late_events.take_expected_unmap(from..from + bytes);
            }
            (None, UffdEvent::Unmap { start, end } | UffdEvent::Remove { start, end }) => {
                if applied.was_expected {
                    self.late_events.expect_unmap(start..end);
                } else {
                    self.discarded.remove(start..end);
                }
                self.insert_moved(applied.removed.clone(), start, start);
            }
            (None, UffdEvent::Fault { .. } | UffdEvent::Fork { .. }) => {}
        }
    }

    /// Whether any part of a range is known to be mapped.
    fn has_any_in(&self, range: Range<u64>) -> bool {
        self.first_mapped_in(range.start, range.end).is_some() || self.discarded.overlaps(&range)
    }

    /// Whether contents are displaced, so that the message about them is unread.
    pub(super) fn has_displaced_ranges(&self) -> bool {
        self.late_events.has_displaced()
    }

    /// Whether a late message is expected.
    pub(super) fn has_late_events(&self) -> bool {
        self.late_events.is_pending()
    }

    /// Stops expecting late messages.
    pub(super) fn clear_late_events(&mut self) {
        self.late_events = LateEvents::default();
    }

    /// Moves a range, as mremap(2) does. Contents at the target are displaced: the message about their removal is
    /// unread.
    fn apply_remap(&mut self, from: u64, to: u64, bytes: u64) {
        let moved = self.remove_left_range(from, from + bytes);
        if self.has_any_in(to..to + bytes) {
            let displaced = self.remove_range(to, to + bytes);
            self.late_events.add_displaced(to..to + bytes, displaced.segments);
        }
        self.late_events.expect_unmap(from..from + bytes);
        self.insert_moved(moved, from, to);
    }

    /// Inserts contents that were removed from the range at `from` into the range at `to`.
    fn insert_moved(&mut self, moved: RemovedContents, from: u64, to: u64) {
        for segment in moved.segments {
            let (start, end) = (segment.start - from + to, segment.end - from + to);
            self.insert(MapSegment { start, end, ..segment });
        }
        for range in moved.discarded {
            self.discarded.insert(range.start - from + to..range.end - from + to);
        }
    }

    /// Removes the contents that were in this range when an unmap or a move of it was made. These are the displaced
    /// contents where there are any, else the current contents.
    fn remove_left_range(&mut self, start: u64, end: u64) -> RemovedContents {
        if start >= end {
            return RemovedContents::default();
        }
        let Some((range, mut segments)) = self.late_events.take_displaced(start..end) else {
            return self.remove_range(start, end);
        };
        let RemovedContents { segments: below, mut discarded } = self.remove_left_range(start, range.start);
        let above = self.remove_left_range(range.end, end);
        segments.extend(below.into_iter().chain(above.segments));
        discarded.extend(above.discarded);
        RemovedContents { segments, discarded }
    }

    /// Removes a range, and returns its contents.
    fn remove_range(&mut self, start: u64, end: u64) -> RemovedContents {
        let first = self.segment_at(start).map_or(start, |segment| segment.start);
        let touched: Vec<MapSegment> =
            self.segments.range(first..end.max(first)).map(|(_, segment)| *segment).collect();
        for segment in &touched {
            self.segments.remove(&segment.start);
            self.address_by_page.remove(&(segment.extent, segment.first_page));
            let outside = [segment.clipped(0, start), segment.clipped(end, u64::MAX)];
            outside.into_iter().flatten().for_each(|rest| self.insert(rest));
        }
        let taken = touched.iter().filter_map(|segment| segment.clipped(start, end)).collect();
        RemovedContents { segments: taken, discarded: self.discarded.remove(start..end) }
    }

    fn insert(&mut self, segment: MapSegment) {
        debug_assert!(segment.start < segment.end, "a segment has pages");
        self.segments.insert(segment.start, segment);
        self.address_by_page.insert((segment.extent, segment.first_page), segment.start);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Pages of the small address space that the model tracks one by one.
    pub(in crate::pager::page_map) const PAGES: u64 = 64;

    /// The expected page map: each registered page, and what it shows, if anything.
    #[derive(Default, Clone)]
    pub(in crate::pager::page_map) struct Model(pub(in crate::pager::page_map) HashMap<u64, Option<(ExtentId, u64)>>);

    impl Model {
        fn unmap(&mut self, start: u64, count: u64) {
            self.0.retain(|page, _| !(start..start + count).contains(page));
        }

        fn discard(&mut self, start: u64, count: u64) {
            self.0
                .iter_mut()
                .filter(|(page, _)| (start..start + count).contains(page))
                .for_each(|(_, shown)| *shown = None);
        }

        pub(in crate::pager::page_map) fn is_registered(&self, start: u64, count: u64) -> bool {
            (start..start + count).any(|page| self.0.contains_key(&page))
        }

        fn remap(&mut self, from: u64, to: u64, count: u64, leaves_it_mapped: bool) {
            let moved: Vec<_> = (from..from + count).map(|page| self.0.remove(&page)).collect();
            self.unmap(to, count);
            for (index, page) in (0..).zip(moved) {
                page.map(|shown| self.0.insert(to + index, shown));
                page.filter(|_| leaves_it_mapped).map(|_| self.0.insert(from + index, None));
            }
        }

        pub(in crate::pager::page_map) fn shown(&self, page: u64) -> Option<(ExtentId, u64)> {
            self.0.get(&page).copied().flatten()
        }
    }

    /// Three mappings of different extents.
    pub(in crate::pager::page_map) fn begin() -> (PageMap, Model) {
        let (mut segments, mut model) = (Vec::new(), Model::default());
        for (extent, first) in [(0u32, 0u64), (1, 20), (2, 40)] {
            let (start, end) = (first * PAGE_SIZE, (first + 16) * PAGE_SIZE);
            segments.push(MapSegment { start, end, extent: ExtentId(extent), first_page: 3 });
            model.0.extend((0..16).map(|page| (first + page, Some((ExtentId(extent), 3 + page)))));
        }
        (PageMap::from_segments(segments), model)
    }

    #[derive(Debug, Clone)]
    pub(in crate::pager::page_map) enum Event {
        Unmap {
            start: u64,
            count: u64,
        },
        Discard {
            start: u64,
            count: u64,
        },
        /// The preceding mapping grows into the range, which is not reported.
        Grow {
            start: u64,
            count: u64,
        },
        Remap {
            from: u64,
            to: u64,
            count: u64,
            leaves_it_mapped: bool,
        },
    }

    pub(in crate::pager::page_map) fn event() -> impl Strategy<Value = Event> {
        let remap = (0..PAGES, 0..PAGES, 1..16u64, any::<bool>());
        prop_oneof![
            1 => (0..PAGES, 1..PAGES).prop_map(|(start, count)| Event::Unmap { start, count }),
            1 => (0..PAGES, 1..PAGES).prop_map(|(start, count)| Event::Discard { start, count }),
            1 => (1..PAGES, 1..16u64).prop_map(|(start, count)| Event::Grow { start, count }),
            4 => remap
                .prop_filter("mremap refuses overlapping ranges", |(from, to, count, _)| from.abs_diff(*to) >= *count)
                .prop_map(|(from, to, count, leaves_it_mapped)| Event::Remap { from, to, count, leaves_it_mapped }),
        ]
    }

    /// Returns the kernel's steps for an event, each with its message, in the order in which a single thread reports
    /// them.
    pub(in crate::pager::page_map) fn steps(event: &Event, model: &Model) -> Vec<(UffdEvent, Model)> {
        let (mut now, mut steps) = (model.clone(), Vec::new());
        let (at, bytes) = (|page: u64| page * PAGE_SIZE, |count: u64| count * PAGE_SIZE);
        match *event {
            Event::Unmap { start, count } => {
                if now.is_registered(start, count) {
                    now.unmap(start, count);
                    steps.push((UffdEvent::Unmap { start: at(start), end: at(start + count) }, now));
                }
            }
            Event::Discard { start, count } => {
                // Each mapping is reported by itself.
                let pages: Vec<u64> = (start..start + count).filter(|page| now.0.contains_key(page)).collect();
                let runs = pages.chunk_by(|page, next| page + 1 == *next).map(|run| (run[0], run.len() as u64));
                runs.for_each(|(first, count)| {
                    now.discard(first, count);
                    steps.push((UffdEvent::Remove { start: at(first), end: at(first + count) }, now.clone()));
                });
            }
            Event::Grow { start, count } => {
                if now.is_registered(start - 1, 1) && !now.is_registered(start, count) {
                    now.0.extend((start..start + count).map(|page| (page, None)));
                    // A message that changes nothing.
                    steps.push((UffdEvent::Remove { start: 0, end: 0 }, now));
                }
            }
            Event::Remap { from, to, count, leaves_it_mapped } => {
                // Only a range that is registered as a whole is moved.
                if !(from..from + count).all(|page| now.0.contains_key(&page)) {
                    return steps;
                }
                if now.is_registered(to, count) {
                    now.unmap(to, count);
                    steps.push((UffdEvent::Unmap { start: at(to), end: at(to + count) }, now.clone()));
                }
                now.remap(from, to, count, leaves_it_mapped);
                steps.push((UffdEvent::Remap { from: at(from), to: at(to), bytes: bytes(count) }, now.clone()));
                if !leaves_it_mapped {
                    steps.push((UffdEvent::Unmap { start: at(from), end: at(from + count) }, now));
                }
            }
        }
        steps
    }

    fn check(map: &PageMap, model: &Model) {
        for page in 0..3 * PAGES {
            let address = page * PAGE_SIZE;
            let shown = map.segment_at(address).map(|segment| (segment.extent, segment.page_at(address)));
            assert_eq!(shown, model.shown(page), "page {page}");
            if let Some((extent, number)) = shown {
                let (found, pages) = map.address_of(extent, number).expect("a page that is shown has a place");
                assert_eq!(found, address);
                assert_eq!(pages, (map.segment_at(address).unwrap().end - address) / PAGE_SIZE);
            }
        }
        let shown: u64 = map.segments().map(MapSegment::pages).sum();
        let right = model.0.values().flatten().count();
        assert_eq!((shown as usize, map.segments.len()), (right, map.address_by_page.len()));
    }

    proptest! {
        #[test]
        fn a_page_map_agrees_with_the_model(events in prop::collection::vec(event(), 0..40)) {
            let (mut map, mut model) = begin();
            check(&map, &model);
            let mut undone = Vec::new();
            for event in events {
                for (message, now) in steps(&event, &model) {
                    let before = std::mem::replace(&mut model, now);
                    undone.push((before, message, map.apply_event(&message)));
                    check(&map, &model);
                }
            }
            for (before, message, applied) in undone.into_iter().rev() {
                map.revert_event(&message, &applied);
                check(&map, &before);
            }
        }
    }

    #[test]
    fn an_unmapped_page_has_no_address() {
        let mut map =
            PageMap::from_segments([MapSegment { start: 0x1000, end: 0x3000, extent: ExtentId(4), first_page: 0 }]);
        assert_eq!(map.address_of(ExtentId(4), 1), Some((0x2000, 1)));
        assert_eq!(map.address_of(ExtentId(4), 2), None);
        assert_eq!(map.address_of(ExtentId(3), 0), None);
        map.apply_event(&UffdEvent::Unmap { start: 0x2000, end: 0x3000 });
        assert_eq!(map.address_of(ExtentId(4), 1), None);
        assert_eq!(map.next_segment_start(0), Some(0x1000));
    }
}
