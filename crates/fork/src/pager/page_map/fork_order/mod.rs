//! Decides which of the parent's last map changes a forked process has. The order of the events does not show this: a
//! fork event may be read before a change that the forked process has, or after a change that it lacks.
//! `UnresolvedFork::resolve` asks the kernel about the forked process, through `ForkMapCheck`, and returns the
//! likeliest map. Pure: `address_space::fork_map_check` queries the kernel, and `faults::fork_resolution` decides when.

use std::collections::BTreeSet;
use std::ops::Range;

use farfork_sys::userfaultfd::UffdEvent;

use super::fork_page_probes::{MemoizedCheck, ProbeResults, probe_pages};
use super::{AppliedChange, MapSegment, PageMap};
use crate::pager::journal::AddressSpaceId;

/// Maximum number of changes read after a fork that are in question. A thread reports late by one scheduling turn, a
/// few milliseconds. In this time other threads make about one change per ten microseconds.
const LATE_CHANGES_MAX: usize = 512;

/// The cost of a contradiction: an address or a page is in an impossible state. Exceeds the sum of all smaller costs.
pub(super) const CONTRADICTION_COST: u32 = 1 << 16;

/// A change of a memory map, from a message that was read.
#[derive(Debug, Clone)]
pub(in crate::pager) struct MapChange {
    pub(super) message: UffdEvent,
    /// The segments that the change removed from the page map, and the data to undo the change.
    pub(super) applied: AppliedChange,
    /// An address whose registration shows whether the change was made: in the target of a move, or in the unmapped
    /// range.
    probe_address: Option<u64>,
    /// The segments that a move has moved, at their addresses before the move.
    pub(super) moved_segments: Vec<MapSegment>,
    /// Whether the page map showed nothing in the source of the move.
    is_source_unknown: bool,
}

impl MapChange {
    /// Applies a message to a map.
    pub(in crate::pager) fn apply(message: UffdEvent, map: &mut PageMap) -> Self {
        let is_source_unknown =
            matches!(message, UffdEvent::Remap { from, bytes, .. } if !map.has_any_in(from..from + bytes));
        let applied = map.apply_event(&message);
        let left = applied.removed.segments.first().map(|segment| segment.start);
        let probe_address = match message {
            UffdEvent::Remap { to, bytes, .. } => map.first_mapped_in(to, to + bytes).or(left).or(Some(to)),
            _ => left,
        };
        let moved_segments = match message {
            UffdEvent::Remap { from, to, bytes } => {
                let moved = map.segments_in(to, to + bytes);
                moved.map(|it| MapSegment { start: it.start - to + from, end: it.end - to + from, ..it }).collect()
            }
            _ => Vec::new(),
        };
        Self { message, applied, probe_address, moved_segments, is_source_unknown }
    }

    /// The addresses whose registration depends on this change.
    fn probe_addresses(&self) -> impl Iterator<Item = u64> {
        let origin = match self.message {
            UffdEvent::Remap { from, to, .. } => self.probe_address.map(|address| address - to + from),
            _ => None,
        };
        self.probe_address.filter(|_| !self.is_discard()).into_iter().chain(origin)
    }

    /// Returns the source of a move.
    fn source_range(&self) -> Option<Range<u64>> {
        match self.message {
            UffdEvent::Remap { from, bytes, .. } => Some(from..from + bytes),
            _ => None,
        }
    }

    /// Returns the target of a move.
    fn target_range(&self) -> Option<Range<u64>> {
        match self.message {
            UffdEvent::Remap { to, bytes, .. } => Some(to..to + bytes),
            _ => None,
        }
    }

    fn is_discard(&self) -> bool {
        matches!(self.message, UffdEvent::Remove { .. })
    }

    /// Returns the expected states of an address before and after this change; `None` if the change does not affect the
    /// address. `left` is the expected state of the change's vacated range afterwards.
    fn expectations_at(
        &self,
        address: u64,
        left: ExpectedRegistration,
    ) -> Option<(ExpectedRegistration, ExpectedRegistration)> {
        match self.message {
            UffdEvent::Remap { to, bytes, .. } if (to..to + bytes).contains(&address) => {
                Some((ExpectedRegistration::Unregistered, ExpectedRegistration::Registered))
            }
            UffdEvent::Remap { from, bytes, .. } if (from..from + bytes).contains(&address) => Some((
                if self.is_source_unknown {
                    ExpectedRegistration::RegisteredUnlessGrown
                } else {
                    ExpectedRegistration::Registered
                },
                left,
            )),
            UffdEvent::Unmap { start, end } if (start..end).contains(&address) => {
                let was_seen =
                    self.applied.removed.segments.iter().any(|segment| (segment.start..segment.end).contains(&address));
                Some((if was_seen { ExpectedRegistration::Registered } else { ExpectedRegistration::Unknown }, left))
            }
            _ => None,
        }
    }

