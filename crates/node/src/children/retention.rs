//! Decides how long an ended child stays listed: by the requests that wait for it, whether its end was reported, and
//! the size of its files. Pure: `ChildTable` reports events, and `ChildSupervisor` removes evicted children.
//!
//! A held child is never evicted: each holder is a request of a connected client.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use farfork_wire::ChildId;

use farfork_api::limits::{ENDED_CHILDREN_MAX, UNCOLLECTED_BYTES_MAX, UNCOLLECTED_CHILDREN_MAX, UNCOLLECTED_KEPT_MIN};

/// A sequence number: it orders ended children by the time at which they joined their queue.
type Ticket = u64;

/// An ended child that is cleaned up: only its files are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CleanedUpChild {
    /// When it ended.
    pub(super) ended_at: Instant,
    /// Disk space of its files, in bytes.
    pub(super) bytes: u64,
}

/// All ended children of a node, and all that are held.
///
/// ```text
///                hold                      release
///  cleaned up ──────────▶ held ───────────────────────────▶ collected or uncollected
///      │                                                      │        │ too many, too large: the oldest
///      └──▶ uncollected ──── UNCOLLECTED_KEPT_MIN ──▶ collected        ▼
///                                                             └─────▶ evicted (the oldest beyond ENDED_CHILDREN_MAX)
/// ```
#[derive(Debug, Default)]
pub(super) struct Retention {
    states: HashMap<ChildId, ChildState>,
    collected: BTreeMap<Ticket, ChildId>,
    uncollected: BTreeMap<Ticket, ChildId>,
    uncollected_bytes: u64,
    last_ticket: Ticket,
}

#[derive(Debug, Default)]
struct ChildState {
    /// Number of requests that wait for the child.
    holders: u32,
    /// Whether the child's end was reported to a client.
    is_collected: bool,
    cleaned_up: Option<CleanedUpChild>,
    /// The queue that the child is in, and its number there.
    queue: Option<(RetentionQueue, Ticket)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetentionQueue {
    Collected,
    Uncollected,
}

/// Children to evict.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EvictionBatch {
    /// Their ids.
    pub(super) children: Vec<ChildId>,
    /// How many of the children have an end that no request has collected.
    pub(super) uncollected: usize,
}

impl Retention {
    /// Counts a request that waits for the child, and removes the child from its queue. The child may have ended or
    /// not.
    pub(super) fn hold(&mut self, id: &ChildId) {
        self.states.entry(id.clone()).or_default().holders += 1;
        self.leave_queue(id);
    }

    /// Ends the hold of one request. After the last one, a cleaned-up child joins its queue.
    pub(super) fn release(&mut self, id: &ChildId) {
        let Some(state) = self.states.get_mut(id) else { return };
        state.holders = state.holders.saturating_sub(1);
        if state.holders > 0 {
            return;
        }
        match state.cleaned_up {
            Some(_) => self.join_queue(id),
            None if !state.is_collected => drop(self.states.remove(id)),
            None => {}
        }
    }

    /// Records that the child's end was reported to a client.
    pub(super) fn mark_collected(&mut self, id: &ChildId) {
        self.states.entry(id.clone()).or_default().is_collected = true;
        if self.leave_queue(id) {
            self.join_queue(id);
        }
    }

    /// Records that only files of the child are left.
    pub(super) fn mark_cleaned_up(&mut self, id: &ChildId, cleaned_up: CleanedUpChild) {
        let state = self.states.entry(id.clone()).or_default();
        state.cleaned_up = Some(cleaned_up);
        if state.holders == 0 {
            self.join_queue(id);
        }
    }

    /// Removes the child's state.
    pub(super) fn remove(&mut self, id: &ChildId) {
        self.leave_queue(id);
        self.states.remove(id);
    }

    /// Selects the children to evict now, at most `count_max`, and removes their states.
    pub(super) fn take_surplus(&mut self, now: Instant, count_max: usize) -> EvictionBatch {
        while let Some(id) = self.first_uncollected().filter(|id| self.is_old(id, now)) {
            self.mark_collected(&id);
        }
        let mut surplus = EvictionBatch::default();
        while surplus.children.len() < count_max
            && let Some(id) = self.first_uncollected().filter(|_| self.has_too_many_uncollected())
        {
            self.remove(&id);
            surplus.children.push(id);
            surplus.uncollected += 1;
        }
        while surplus.children.len() < count_max
            && self.collected.len() + self.uncollected.len() > ENDED_CHILDREN_MAX
            && let Some((_, id)) = self.collected.first_key_value()
        {
            let id = id.clone();
            self.remove(&id);
            surplus.children.push(id);
        }
        surplus
    }

    fn first_uncollected(&self) -> Option<ChildId> {
        self.uncollected.first_key_value().map(|(_, id)| id.clone())
    }

    fn is_old(&self, id: &ChildId, now: Instant) -> bool {
        let cleaned_up = self.states.get(id).and_then(|state| state.cleaned_up);
        cleaned_up.is_some_and(|cleaned_up| now.saturating_duration_since(cleaned_up.ended_at) >= UNCOLLECTED_KEPT_MIN)
    }

    fn has_too_many_uncollected(&self) -> bool {
        self.uncollected.len() > UNCOLLECTED_CHILDREN_MAX || self.uncollected_bytes > UNCOLLECTED_BYTES_MAX
    }

