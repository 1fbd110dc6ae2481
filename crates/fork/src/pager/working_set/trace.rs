//! `AccessTrace`: the slots on which one child faulted, and the slots that were fetched before it touched them, in
//! order. It also has the slots that were withheld from the child on trial, until the child touches them.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::SET_PAGES_MAX;
use crate::pager::address_space::slot_bitmap::SlotBitmap;

/// The recorded accesses of one child.
#[derive(Debug, Default)]
pub(in crate::pager) struct AccessTrace {
    /// Slots that were recorded, or are in the child's set.
    known: SlotBitmap,
    /// Slots that the child faulted on.
    touched: SlotBitmap,
    /// Slots that were recorded and not reported yet, and whether they were touched.
    unreported: Vec<(Range<u64>, bool)>,
    /// The last slot that was reported.
    last_reported: Option<u64>,
    /// Number of slots that may still be recorded.
    slots_left: u64,
    /// Slots on trial that were not touched or fetched.
    on_trial: BTreeSet<u64>,
}

/// The part of a trace that is not yet reported.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TraceDelta {
    /// The last slot of the previous report.
    pub(super) after: Option<u64>,
    /// Slots in the order in which they were recorded, and whether they were touched.
    pub(super) slots: Vec<(Range<u64>, bool)>,
}

impl AccessTrace {
    /// Creates the trace of a child with this many slots. The default value records nothing.
    pub(in crate::pager) fn new(slots: u64) -> Self {
        Self {
            known: SlotBitmap::new(slots),
            touched: SlotBitmap::new(slots),
            slots_left: SET_PAGES_MAX,
            ..Self::default()
        }
    }

    /// Whether a slot was recorded, or is in the child's set.
    pub(in crate::pager) fn is_recorded(&self, slot: u64) -> bool {
        self.known.contains(slot)
    }

    /// Returns the slots of a range that were recorded, or are in the child's set.
    pub(super) fn recorded_in(&self, range: Range<u64>) -> VecDeque<Range<u64>> {
        self.known.runs_not_in(&SlotBitmap::default(), range).collect()
    }

    /// Records that the child faulted on a slot.
    pub(in crate::pager) fn record_touch(&mut self, slot: u64) {
        self.on_trial.remove(&slot);
        if self.slots_left == 0 || self.touched.contains(slot) {
            return;
        }
        self.touched.insert(slot..slot + 1);
        self.known.insert(slot..slot + 1);
        self.append(slot..slot + 1, true);
    }

    /// Records that slots were requested before the child touched them.
    pub(in crate::pager) fn record_fetched(&mut self, slots: &[Range<u64>]) {
        for slots in slots {
            if !self.on_trial.is_empty() {
                // The child's touches of fetched slots cannot be seen, so their trial ends.
                self.on_trial.retain(|slot| !slots.contains(slot));
            }
            let new: Vec<Range<u64>> = self.known.runs_in_neither(&self.touched, slots.clone()).collect();
            for slots in new {
                let slots = slots.start..slots.end.min(slots.start + self.slots_left);
                if !slots.is_empty() {
                    self.known.insert(slots.clone());
                    self.append(slots, false);
                }
            }
        }
    }

    /// Records the set that the child gets: `slots`, but not `on_trial`.
    pub(super) fn record_received_set(&mut self, slots: &[Range<u64>], on_trial: &[u64]) {
        if self.slots_left > 0 {
            slots.iter().for_each(|slots| self.known.insert(slots.clone()));
            self.on_trial.extend(on_trial.iter().filter(|slot| !self.touched.contains(**slot)));
        }
    }

    /// Takes the slots that were recorded since the last call; `None` if there are none.
    pub(super) fn take_delta(&mut self) -> Option<TraceDelta> {
        let slots = std::mem::take(&mut self.unreported);
        let after = self.last_reported;
        self.last_reported = Some(slots.last()?.0.end - 1);
        Some(TraceDelta { after, slots })
    }

    /// Takes the slots on trial that the child has not touched, ascending.
    pub(super) fn take_untouched_trials(&mut self) -> Vec<Range<u64>> {
        let mut unwanted: Vec<Range<u64>> = Vec::new();
        for slot in std::mem::take(&mut self.on_trial) {
            match unwanted.last_mut().filter(|last| last.end == slot) {
                Some(last) => last.end += 1,
                None => unwanted.push(slot..slot + 1),
            }
        }
        unwanted
    }

    fn append(&mut self, slots: Range<u64>, is_touched: bool) {
        self.slots_left = self.slots_left.saturating_sub(slots.end - slots.start);
        match self.unreported.last_mut() {
            Some((last, kind)) if *kind == is_touched && last.end == slots.start => last.end = slots.end,
            _ => self.unreported.push((slots, is_touched)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_are_reported_once_and_in_order() {
        let mut trace = AccessTrace::new(1000);
        trace.record_touch(7);
        trace.record_fetched(std::slice::from_ref(&(0..32)));
        trace.record_touch(8);
        trace.record_touch(7);
        trace.record_touch(100);
        let slots = vec![(7..8, true), (0..7, false), (8..32, false), (8..9, true), (100..101, true)];
        assert_eq!(trace.take_delta(), Some(TraceDelta { after: None, slots }));
        assert_eq!(trace.take_delta(), None);
        trace.record_touch(101);
        trace.record_touch(105);
        let slots = vec![(101..102, true), (105..106, true)];
        assert_eq!(trace.take_delta(), Some(TraceDelta { after: Some(100), slots }));
    }

    #[test]
    fn received_pages_are_not_reported_and_a_touch_ends_a_trial() {
        let mut trace = AccessTrace::new(1000);
        trace.record_touch(20);
        trace.record_received_set(&[0..10, 12..14], &[10, 11, 20, 30, 31, 40]);
        trace.record_fetched(&[0..10, 12..14, 40..41]);
        trace.record_touch(11);
        assert_eq!(trace.recorded_in(8..30), [8..10, 11..14, 20..21]);
        assert_eq!(trace.take_delta().unwrap().slots, [(20..21, true), (40..41, false), (11..12, true)]);
        assert_eq!(trace.take_untouched_trials(), [10..11, 30..32], "fetched slots are not counted as untouched");
    }

    #[test]
    fn a_trace_is_bounded_and_a_disabled_one_is_empty() {
        let mut trace = AccessTrace::new(4 * SET_PAGES_MAX);
        trace.record_fetched(&[0..SET_PAGES_MAX - 1, SET_PAGES_MAX..3 * SET_PAGES_MAX]);
        trace.record_touch(0);
        let noted: u64 = trace.take_delta().unwrap().slots.iter().map(|(slots, _)| slots.end - slots.start).sum();
        assert_eq!(noted, SET_PAGES_MAX);
        let mut none = AccessTrace::default();
        none.record_touch(5);
        none.record_fetched(&[0..3, 5..6]);
        assert_eq!(none.take_delta(), None);
    }
}
