//! Finds the bytes of a change set that later changes of the same file overwrite, punch or cut off. They are never copied.

use std::collections::BTreeMap;
use std::ops::Range;

use super::DataChange;

/// Removes copied bytes that later changes overwrite, punch or cut off. The remaining copies never overlap. Returns the
/// number of removed bytes.
///
/// The result gives the same file only after the final size of the file is set: a removed copy may have extended the file.
pub(super) fn remove_overwritten(changes: &mut Vec<DataChange>) -> u64 {
    if !has_overwritten(changes) {
        return 0;
    }
    let mut later = CoveredRanges::default();
    let mut kept = Vec::with_capacity(changes.len());
    let mut removed = 0;
    for change in changes.drain(..).rev() {
        match change {
            DataChange::Copy { offset, bytes, log_position } => {
                let range = offset..offset + u64::from(bytes);
                let visible = later.uncovered(&range);
                removed += u64::from(bytes) - visible.iter().map(|range| range.end - range.start).sum::<u64>();
                kept.extend(visible.into_iter().rev().map(|visible| DataChange::Copy {
                    offset: visible.start,
                    bytes: (visible.end - visible.start) as u32,
                    log_position: log_position + (visible.start - offset),
                }));
                later.cover(range);
            }
            DataChange::PunchHole { offset, bytes } => {
                later.cover(offset..offset.saturating_add(bytes));
                kept.push(change);
            }
            DataChange::SetSize { bytes } => {
                later.cover(bytes..u64::MAX);
                kept.push(change);
            }
            DataChange::AllocateSpace { .. } => kept.push(change),
        }
    }
    kept.reverse();
    *changes = kept;
    removed
}

/// Whether a later change may overwrite a copy. Most files are written from front to end, and keep all copies.
fn has_overwritten(changes: &[DataChange]) -> bool {
    let mut end = 0;
    changes.iter().enumerate().any(|(index, change)| match change {
        DataChange::Copy { offset, bytes, .. } => {
            let is_after_all = *offset >= end;
            end = offset + u64::from(*bytes);
            !is_after_all
        }
        DataChange::AllocateSpace { .. } => false,
        DataChange::PunchHole { .. } | DataChange::SetSize { .. } => index > 0,
    })
}

/// Disjoint ranges of a file that are not adjacent: a map from begin to end.
#[derive(Default)]
struct CoveredRanges(BTreeMap<u64, u64>);

impl CoveredRanges {
    /// The parts of a range that are not covered, in order.
    fn uncovered(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut from = range.start;
        let before = self.0.range(..=range.start).next_back();
        for (begin, end) in before.into_iter().chain(self.0.range(range.start + 1..range.end)) {
            if *begin > from {
                parts.push(from..*begin);
            }
            from = from.max(*end);
        }
        if from < range.end {
            parts.push(from..range.end);
        }
        parts
    }

    fn cover(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        while let Some((begin, last)) = self.0.range(..=end).next_back().map(|(begin, last)| (*begin, *last)) {
            if last < start {
                break;
            }
            self.0.remove(&begin);
            (start, end) = (start.min(begin), end.max(last));
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(offset: u64, bytes: u32, log_position: u64) -> DataChange {
        DataChange::Copy { offset, bytes, log_position }
    }

    #[test]
    fn only_the_last_bytes_of_each_place_are_copied() {
        let mut changes = vec![copy(0, 100, 1000), copy(200, 10, 2000), copy(40, 20, 3000)];
        assert_eq!(remove_overwritten(&mut changes), 20);
        assert_eq!(changes, [copy(0, 40, 1000), copy(60, 40, 1060), copy(200, 10, 2000), copy(40, 20, 3000)]);
    }

    #[test]
    fn bytes_that_are_cut_off_or_punched_are_not_copied() {
        let (punch, cut) = (DataChange::PunchHole { offset: 10, bytes: 10 }, DataChange::SetSize { bytes: 50 });
        let mut changes = vec![copy(0, 100, 0), cut.clone(), punch.clone(), copy(30, 50, 200)];
        assert_eq!(remove_overwritten(&mut changes), 80);
        assert_eq!(changes, [copy(0, 10, 0), copy(20, 10, 20), cut, punch, copy(30, 50, 200)]);
    }

    #[test]
    fn a_file_that_is_written_again_and_again_is_copied_once() {
        let rewrites = (0..1000).map(|round| copy(0, 4096, round * 8192));
        let mut changes: Vec<_> = rewrites.collect();
        assert_eq!(remove_overwritten(&mut changes), 999 * 4096);
        assert_eq!(changes, [copy(0, 4096, 999 * 8192)]);
    }

    #[test]
    fn a_file_that_is_written_from_front_to_end_stays_as_it_is() {
        let written: Vec<_> = (0..10).map(|index| copy(index * 100, 100, index * 128)).collect();
        let mut changes = written.clone();
        assert_eq!(remove_overwritten(&mut changes), 0);
        assert_eq!(changes, written);
    }
}