    /// Applies these changes to a map again, in order, and updates their undo data.
    pub(in crate::pager) fn apply_all(changes: &mut [MapChange], map: &mut PageMap) {
        changes.iter_mut().for_each(|change| *change = Self::apply(change.message, map));
    }

    /// Reverts these changes, which must be the last changes that were applied to the map.
    pub(in crate::pager) fn revert_all(changes: &[MapChange], map: &mut PageMap) {
        changes.iter().rev().for_each(|change| map.revert_event(&change.message, &change.applied));
    }
}

/// The expected state of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedRegistration {
    Registered,
    Unregistered,
    /// Unregistered, unless the move left its source mapped (MREMAP_DONTUNMAP), and the unmap that was read is a later
    /// call of another thread.
    UnregisteredAfterMove,
    /// Registered, unless the moving process ended before its unmap message was read.
    RegisteredAfterMove,
    /// Unregistered, unless the preceding mapping has grown to the address since. The kernel does not report growth.
    UnregisteredUnlessGrown,
    /// Registered, unless the preceding mapping grew to the address after the fork. The kernel does not report growth.
    RegisteredUnlessGrown,
    Unknown,
}

impl ExpectedRegistration {
    /// Returns the cost of this expectation, given the actual state.
    fn mismatch_cost(self, is_registered: bool) -> u32 {
        match (self, is_registered) {
            (Self::Registered, false) | (Self::Unregistered, true) => CONTRADICTION_COST,
            (Self::UnregisteredAfterMove, true) | (Self::RegisteredAfterMove, false) => 1,
            (Self::UnregisteredUnlessGrown, true) | (Self::RegisteredUnlessGrown, false) => 2,
            _ => 0,
        }
    }
}

/// Queries to the kernel about a forked process, as it was at the fork. `None` means that the kernel no longer shows
/// the answer.
pub(in crate::pager) trait ForkMapCheck {
    /// The reason why a query cannot be answered now.
    type Error;

    /// Whether an address was registered.
    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, Self::Error>;

    /// Whether a mapping began at a registered address. If not, the preceding mapping includes the address, and may
    /// have grown since the fork.
    fn is_mapping_start(&mut self, _address: u64) -> Result<Option<bool>, Self::Error> {
        Ok(None)
    }

    /// Whether the page at an address was present. The query fills a missing page with zeroes.
    fn probe_page(&mut self, address: u64) -> Result<Option<bool>, Self::Error>;

    /// The address of an installed page of these segments, if there is one.
    fn first_installed(&self, segments: &[MapSegment]) -> Option<u64>;

    /// Whether the process still had the installed pages of these segments, which a discard removed from the page map.
    fn has_discarded_pages(&mut self, discarded: &[MapSegment]) -> Result<Option<bool>, Self::Error> {
        self.first_installed(discarded).map_or(Ok(None), |address| self.probe_page(address))
    }
}

// How a forked process's changes are found
//
//  kernel   holding the map lock:      … change ── fork ── change …
//           without the lock:          each thread queues its message, and waits until it was read
//  pager    reads:                     … change, change, fork …     or     … fork, change, change …
//
// A thread may queue its message late. So a change that the forked process has may be read after the fork event, and a
// change that it lacks before. While a message is still to be queued, ioctls of the userfaultfd fail with EAGAIN: the
// space is not *quiet*. When the parent is quiet, all of its changes were read. So a change is in question if there was
// no quiet time between the read of the change and the read of the fork event, in either order.
//
// Changes of the same memory are a *chain*, in the order in which they were read. The forked process has the first few
// changes of each chain. Their number decides which ranges are registered in the forked process: a move vacates one
// range and registers another, an unmap vacates one. The number that agrees best with the kernel's state is taken. If
// several do not contradict it, the number of changes that were read before the fork is taken, or the nearest.
//
// MREMAP_DONTUNMAP: a move with this flag leaves its source registered, and reports no unmap of it. Which moves have
// the flag is known when all messages were read. If the target was registered before, both ranges are registered before
// and after the move. So the kernel is also asked whether installed pages are still at the source, or were moved. A
// page is probed only where a missing page would not have to be fetched.
//
// Growth: the kernel does not report that a mapping grows. So an unmapped range may be registered again, because the
// preceding mapping has grown. Then installed pages decide. If there are none, an unmap that was read before the fork
// counts as made. The target of a move that was made after the fork may be registered, too, because the forked process
// has grown a mapping into it. In this case the mapping begins before the target.
//
// Discards (MADV_DONTNEED and the like) are reported before the pages are removed. So the forked process lacks a
// discard that was read after the fork. For a discard that was read before, the kernel is asked whether a page that was
// installed is still present. If no page was installed, the discard counts as made.

