//! Map changes of one address space that are read in another order than they were made. `PageMap` calls `LateEvents`,
//! which has the unmaps that are still expected and the ranges that a later change has displaced.
//! While a range is displaced the kernel has an unread message, and no page can be installed. When the kernel has no
//! message, nothing is expected either. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use super::MapSegment;

// The changes that each call makes, and its reports:
//
//  mremap(2)   holding the map lock, all its changes:        then reports, one by one, waiting until each was read:
//              unmaps what was at the target                 1. unmap of the target, if paged memory was there
//              moves the mapping to the target               2. the move
//              unmaps the source                             3. unmap of the source (not with MREMAP_DONTUNMAP)
//  munmap(2)   unmaps the range                              1. unmap
//
// The next thread that changes the map may report before the first of these is queued, or between two of them. The gap
// lasts as long as a thread needs to wake up. Two changes of one range are then read in the wrong order, if the second
// uses the range that the first has left:
//
// - The last message of a move says nothing new. What was moved into the source meanwhile must not be taken as
//   unmapped. So that message is *expected*, and ignored when it is read. A move with MREMAP_DONTUNMAP sends no such
//   message. If a part of such a source is left or discarded by itself, and nothing is known to have been moved there,
//   the source was left mapped. The message is then expected no more.
// - Something is moved to a range that still shows something. The kernel would have unmapped the old contents, and
//   reported that first: so they have left already. They are *displaced*. The next message by which something leaves
//   the range, a move or an unmap, is taken as theirs.
//
// A range that shows nothing because it was discarded is remembered (`AddressSet`): it is left like others.
//
// Two cases are not covered, since no message shows them:
//
// - Two mappings leave one range, one after the other, and something is moved to the range between them. If both
//   messages are read after the move, the one that is read first is taken for the first mapping.
// - Memory that shows nothing and was never reported leaves a range, and this is read after a move to that range. Such
//   memory is what mremap(2) has grown, or has left mapped.

/// The expected messages about changes that are read late.
#[derive(Debug, Clone, Default)]
pub(super) struct LateEvents {
    /// Ranges that moves have left. Each will be reported once more, as an unmap.
    expected_unmaps: Vec<Range<u64>>,
    /// Ranges that were moved into before it was read that their contents had left, in order, with what they showed.
    displaced: Vec<DisplacedRange>,
}

#[derive(Debug, Clone)]
struct DisplacedRange {
    range: Range<u64>,
    segments: Vec<MapSegment>,
}

impl DisplacedRange {
    fn clip(&self, range: Range<u64>) -> Self {
        let clipped = self.segments.iter().filter_map(|segment| segment.clipped(range.start, range.end));
        Self { segments: clipped.collect(), range }
    }
}

impl LateEvents {
    /// A move has left this range, and will report its unmap.
    pub(super) fn expect_unmap(&mut self, range: Range<u64>) {
        self.expected_unmaps.push(range);
    }

    /// Whether the unmap of this range is expected, because a move has left it. If so, stops expecting it.
    pub(super) fn take_expected_unmap(&mut self, range: Range<u64>) -> bool {
        let found = self.expected_unmaps.iter().rposition(|expected| *expected == range);
        found.map(|index| self.expected_unmaps.remove(index)).is_some()
    }

    /// Whether the unmap of this range is expected.
    pub(super) fn is_expected_unmap(&self, range: &Range<u64>) -> bool {
        self.expected_unmaps.contains(range)
    }

    /// The expected ranges that overlap with a range.
    pub(super) fn expected_overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let (start, end) = (range.start, range.end);
        self.expected_unmaps.iter().filter(move |expected| expected.start < end && start < expected.end)
    }

    /// Stops expecting these ranges.
    pub(super) fn drop_expected(&mut self, obsolete: &[Range<u64>]) {
        self.expected_unmaps.retain(|expected| !obsolete.contains(expected));
    }

    /// Whether contents were displaced whose own message is unread.
    pub(super) fn has_displaced(&self) -> bool {
        !self.displaced.is_empty()
    }

    /// Whether any late message is expected.
    pub(super) fn is_pending(&self) -> bool {
        !self.expected_unmaps.is_empty() || self.has_displaced()
    }

    /// Something was moved to a range that was not left yet, and that showed these segments.
    pub(super) fn add_displaced(&mut self, range: Range<u64>, segments: Vec<MapSegment>) {
        self.displaced.push(DisplacedRange { range, segments });
    }

    /// Takes the contents that were displaced first in a range that is left. Returns their part of the range, and what it
    /// showed.
    pub(super) fn take_displaced(&mut self, range: Range<u64>) -> Option<(Range<u64>, Vec<MapSegment>)> {
        let is_of_it =
            |displaced: &DisplacedRange| displaced.range.start < range.end && range.start < displaced.range.end;
        let index = self.displaced.iter().position(is_of_it)?;
        let found = self.displaced.remove(index);
        let whole = &found.range;
        let part = found.clip(whole.start.max(range.start)..whole.end.min(range.end));
        let rests = [found.clip(whole.start..part.range.start), found.clip(part.range.end..whole.end)];
        let rests = rests.into_iter().filter(|rest| !rest.range.is_empty());
        self.displaced.splice(index..index, rests);
        Some((part.range, part.segments))
    }
}

/// A set of addresses, as ranges that neither overlap nor touch, by first address.
#[derive(Debug, Clone, Default)]
pub(super) struct AddressSet(BTreeMap<u64, u64>);

impl AddressSet {
    /// Whether any part of a range is in the set.
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

    /// Removes a range, and returns what was in it.
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
