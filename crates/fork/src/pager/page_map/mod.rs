//! Where in an address space the pages of the seed belong, now: the plan's ranges, less what the process unmapped or
//! discarded, moved where it moved them.
//!
//! What is registered but stands not in this map has no page to fetch and reads as zeroes: a stack that grew, the end
//! of a mapping that mremap(2) made longer, memory after MADV_DONTNEED. Changes may be heard in another order than they were made
//! (`overtaken`). Pure: it is fed with ranges and events; who reads these from the kernel is `space`.

#[cfg(test)]
pub(super) mod blocks;
pub(super) mod fork_order;
mod overtaken;

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;

use farfork_sys::userfaultfd::Message;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::ExtentId;
use serde::{Deserialize, Serialize};

use overtaken::{Overtaken, Ranges};

/// A range of addresses that shows neighbouring pages of an extent. Addresses are multiples of the page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// First address.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
    /// What the pages come from.
    pub extent: ExtentId,
    /// Number of the extent's page at `start`.
    pub first_page: u64,
}

impl Segment {
    /// The part within `start..end`, if any.
    pub(super) fn clipped(&self, start: u64, end: u64) -> Option<Segment> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        (from < to).then(|| Segment { start: from, end: to, first_page: self.page_at(from), ..*self })
    }

    /// Number of the extent's page at an address within.
    pub fn page_at(&self, address: u64) -> u64 {
        self.first_page + (address - self.start) / PAGE_SIZE
    }

    /// How many pages it shows.
    pub fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE_SIZE
    }
}

/// The segments of one address space. They never overlap, neither in addresses nor in pages: memory moves, it is
/// never seen twice.
#[derive(Debug, Clone, Default)]
pub(super) struct PageMap {
    /// By first address.
    segments: BTreeMap<u64, Segment>,
    /// First addresses by extent and first page.
    places: BTreeMap<(ExtentId, u64), u64>,
    /// What shows nothing since it was discarded.
    emptied: Ranges,
    /// What is still to be heard of changes that others have overtaken.
    overtaken: Overtaken,
}

/// What a page map lost by a change, and what undoes that.
#[derive(Debug, Clone, Default)]
pub(super) struct Followed {
    /// What it shows nowhere any more.
    pub(super) lost: Vec<Segment>,
    /// What had been discarded of the range before.
    emptied: Vec<Range<u64>>,
    /// It was told before, with a move.
    was_told: bool,
    /// The map before it, where something was overtaken.
    before: Option<Box<PageMap>>,
}

impl PageMap {
    /// The map of these segments, which must not overlap.
    pub(super) fn of(segments: impl IntoIterator<Item = Segment>) -> Self {
        let mut map = Self::default();
        segments.into_iter().for_each(|segment| map.insert(segment));
        map
    }

    /// The segments, in ascending order of address.
    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    /// The segment that covers an address.
    pub(super) fn at(&self, address: u64) -> Option<&Segment> {
        let (_, segment) = self.segments.range(..=address).next_back()?;
        (address < segment.end).then_some(segment)
    }

    /// Where the next segment above an address begins.
    pub(super) fn next_start(&self, address: u64) -> Option<u64> {
        self.segments.range((Excluded(address), Unbounded)).next().map(|(start, _)| *start)
    }

    /// Where a page is to be seen now, and how many pages behind it follow there without a gap, itself included.
    pub(super) fn place_of(&self, extent: ExtentId, page: u64) -> Option<(u64, u64)> {
        let (_, start) = self.places.range((extent, 0)..=(extent, page)).next_back()?;
        let segment = &self.segments[start];
        let ahead = page - segment.first_page;
        let behind = segment.pages().checked_sub(ahead).filter(|pages| *pages > 0)?;
        Some((segment.start + ahead * PAGE_SIZE, behind))
    }

    /// The first address of a range that shows something.
    pub(super) fn first_in(&self, start: u64, end: u64) -> Option<u64> {
        let first = if self.at(start).is_some() { Some(start) } else { self.next_start(start) };
        first.filter(|first| *first < end)
    }

    /// Follows a change of the memory map.
    pub(super) fn follow(&mut self, message: &Message) -> Followed {
        let overtakes = matches!(*message, Message::Remap { to, bytes, .. } if self.has(to..to + bytes));
        let before = (overtakes || self.is_overtaken()).then(|| Box::new(self.clone()));
        let mut followed = Followed { before, ..Followed::default() };
        match *message {
            Message::Remap { from, to, bytes } => self.remap(from, to, bytes),
            Message::Unmap { start, end } => {
                followed.was_told = self.overtaken.take_expected(start..end);
                if !followed.was_told {
                    (followed.lost, followed.emptied) = self.leave(start, end);
                }
            }
            // Pages are discarded where they are: who does so has the place, and waits until it was heard.
            Message::Remove { start, end } => {
                (followed.lost, followed.emptied) = self.take(start, end);
                self.emptied.insert(start..end);
            }
            Message::Fault { .. } | Message::Fork { .. } => {}
        }
        followed
    }