/// A fork for which it is not yet known which of the parent's map changes the forked process has.
#[derive(Debug)]
pub(in crate::pager) struct UnresolvedFork {
    /// The address space of the forking process.
    pub(in crate::pager) parent: AddressSpaceId,
    /// Changes read before the fork that the forked process may lack: the last changes of its assumed map.
    pub(in crate::pager) changes_before: Vec<MapChange>,
    /// Changes read after the fork that the forked process may have.
    messages_after: Vec<UffdEvent>,
    /// Whether probed pages were present, by address. A probe fills a missing page, so each page is probed only once.
    probe_results: ProbeResults,
}

impl UnresolvedFork {
    /// Creates the fork of a process whose last changes are `before`.
    pub(in crate::pager) fn new(parent: AddressSpaceId, before: Vec<MapChange>) -> Self {
        Self { parent, changes_before: before, messages_after: Vec::new(), probe_results: ProbeResults::default() }
    }

    /// Adds a change that was read after the fork. Ignores discards, which the forked process lacks.
    pub(in crate::pager) fn add_event(&mut self, message: UffdEvent) {
        let is_in_question = matches!(message, UffdEvent::Remap { .. } | UffdEvent::Unmap { .. });
        if is_in_question && self.messages_after.len() < LATE_CHANGES_MAX {
            self.messages_after.push(message);
        }
    }

    /// Whether any change is in question.
    pub(in crate::pager) fn has_changes(&self) -> bool {
        !self.changes_before.is_empty() || !self.messages_after.is_empty()
    }

    /// Returns for each change the expected state of the range that it vacates. All messages must have been read.
    fn vacated_expectations(&self, changes: &[MapChange]) -> Vec<ExpectedRegistration> {
        let was_read_after = |index: usize| index >= self.changes_before.len();
        let is_all_known = self.messages_after.len() < LATE_CHANGES_MAX;
        let left_by_move = if is_all_known {
            ExpectedRegistration::RegisteredAfterMove
        } else {
            ExpectedRegistration::UnregisteredAfterMove
        };
        // An unmap has no expectation: the preceding mapping may have grown into the range since, which is not
        // reported.
        let left_by =
            |change: &MapChange| change.source_range().map_or(ExpectedRegistration::Unknown, |_| left_by_move);
        let mut left: Vec<ExpectedRegistration> = changes.iter().map(left_by).collect();
        for (index, change) in changes.iter().enumerate() {
            let UffdEvent::Unmap { start, end } = change.message else { continue };
            let is_of_it = |earlier: &usize| {
                left[*earlier] == left_by_move && changes[*earlier].source_range() == Some(start..end)
            };
            if let Some(earlier) = (0..index).rev().find(is_of_it) {
                // If the fork event was read between the move and the unmap, the unmap may be a later call of the
                // parent. It may also be part of the next change, if that is a move to this range.
                let is_between = was_read_after(index) && !was_read_after(earlier);
                let moves_there = |next: &MapChange| next.target_range() == Some(start..end);
                let is_certain = !is_between && !changes.get(index + 1).is_some_and(moves_there);
                left[earlier] = if is_certain {
                    ExpectedRegistration::UnregisteredAfterMove
                } else {
                    ExpectedRegistration::Unknown
                };
                left[index] = ExpectedRegistration::UnregisteredUnlessGrown;
            }
        }
        left
    }

