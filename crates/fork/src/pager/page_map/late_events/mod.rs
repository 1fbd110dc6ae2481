//! Changes of one memory map that are heard in another order than they were made.
//!
//! ```text
//!  mremap(2)   under the lock of the map: all it changes     then it tells, one by one, and waits until each was read:
//!              what was at the new place is unmapped         1. unmapped: the new place, where paged memory was there
//!              the area goes to its new place                2. moved
//!              its old place is unmapped                     3. unmapped: the old place (not with MREMAP_DONTUNMAP)
//!  munmap(2)   the range is unmapped                         1. unmapped
//! ```
//!
//! Whoever changes the map next may tell before the first of these is queued, or between two of them, which takes as long as a
//! thread needs to wake up. Two changes of one place are then heard in the wrong order if the second uses what the first has left:
//!
//! - The last message of a move tells nothing new. Who moved in meanwhile must not be taken for unmapped. So it is *expected*, and
//!   ignored when it comes.
//!   A move with MREMAP_DONTUNMAP tells nothing of the kind. Where a part of such a place is left or discarded by itself, and nothing is known
//!   to have been moved there, it was left mapped, and is expected no more.
//! - Something is moved to a place that still shows something. The kernel would have unmapped that, and told so before: it has been left.
//!   What it shows is *displaced*, and the next that is heard to leave the place, by a move or unmapped, is that.
//!
//! As long as something is displaced the kernel has something to tell, and no page can be installed. When it has nothing to tell, nothing
//! is expected either.
//!
//! A place that shows nothing any more because that was discarded is kept in mind (`Ranges`): it is left as others are.
//!
//! Left out, as nobody can tell: two that leave one place, both heard behind one who came between them (the one heard first is taken for the
//! first); and who leaves a place behind a move to it that showed nothing and was never told of: what mremap(2) had made longer, or left
//! mapped. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use super::MapSegment;

/// What is to be heard of changes that are heard late.
#[derive(Debug, Clone, Default)]
pub(super) struct LateEvents {
    /// Places that moves have left, each to be told of once more.
    expected_unmaps: Vec<Range<u64>>,
    /// Those that were moved into before it was heard who left, in order, with what they showed.
    displaced: Vec<DisplacedRange>,
}

#[derive(Debug, Clone)]
struct DisplacedRange {
    place: Range<u64>,
    segments: Vec<MapSegment>,
}

impl DisplacedRange {
    fn clip(&self, place: Range<u64>) -> Self {
        let clipped = self.segments.iter().filter_map(|segment| segment.clipped(place.start, place.end));
        Self { segments: clipped.collect(), place }
    }
}

impl LateEvents {
    /// A move has left this range, and will tell so once more.
    pub(super) fn expect_unmap(&mut self, range: Range<u64>) {
        self.expected_unmaps.push(range);
    }

    /// Whether this range was expected, as it was heard of a move that it was left. It is not any more.
    pub(super) fn take_expected_unmap(&mut self, range: Range<u64>) -> bool {
        let found = self.expected_unmaps.iter().rposition(|expected| *expected == range);
        found.map(|index| self.expected_unmaps.remove(index)).is_some()
    }

    /// Whether this range is expected.
    pub(super) fn is_expected_unmap(&self, range: &Range<u64>) -> bool {
        self.expected_unmaps.contains(range)
    }

    /// The expected ranges that a range overlaps.
    pub(super) fn expected_overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let (start, end) = (range.start, range.end);
        self.expected_unmaps.iter().filter(move |place| place.start < end && start < place.end)
    }

    /// These ranges are expected no more.
    pub(super) fn drop_expected(&mut self, obsolete: &[Range<u64>]) {
        self.expected_unmaps.retain(|place| !obsolete.contains(place));
    }

    /// Whether it is still to be heard where something has gone.
    pub(super) fn has_displaced(&self) -> bool {
        !self.displaced.is_empty()
    }

    /// Whether there is anything to be heard.
    pub(super) fn is_pending(&self) -> bool {
        !self.expected_unmaps.is_empty() || self.has_displaced()
    }

    /// Something was moved to a place that was not left yet, and showed these.
    pub(super) fn add_displaced(&mut self, place: Range<u64>, segments: Vec<MapSegment>) {
        self.displaced.push(DisplacedRange { place, segments });
    }

    /// What was displaced first of a range that is left: that part of the range, and what it showed.
    pub(super) fn take_displaced(&mut self, range: Range<u64>) -> Option<(Range<u64>, Vec<MapSegment>)> {
        let is_of_it =
            |displaced: &DisplacedRange| displaced.place.start < range.end && range.start < displaced.place.end;
        let index = self.displaced.iter().position(is_of_it)?;
        let found = self.displaced.remove(index);
        let place = &found.place;
        let part = found.clip(place.start.max(range.start)..place.end.min(range.end));
        let rests = [found.clip(place.start..part.place.start), found.clip(part.place.end..place.end)];
        let rests = rests.into_iter().filter(|rest| !rest.place.is_empty());
        self.displaced.splice(index..index, rests);
        Some((part.place, part.segments))
    }
}

/// A set of addresses, as ranges that neither overlap nor touch, by first address.
#[derive(Debug, Clone, Default)]
pub(super) struct AddressSet(BTreeMap<u64, u64>);

impl AddressSet {
    /// Whether any of a range is in it.
    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.0.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Adds a range.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        let touches = |ranges: &Self| {
            let (start, end) = ranges.0.range(..=range.end).next_back()?;
            (*end >= range.start).then_some((*start, *end))
        };
        let mut whole = range.clone();
        while let Some((start, end)) = touches(self) {
            self.0.remove(&start);
            whole = whole.start.min(start)..whole.end.max(end);
        }
        self.0.insert(whole.start, whole.end);
    }

    /// Cuts a range out, and gives what was in it.
    pub(super) fn remove(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut taken = Vec::new();
        while self.overlaps(&range)
            && let Some((start, end)) = self.0.range(..range.end).next_back().map(|(start, end)| (*start, *end))
        {
            self.0.remove(&start);
            let rests = [(start, range.start), (range.end, end)];
            self.0.extend(rests.into_iter().filter(|(start, end)| start < end));
            taken.push(start.max(range.start)..end.min(range.end));
        }
        taken
    }
}

#[cfg(test)]
mod tests;