    /// Undoes the last change that it followed.
    pub(super) fn unfollow(&mut self, message: &Message, followed: &Followed) {
        match (&followed.before, *message) {
            (Some(before), _) => *self = Self::clone(before),
            (None, Message::Remap { from, to, bytes }) => {
                let moved = self.take(to, to + bytes);
                self.put_at(moved, to, from);
                self.overtaken.take_expected(from..from + bytes);
            }
            (None, Message::Unmap { start, end } | Message::Remove { start, end }) => {
                if followed.was_told {
                    self.overtaken.expect(start..end);
                } else {
                    self.emptied.take(start..end);
                }
                self.put_at((followed.lost.clone(), followed.emptied.clone()), start, start);
            }
            (None, Message::Fault { .. } | Message::Fork { .. }) => {}
        }
    }

    /// Whether it is known that something of a range is mapped.
    fn has(&self, range: Range<u64>) -> bool {
        self.first_in(range.start, range.end).is_some() || self.emptied.overlap(&range)
    }

    /// Whether something was overtaken that is still to be heard of.
    pub(super) fn is_overtaken(&self) -> bool {
        self.overtaken.has_displaced()
    }

    /// Whether it is prepared for a change that is heard late.
    pub(super) fn awaits(&self) -> bool {
        self.overtaken.has_any()
    }

    /// Nothing is to be heard of any more.
    pub(super) fn all_was_heard(&mut self) {
        self.overtaken = Overtaken::default();
    }

    /// Moves a range, as mremap(2) does. Who is at its new place has left it, and is still to tell so.
    fn remap(&mut self, from: u64, to: u64, bytes: u64) {
        let moved = self.leave(from, from + bytes);
        if self.has(to..to + bytes) {
            let (displaced, _) = self.take(to, to + bytes);
            self.overtaken.displace(to..to + bytes, displaced);
        }
        self.overtaken.expect(from..from + bytes);
        self.put_at(moved, from, to);
    }

    fn put_at(&mut self, (segments, emptied): (Vec<Segment>, Vec<Range<u64>>), from: u64, to: u64) {
        for segment in segments {
            let (start, end) = (segment.start - from + to, segment.end - from + to);
            self.insert(Segment { start, end, ..segment });
        }
        emptied.into_iter().for_each(|range| self.emptied.insert(range.start - from + to..range.end - from + to));
    }

    /// What leaves a range: who was displaced there before who is there.
    fn leave(&mut self, start: u64, end: u64) -> (Vec<Segment>, Vec<Range<u64>>) {
        if start >= end {
            return Default::default();
        }
        let Some((range, mut left)) = self.overtaken.leave(start..end) else { return self.take(start, end) };
        let (below, mut emptied) = self.leave(start, range.start);
        let (above, emptied_above) = self.leave(range.end, end);
        left.extend(below.into_iter().chain(above));
        emptied.extend(emptied_above);
        (left, emptied)
    }

    /// Cuts a range out and gives what was in it, and what of it had been discarded.
    fn take(&mut self, start: u64, end: u64) -> (Vec<Segment>, Vec<Range<u64>>) {
        let first = self.at(start).map_or(start, |segment| segment.start);
        let touched: Vec<Segment> = self.segments.range(first..end.max(first)).map(|(_, segment)| *segment).collect();
        for segment in &touched {
            self.segments.remove(&segment.start);
            self.places.remove(&(segment.extent, segment.first_page));
            let outside = [segment.clipped(0, start), segment.clipped(end, u64::MAX)];
            outside.into_iter().flatten().for_each(|rest| self.insert(rest));
        }
        let taken = touched.iter().filter_map(|segment| segment.clipped(start, end)).collect();
        (taken, self.emptied.take(start..end))
    }