    /// Returns the map at the fork, or `None` if it is `map`, which has exactly the changes that were read before the fork.
    ///
    /// # Errors
    /// The errors of `check`.
    pub(in crate::pager) fn resolve<W: ForkMapCheck>(
        &self,
        map: &PageMap,
        check: W,
    ) -> Result<Option<PageMap>, W::Error> {
        let mut check = MemoizedCheck::new(check, &self.probe_results);
        let mut late = map.clone();
        let after = self.messages_after.iter().map(|message| MapChange::apply(*message, &mut late));
        let changes: Vec<MapChange> = self.changes_before.iter().cloned().chain(after).collect();
        let was_read_before = |index: usize| index < self.changes_before.len();
        let mut has: Vec<bool> = (0..changes.len()).map(was_read_before).collect();
        let mut base = map.clone();
        MapChange::revert_all(&self.changes_before, &mut base);
        let left = self.vacated_expectations(&changes);
        for chain in group_by_memory(&changes) {
            let read_before = chain.iter().filter(|index| was_read_before(**index)).count();
            let link = |index: &usize| ChainLink { change: &changes[*index], after_leaving: left[*index] };
            let links: Vec<ChainLink<'_>> = chain.iter().map(link).collect();
            let made = count_made_links(&links, read_before, &base, &mut check)?;
            chain.iter().enumerate().for_each(|(link, index)| has[*index] = link < made);
        }
        // A discard that was read after a change that the forked process lacks began after the fork, unless the kernel
        // shows otherwise.
        if let Some(first) = (0..changes.len()).find(|index| !has[*index] && !changes[*index].is_discard()) {
            for index in (first..changes.len()).filter(|index| changes[*index].is_discard()) {
                if check_discarded_pages(&changes, &has, index, &mut check)? != Some(false) {
                    revert_discard(&changes, &mut has, index);
                }
            }
        }
        check_discards(&changes, &mut has, &mut check)?;
        if (0..changes.len()).all(|index| has[index] == was_read_before(index)) {
            return Ok(None);
        }
        let mut found = base;
        changes
            .iter()
            .zip(has)
            .filter(|(_, has)| *has)
            .for_each(|(change, _)| drop(found.apply_event(&change.message)));
        Ok(Some(found))
    }
}

/// A change within a chain (changes of the same memory).
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainLink<'a> {
    pub(super) change: &'a MapChange,
    /// The expected state of the range that the change vacates.
    after_leaving: ExpectedRegistration,
}

impl ChainLink<'_> {
    fn expectations_at(&self, address: u64) -> Option<(ExpectedRegistration, ExpectedRegistration)> {
        self.change.expectations_at(address, self.after_leaving)
    }

    /// Whether this is a move, and `other` is the first report of the same system call: the unmap of the target's old
    /// contents. No fork happens between the two.
    fn is_preceded_by_own_unmap(&self, other: &ChainLink<'_>) -> bool {
        let UffdEvent::Unmap { start, end } = other.change.message else { return false };
        let is_of_earlier_move = other.change.applied.was_expected;
        !is_of_earlier_move && self.change.target_range() == Some(start..end)
    }
}

/// Asks the kernel about the discards. If the pages are still present, marks the discard as not made; if they are
/// missing, as made.
fn check_discards<W: ForkMapCheck>(changes: &[MapChange], has: &mut [bool], check: &mut W) -> Result<(), W::Error> {
    let discards = (0..changes.len()).filter(|index| has[*index] && changes[*index].is_discard());
    for index in discards.collect::<Vec<usize>>() {
        match check_discarded_pages(changes, has, index, check)? {
            Some(true) => revert_discard(changes, has, index),
            Some(false) => has[index] = true,
            None => {}
        }
    }
    Ok(())
}

/// Whether pages that were installed before the discard are still present; `None` if nothing shows it.
fn check_discarded_pages<W: ForkMapCheck>(
    changes: &[MapChange],
    has: &[bool],
    discard: usize,
    check: &mut W,
) -> Result<Option<bool>, W::Error> {
    let MapChange { message, applied, .. } = &changes[discard];
    // After a later move there is no page left to probe.
    let is_moved = |later: usize| has[later] && matches!(changes[later].message, UffdEvent::Remap { .. });
    if (discard + 1..changes.len()).any(|later| is_moved(later) && events_overlap(&changes[later].message, message)) {
        return Ok(None);
    }
    check.has_discarded_pages(&applied.removed.segments)
}

/// Marks a discard as not made, along with later discards and unmaps of the same memory.
fn revert_discard(changes: &[MapChange], has: &mut [bool], discard: usize) {
    let takes_away = |later: &usize| {
        let message = &changes[*later].message;
        !matches!(message, UffdEvent::Remap { .. }) && events_overlap(message, &changes[discard].message)
    };
    (discard..changes.len()).filter(takes_away).for_each(|index| has[index] = false);
}

/// Groups changes of the same memory into chains, by index and in order.
fn group_by_memory(changes: &[MapChange]) -> Vec<Vec<usize>> {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let has_to_do = |other: &usize| events_overlap(&changes[*other].message, &change.message);
        let mut chain: Vec<usize> = chains.extract_if(.., |chain| chain.iter().any(has_to_do)).flatten().collect();
        chain.push(index);
        chain.sort_unstable();
        chains.push(chain);
    }
    chains
}

