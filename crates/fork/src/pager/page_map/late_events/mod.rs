//! Handles map changes of one address space that are read in another order than they were made. `PageMap` calls
//! `LateEvents`, which has the expected unmaps, and the contents that a later change has displaced. While contents are
//! displaced, a message about them is unread, and no page can be installed. When the kernel has no pending message,
//! nothing is expected. Pure.

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
// The next thread that changes the map may report before the first of these reports is queued, or between two of them.
// The delay is as long as a thread needs to wake up. Two changes of one range are then read in the wrong order if the
// second uses the range that the first has vacated:
//
// - The last message of a move, the unmap of its source, must not remove contents that were moved to the source in
//   between. So this unmap is *expected*, and ignored when it is read. A move with MREMAP_DONTUNMAP sends no unmap. If
//   a later message moves, unmaps or discards a part of the source, although nothing is known to be mapped in it, the
//   source was left mapped. The unmap is then no longer expected.
// - A move arrives whose target still shows contents. The kernel would have unmapped these contents and reported the
//   unmap first, so they were removed earlier, by a change whose message is unread. They are *displaced*. The next move
//   or unmap of the range is taken as the message about them.
//
// Discarded ranges show nothing, but are recorded (`AddressSet`): they are moved and unmapped like others.
//
// Two cases are not covered, since no message shows them:
//
// - Two mappings leave one range, one after the other, with a move to the range in between. If both messages are read
//   after the message of the move, the one that is read first is assigned to the first mapping.
// - Memory that shows nothing and was never reported, because mremap(2) has grown it or left it mapped, leaves a range.
//   Its message is read after the message of a move to the range.

/// The messages that are expected because changes were read in another order than they were made.
#[derive(Debug, Clone, Default)]
pub(super) struct LateEvents {
    /// Sources of moves. An unmap of each is expected.
    expected_unmaps: Vec<Range<u64>>,
    /// Displaced contents: ranges that became the target of a move before the message about their old contents was
    /// read, in order, with these contents.
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
    /// Expects the unmap of this range, the source of a move.
    pub(super) fn expect_unmap(&mut self, range: Range<u64>) {
        self.expected_unmaps.push(range);
    }

    /// Returns whether the unmap of this range is expected. If so, stops expecting it.
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

    /// Whether contents are displaced, so that the message about them is unread.
    pub(super) fn has_displaced(&self) -> bool {
        !self.displaced.is_empty()
    }

    /// Whether any late message is expected.
    pub(super) fn is_pending(&self) -> bool {
        !self.expected_unmaps.is_empty() || self.has_displaced()
    }

    /// Adds displaced contents: a move to this range was read while it still showed these segments.
    pub(super) fn add_displaced(&mut self, range: Range<u64>, segments: Vec<MapSegment>) {
        self.displaced.push(DisplacedRange { range, segments });
    }

    /// Takes the contents that were displaced first in a range that is now unmapped or moved. Returns their part of the
    /// range, and their segments.
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

/// A set of addresses, as a map from the start to the end of ranges that neither overlap nor touch.
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

    /// Removes a range. Returns its parts that were in the set.
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