    fn insert(&mut self, segment: Segment) {
        debug_assert!(segment.start < segment.end, "a segment has pages");
        self.segments.insert(segment.start, segment);
        self.places.insert((segment.extent, segment.first_page), segment.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Pages of the small address space that the model knows one by one.
    const PAGES: u64 = 64;

    /// What a page map should be: each page of addresses and what it shows.
    #[derive(Default)]
    struct Model(HashMap<u64, (ExtentId, u64)>);

    impl Model {
        fn remove(&mut self, start: u64, count: u64) {
            self.0.retain(|page, _| !(start..start + count).contains(page));
        }

        fn shows(&self, start: u64, count: u64) -> bool {
            (start..start + count).any(|page| self.0.contains_key(&page))
        }

        fn remap(&mut self, from: u64, to: u64, count: u64) {
            let moved: Vec<_> = (0..count).map(|index| self.0.remove(&(from + index))).collect();
            self.remove(to, count);
            for (index, shown) in moved.into_iter().enumerate() {
                shown.map(|shown| self.0.insert(to + index as u64, shown));
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Event {
        Remove { start: u64, count: u64 },
        Remap { from: u64, to: u64, count: u64 },
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..PAGES, 1..PAGES).prop_map(|(start, count)| Event::Remove { start, count }),
            (0..PAGES, 0..PAGES, 1..16u64)
                .prop_filter("mremap refuses overlapping ranges", |(from, to, count)| from.abs_diff(*to) >= *count)
                .prop_map(|(from, to, count)| Event::Remap { from, to, count }),
        ]
    }

    fn check(map: &PageMap, model: &Model) {
        for page in 0..3 * PAGES {
            let address = page * PAGE_SIZE;
            let shown = map.at(address).map(|segment| (segment.extent, segment.page_at(address)));
            assert_eq!(shown, model.0.get(&page).copied(), "page {page}");
            if let Some((extent, number)) = shown {
                let (place, behind) = map.place_of(extent, number).expect("a page that is shown has a place");
                assert_eq!(place, address);
                assert_eq!(behind, (map.at(address).unwrap().end - address) / PAGE_SIZE);
            }
        }
        let shown: u64 = map.segments().map(Segment::pages).sum();
        assert_eq!((shown as usize, map.segments.len()), (model.0.len(), map.places.len()));
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(events in prop::collection::vec(event(), 0..40)) {
            let mut model = Model::default();
            let mut segments = Vec::new();
            for (extent, first) in [(0u32, 0u64), (1, 20), (2, 40)] {
                let (start, end) = (first * PAGE_SIZE, (first + 16) * PAGE_SIZE);
                segments.push(Segment { start, end, extent: ExtentId(extent), first_page: 3 });
                model.0.extend((0..16).map(|page| (first + page, (ExtentId(extent), 3 + page))));
            }
            let mut map = PageMap::of(segments);
            check(&map, &model);
            let mut undone = Vec::new();
            for event in events {
                let unmap = |start: u64, count: u64| Message::Unmap { start: start * PAGE_SIZE, end: (start + count) * PAGE_SIZE };
                // As the kernel tells of it: a move is the second of three.
                let messages = match event {
                    Event::Remove { start, count } => vec![unmap(start, count)],
                    Event::Remap { from, to, count } => {
                        let (from_at, to_at, bytes) = (from * PAGE_SIZE, to * PAGE_SIZE, count * PAGE_SIZE);
                        let before = model.shows(to, count).then(|| unmap(to, count));
                        let moves = Message::Remap { from: from_at, to: to_at, bytes };
                        before.into_iter().chain([moves, unmap(from, count)]).collect()
                    }
                };
                for message in messages {
                    let before = Model(model.0.clone());
                    match message {
                        Message::Remap { from, to, bytes } => model.remap(from / PAGE_SIZE, to / PAGE_SIZE, bytes / PAGE_SIZE),
                        Message::Unmap { start, end } => model.remove(start / PAGE_SIZE, (end - start) / PAGE_SIZE),
                        _ => {}
                    }
                    undone.push((before, message, map.follow(&message)));
                    check(&map, &model);
                }
            }
            for (before, message, followed) in undone.into_iter().rev() {
                map.unfollow(&message, &followed);
                check(&map, &before);
            }
        }
    }

    #[test]
    fn a_page_that_is_nowhere_has_no_place() {
        let mut map = PageMap::of([Segment { start: 0x1000, end: 0x3000, extent: ExtentId(4), first_page: 0 }]);
        assert_eq!(map.place_of(ExtentId(4), 1), Some((0x2000, 1)));
        assert_eq!(map.place_of(ExtentId(4), 2), None);
        assert_eq!(map.place_of(ExtentId(3), 0), None);
        map.follow(&Message::Unmap { start: 0x2000, end: 0x3000 });
        assert_eq!(map.place_of(ExtentId(4), 1), None);
        assert_eq!(map.next_start(0), Some(0x1000));
    }
}