/// Returns how many links of a chain were made before the fork. `read_before` links were read before the fork event. Of
/// two numbers with the same cost and the same distance to `read_before`, returns the greater: a fork event that
/// overtook one change is likelier than several changes that overtook the fork event.
fn count_made_links<W: ForkMapCheck>(
    links: &[ChainLink<'_>],
    read_before: usize,
    base: &PageMap,
    check: &mut W,
) -> Result<usize, W::Error> {
    let mut costs = vec![0; links.len() + 1];
    let addresses: BTreeSet<u64> = links.iter().flat_map(|link| link.change.probe_addresses()).collect();
    for address in addresses {
        if let Some(is_registered) = check.is_registered(address)?
            && !(is_registered && is_grown_mapping(links, address, check)?)
        {
            (0..).zip(&mut costs).for_each(|(made, cost)| {
                *cost += expected_registration(links, made, address).mismatch_cost(is_registered)
            });
        }
    }
    let is_within_call = |made: usize| {
        let (before, after) = (made.checked_sub(1).and_then(|last| links.get(last)), links.get(made));
        before.zip(after).is_some_and(|(before, after)| after.is_preceded_by_own_unmap(before))
    };
    (0..).zip(&mut costs).for_each(|(made, cost)| *cost += u32::from(is_within_call(made)));
    probe_pages(links, read_before, base, check, &mut costs)?;
    let least = costs.iter().min().copied().unwrap_or_default();
    let is_possible =
        |made: usize| costs.get(made).is_some_and(|cost| cost / CONTRADICTION_COST == least / CONTRADICTION_COST);
    // If the fork event was read between two reports of one call, the fork happened before or after this call.
    let is_next_to_call = || is_possible(read_before + 1) || read_before.checked_sub(1).is_some_and(is_possible);
    // Prefer the order of reading if it is possible: it is always right for a process with one thread.
    if is_possible(read_before) && !(is_within_call(read_before) && is_next_to_call()) {
        return Ok(read_before);
    }
    let best = (0..=links.len()).rev().min_by_key(|made| (costs[*made], made.abs_diff(read_before)));
    Ok(best.unwrap_or(read_before))
}

/// Whether a move's target that contains `address` is within a mapping that begins before the target. Then no such move
/// was made: the forked process has grown the mapping since, which is not reported.
fn is_grown_mapping<W: ForkMapCheck>(links: &[ChainLink<'_>], address: u64, check: &mut W) -> Result<bool, W::Error> {
    for start in links.iter().filter_map(|link| link.change.target_range()).filter(|to| to.contains(&address)) {
        if check.is_mapping_start(start.start)? == Some(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the expected state of an address if the first `made` links were made.
fn expected_registration(links: &[ChainLink<'_>], made: usize, address: u64) -> ExpectedRegistration {
    let after = links[..made].iter().rev().find_map(|link| Some(link.expectations_at(address)?.1));
    let before = || links[made..].iter().find_map(|link| Some(link.expectations_at(address)?.0));
    after.or_else(before).unwrap_or(ExpectedRegistration::Unknown)
}

/// Returns the address of the memory at `address` after these changes; `None` if it was unmapped or replaced.
pub(in crate::pager) fn current_address(address: u64, changes: &[MapChange]) -> Option<u64> {
    changes.iter().try_fold(address, |address, change| match change.message {
        UffdEvent::Remap { from, to, bytes } if (from..from + bytes).contains(&address) => Some(address - from + to),
        UffdEvent::Remap { to, bytes, .. } if (to..to + bytes).contains(&address) => None,
        UffdEvent::Unmap { start, end } if (start..end).contains(&address) => None,
        _ => Some(address),
    })
}

/// As `current_address`, for a page: `None` also if the page was discarded.
pub(in crate::pager) fn current_page_address(address: u64, changes: &[MapChange]) -> Option<u64> {
    changes.iter().enumerate().try_fold(address, |address, (index, change)| match change.message {
        UffdEvent::Remove { start, end } if (start..end).contains(&address) => None,
        _ => current_address(address, &changes[index..=index]),
    })
}

/// The address ranges that a change affects.
fn affected_ranges(message: &UffdEvent) -> Vec<Range<u64>> {
    match *message {
        UffdEvent::Remap { from, to, bytes } => vec![from..from + bytes, to..to + bytes],
        UffdEvent::Remove { start, end } | UffdEvent::Unmap { start, end } => std::iter::once(start..end).collect(),
        UffdEvent::Fault { .. } | UffdEvent::Fork { .. } => Vec::new(),
    }
}

fn events_overlap(one: &UffdEvent, other: &UffdEvent) -> bool {
    let others = affected_ranges(other);
    affected_ranges(one)
        .iter()
        .any(|range| others.iter().any(|other| range.start < other.end && other.start < range.end))
}

#[cfg(test)]
mod tests;