    /// Appends a cleaned-up child without holders to its queue.
    fn join_queue(&mut self, id: &ChildId) {
        let Some(state) = self.states.get_mut(id) else { return };
        let Some(cleaned_up) = state.cleaned_up else { return };
        self.last_ticket += 1;
        let queue = if state.is_collected { RetentionQueue::Collected } else { RetentionQueue::Uncollected };
        state.queue = Some((queue, self.last_ticket));
        match queue {
            RetentionQueue::Collected => drop(self.collected.insert(self.last_ticket, id.clone())),
            RetentionQueue::Uncollected => {
                self.uncollected.insert(self.last_ticket, id.clone());
                self.uncollected_bytes += cleaned_up.bytes;
            }
        }
    }

    /// Removes the child from its queue. Returns whether it was in one.
    fn leave_queue(&mut self, id: &ChildId) -> bool {
        let Some(state) = self.states.get_mut(id) else { return false };
        let Some((queue, ticket)) = state.queue.take() else { return false };
        match queue {
            RetentionQueue::Collected => drop(self.collected.remove(&ticket)),
            RetentionQueue::Uncollected => {
                self.uncollected.remove(&ticket);
                self.uncollected_bytes -= state.cleaned_up.map_or(0, |cleaned_up| cleaned_up.bytes);
            }
        }
        true
    }
}

/// Converts the wall-clock time of an end before this daemon's start to an `Instant`.
pub(super) fn end_instant(now: Instant, now_unix_ms: u64, ended_unix_ms: u64) -> Instant {
    let ago = Duration::from_millis(now_unix_ms.saturating_sub(ended_unix_ms));
    // A time before the machine's boot has no `Instant`. Such a child is kept longer.
    now.checked_sub(ago.min(UNCOLLECTED_KEPT_MIN)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(number: usize) -> ChildId {
        format!("n1.c{number:016x}").parse().expect("a child's id")
    }

    fn cleaned_up(at: Instant) -> CleanedUpChild {
        CleanedUpChild { ended_at: at, bytes: 4096 }
    }

    fn filled(count: usize, at: Instant) -> Retention {
        let mut retention = Retention::default();
        (0..count).for_each(|number| retention.mark_cleaned_up(&child(number), cleaned_up(at)));
        retention
    }

    #[test]
    fn a_held_child_is_never_evicted() {
        let begin = Instant::now();
        let mut retention = Retention::default();
        let held: Vec<ChildId> = (0..2 * UNCOLLECTED_CHILDREN_MAX).map(child).collect();
        held.iter().for_each(|id| retention.hold(id));
        held.iter().for_each(|id| retention.mark_cleaned_up(id, cleaned_up(begin)));
        held.iter().for_each(|id| retention.mark_collected(id));
        assert_eq!(retention.take_surplus(begin + 2 * UNCOLLECTED_KEPT_MIN, usize::MAX), EvictionBatch::default());
        held.iter().for_each(|id| retention.release(id));
        let surplus = retention.take_surplus(begin, usize::MAX);
        assert_eq!((surplus.children.len(), surplus.uncollected), (held.len() - ENDED_CHILDREN_MAX, 0));
        assert_eq!(surplus.children[0], held[0], "the child that was released first is evicted first");
    }

    #[test]
    fn an_uncollected_exit_is_kept_for_a_time() {
        let begin = Instant::now();
        let mut retention = filled(3 * ENDED_CHILDREN_MAX, begin);
        assert_eq!(retention.take_surplus(begin + UNCOLLECTED_KEPT_MIN / 2, usize::MAX), EvictionBatch::default());
        let surplus = retention.take_surplus(begin + UNCOLLECTED_KEPT_MIN, usize::MAX);
        assert_eq!((surplus.children.len(), surplus.uncollected), (2 * ENDED_CHILDREN_MAX, 0));
    }

    #[test]
    fn collected_exits_are_evicted_first() {
        let begin = Instant::now();
        let mut retention = filled(ENDED_CHILDREN_MAX, begin);
        let late = child(ENDED_CHILDREN_MAX);
        retention.mark_cleaned_up(&late, cleaned_up(begin));
        retention.mark_collected(&late);
        assert_eq!(retention.take_surplus(begin, usize::MAX).children, [late]);
    }

    #[test]
    fn number_and_bytes_of_kept_exits_are_bounded() {
        let begin = Instant::now();
        let mut retention = filled(UNCOLLECTED_CHILDREN_MAX + 3, begin);
        let surplus = retention.take_surplus(begin, usize::MAX);
        assert_eq!((surplus.children, surplus.uncollected), ((0..3).map(child).collect(), 3));
        let mut retention = Retention::default();
        retention.mark_cleaned_up(&child(0), CleanedUpChild { ended_at: begin, bytes: UNCOLLECTED_BYTES_MAX });
        retention.mark_cleaned_up(&child(1), cleaned_up(begin));
        assert_eq!(retention.take_surplus(begin, usize::MAX).children, [child(0)]);
        assert_eq!(retention.take_surplus(begin, usize::MAX), EvictionBatch::default());
    }

    #[test]
    fn removed_children_are_not_counted() {
        let begin = Instant::now();
        let mut retention = filled(2, begin);
        retention.hold(&child(0));
        retention.remove(&child(0));
        retention.release(&child(0));
        retention.remove(&child(1));
        retention.hold(&child(2));
        retention.release(&child(2));
        assert_eq!((retention.states.len(), retention.uncollected_bytes), (0, 0));
        assert!(retention.collected.is_empty() && retention.uncollected.is_empty());
    }

    #[test]
    fn the_age_of_an_exit_is_kept_across_daemon_restarts() {
        let now = Instant::now();
        assert_eq!(end_instant(now, 5_000, 6_000), now);
        let old = end_instant(now, u64::MAX, 0);
        assert!(now.duration_since(old) <= UNCOLLECTED_KEPT_MIN);
    }
}
