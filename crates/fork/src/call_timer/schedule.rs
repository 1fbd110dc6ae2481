//! The calls that the timer must end, in the order in which they are due. Does no I/O; time is an argument.

use std::collections::{BTreeSet, HashMap};

use super::backoff::RetryBackoff;
use super::deadline::CallDeadline;

/// Maximum number of scheduled calls: about the number of threads of a large machine. Further calls last for their whole
/// limits.
const WATCHES_MAX: usize = 1 << 16;

/// A call and the time of its next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScheduledCall {
    pub(super) watch: CallDeadline,
    pub(super) due_ns: u64,
    /// Whether the timer itself has set the mark, in an earlier stop that ended no call.
    pub(super) is_our_own: bool,
    pub(super) backoff: RetryBackoff,
}

impl ScheduledCall {
    /// Creates a call whose first attempt is due at its deadline.
    pub(super) fn new(call_deadline: CallDeadline, is_our_own: bool) -> Self {
        Self { watch: call_deadline, due_ns: call_deadline.deadline_ns, is_our_own, backoff: RetryBackoff::new() }
    }
}

/// The calls by thread, one for each thread, and by due time.
#[derive(Debug, Default)]
pub(super) struct CallSchedule {
    by_thread: HashMap<i32, ScheduledCall>,
    by_due_time: BTreeSet<(u64, i32)>,
}

impl CallSchedule {
    /// Adds a call. An earlier call of the same thread has ended, and is replaced. Ignores the call if there are
    /// [`WATCHES_MAX`] others.
    pub(super) fn add(&mut self, pending: ScheduledCall) {
        let tid = pending.watch.tid;
        self.remove(tid);
        if self.by_thread.len() < WATCHES_MAX {
            self.by_thread.insert(tid, pending);
            self.by_due_time.insert((pending.due_ns, tid));
        }
    }

    /// Removes and returns the call that is due first, if it is due now.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<ScheduledCall> {
        let (_, tid) = self.by_due_time.first().copied().filter(|(due_ns, _)| *due_ns <= now_ns)?;
        self.remove(tid)
    }

    /// Returns when the next call is due.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.by_due_time.first().map(|(due_ns, _)| *due_ns)
    }

    /// Drops the calls that are due later than `last_ns`.
    pub(super) fn drop_later_than(&mut self, last_ns: u64) {
        for (_, tid) in self.by_due_time.split_off(&(last_ns.saturating_add(1), i32::MIN)) {
            self.by_thread.remove(&tid);
        }
    }

    fn remove(&mut self, tid: i32) -> Option<ScheduledCall> {
        let pending = self.by_thread.remove(&tid)?;
        self.by_due_time.remove(&(pending.due_ns, tid));
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::super::deadline::CallSite;
    use super::*;

    fn has(schedule: &CallSchedule, tid: i32) -> bool {
        schedule.by_thread.contains_key(&tid)
    }

    fn pending(tid: i32, end_ns: u64) -> ScheduledCall {
        let site = CallSite { number: 232, mark: None, rsp: 0x7ffc_0000, rip: 0x40_1002 };
        ScheduledCall::new(CallDeadline { tid, start_ticks: 5, site, deadline_ns: end_ns, result: 0 }, false)
    }

    #[test]
    fn due_calls_are_taken_in_order() {
        let mut schedule = CallSchedule::default();
        [(1, 30), (2, 10), (3, 20), (4, 20)].into_iter().for_each(|(tid, end_ns)| schedule.add(pending(tid, end_ns)));
        assert_eq!(schedule.next_due_ns(), Some(10));
        assert_eq!(schedule.take_due(9), None);
        let taken: Vec<i32> = std::iter::from_fn(|| schedule.take_due(29)).map(|one| one.watch.tid).collect();
        assert_eq!((taken, schedule.next_due_ns()), (vec![2, 3, 4], Some(30)));
    }

    #[test]
    fn a_thread_has_one_call() {
        let mut schedule = CallSchedule::default();
        [10, 50, 20].into_iter().for_each(|end_ns| schedule.add(pending(7, end_ns)));
        assert_eq!(schedule.take_due(100), Some(pending(7, 20)));
        assert!(!has(&schedule, 7) && schedule.take_due(100).is_none() && schedule.next_due_ns().is_none());
    }

    #[test]
    fn the_number_of_scheduled_calls_is_bounded() {
        let mut schedule = CallSchedule::default();
        let threads = i32::try_from(WATCHES_MAX).unwrap();
        (0..=threads).for_each(|tid| schedule.add(pending(tid, 1)));
        assert!(has(&schedule, threads - 1) && !has(&schedule, threads));
        schedule.add(pending(0, 9));
        assert_eq!(schedule.by_thread[&0].due_ns, 9, "the later call replaces the earlier one");
    }

    #[test]
    fn calls_that_end_after_the_limit_are_dropped() {
        let mut schedule = CallSchedule::default();
        [(1, 10), (2, 20), (3, 21)].into_iter().for_each(|(tid, end_ns)| schedule.add(pending(tid, end_ns)));
        schedule.drop_later_than(20);
        assert_eq!([1, 2, 3].map(|tid| has(&schedule, tid)), [true, true, false]);
    }
}
