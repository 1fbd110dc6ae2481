//! Decides which of its parent's last map changes a forked process has. The order of the events does not show it: a
//! fork event may be read before a change that the fork has, or after one that it lacks.
//! `UnresolvedFork::resolve` asks the kernel about the forked process, through `ForkMapCheck`, and takes the likeliest
//! map. Pure: `address_space::fork_map_check` queries the kernel, and `faults::fork_resolution` decides when.

use std::collections::BTreeSet;
use std::ops::Range;

use farfork_sys::userfaultfd::UffdEvent;

use super::fork_page_probes::{MemoizedCheck, ProbeResults, probe_pages};
use super::{AppliedChange, MapSegment, PageMap};
use crate::pager::journal::AddressSpaceId;

/// Most changes read after a fork that are in question. A thread is late by one scheduling turn of some milliseconds.
/// Meanwhile others make a change in some ten microseconds.
const LATE_CHANGES_MAX: usize = 512;

/// The cost of a contradiction: an address or a page is in a state that it cannot be in. It exceeds the sum of all smaller
/// costs.
pub(super) const CONTRADICTION_COST: u32 = 1 << 16;

/// A change of a memory map that was read.
#[derive(Debug, Clone)]
pub(in crate::pager) struct MapChange {
    pub(super) message: UffdEvent,
    /// The segments that the page map lost by the change, and the data to undo it.
    pub(super) applied: AppliedChange,
    /// An address at which the kernel shows whether the change was made: in the target of a move, or in the range that was
    /// left.
    probe_address: Option<u64>,
    /// The segments that it moved, at their addresses before the move.
    pub(super) moved_segments: Vec<MapSegment>,
    /// Whether the source of the move was not known to be mapped.
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

    /// The range that a move has left.
    fn source_range(&self) -> Option<Range<u64>> {
        match self.message {
            UffdEvent::Remap { from, bytes, .. } => Some(from..from + bytes),
            _ => None,
        }
    }

    /// The range that something was moved to.
    fn target_range(&self) -> Option<Range<u64>> {
        match self.message {
            UffdEvent::Remap { to, bytes, .. } => Some(to..to + bytes),
            _ => None,
        }
    }

    fn is_discard(&self) -> bool {
        matches!(self.message, UffdEvent::Remove { .. })
    }

    /// Which states of an address it implies, before and after the change, if any. `left` is the expectation for a range
    /// that it has left.
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

    /// Applies the messages of these changes to a map, in order.
    pub(in crate::pager) fn apply_all(changes: &mut [MapChange], map: &mut PageMap) {
        changes.iter_mut().for_each(|change| *change = Self::apply(change.message, map));
    }

    /// Reverts these changes, which must be the last that the map has applied.
    pub(in crate::pager) fn revert_all(changes: &[MapChange], map: &mut PageMap) {
        changes.iter().rev().for_each(|change| map.revert_event(&change.message, &change.applied));
    }
}

/// The expected state of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedRegistration {
    Registered,
    Unregistered,
    /// Unregistered, unless the move left its source mapped and empty (MREMAP_DONTUNMAP), and another thread has unmapped it
    /// since.
    UnregisteredAfterMove,
    /// Registered, unless the process that moved it has ended before all its messages were read.
    RegisteredAfterMove,
    /// Unregistered, unless the mapping before it has grown there since. The kernel does not report growth.
    UnregisteredUnlessGrown,
    /// Registered, unless the mapping before it grew there later. The kernel does not report growth.
    RegisteredUnlessGrown,
    Unknown,
}

impl ExpectedRegistration {
    /// The cost of this expectation, given the actual state.
    fn mismatch_cost(self, is_registered: bool) -> u32 {
        match (self, is_registered) {
            (Self::Registered, false) | (Self::Unregistered, true) => CONTRADICTION_COST,
            (Self::UnregisteredAfterMove, true) | (Self::RegisteredAfterMove, false) => 1,
            (Self::UnregisteredUnlessGrown, true) | (Self::RegisteredUnlessGrown, false) => 2,
            _ => 0,
        }
    }
}

/// Questions to the kernel about a forked process, as it was at the fork. `None` means that this cannot be known any more.
pub(in crate::pager) trait ForkMapCheck {
    /// Why the kernel does not answer.
    type Error;

    /// Whether an address was registered.
    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, Self::Error>;

    /// Whether a mapping began at a registered address. If not, the mapping before it reached there: it may have grown since
    /// the fork.
    fn is_mapping_start(&mut self, _address: u64) -> Result<Option<bool>, Self::Error> {
        Ok(None)
    }

    /// Whether the page at an address was present. A missing page is filled with zeroes.
    fn probe_page(&mut self, address: u64) -> Result<Option<bool>, Self::Error>;

    /// The address of an installed page of these segments, if there is one.
    fn first_installed(&self, segments: &[MapSegment]) -> Option<u64>;

    /// Whether the process had the installed pages of these segments, which were discarded later.
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
// A thread may queue its message late. So a change that the fork has may be read after the fork event, and one that it
// lacks before it. While a message is still to be queued, the kernel says so (EAGAIN: the space is not *quiet*). So a
// change is in question if the parent was not quiet between it and the fork, in either order. When the parent is quiet,
// all of its changes were read.
//
// Changes of the same memory are a *chain*, in the order in which they were read. The fork has the first few of each
// chain. Their number decides which ranges are registered in the forked process: a move leaves one range and adds
// another, an unmap leaves one. The number that agrees best with the kernel is taken. Of several that do not contradict
// the kernel, that is the number of changes read before the fork, or the nearest to it.
//
// MREMAP_DONTUNMAP: such a move leaves its source registered, and no unmap of it is reported. Which moves are of this kind
// is known when all messages were read. If the target of such a move was registered, both ranges are registered before and
// after it. So the kernel is also asked whether installed pages are still at the source, or were moved. It is asked only of
// pages that would not have to be fetched there.
//
// Growth: the kernel does not report that a mapping grows. So an unmapped range may be registered nevertheless, because
// the mapping before it has grown. Installed pages decide then. If there are none, an unmap that was read before the
// fork is taken as made. The target of a move that was made after the fork may be registered, too: the forked process
// has grown a mapping there since. A mapping that begins before the target shows it.
//
// Discards (MADV_DONTNEED and the like) are reported before the pages are removed. So the forked process lacks a
// discard that was read after the fork. Of one that was read before it, the kernel is asked whether a page that was
// there still is. If no page was there, nothing can show it, and the discard is taken as made.

/// A fork of which it is not yet determined which map changes the forked process has.
#[derive(Debug)]
pub(in crate::pager) struct UnresolvedFork {
    /// The address space of the process that forked it.
    pub(in crate::pager) parent: AddressSpaceId,
    /// Changes read before the fork that it may lack: the last changes of its map.
    pub(in crate::pager) changes_before: Vec<MapChange>,
    /// Changes read after the fork, some of which it may have.
    messages_after: Vec<UffdEvent>,
    /// Whether probed pages were present, by address. A probe fills a missing page, so only its first result counts.
    probe_results: ProbeResults,
}

impl UnresolvedFork {
    /// The fork of a process whose last changes are `before`.
    pub(in crate::pager) fn new(parent: AddressSpaceId, before: Vec<MapChange>) -> Self {
        Self { parent, changes_before: before, messages_after: Vec::new(), probe_results: ProbeResults::default() }
    }

    /// Adds a change that the parent reported after the fork.
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

    /// The expectation for the range that each change has left. All messages must have been read.
    fn vacated_expectations(&self, changes: &[MapChange]) -> Vec<ExpectedRegistration> {
        let was_read_after = |index: usize| index >= self.changes_before.len();
        let is_all_known = self.messages_after.len() < LATE_CHANGES_MAX;
        let left_by_move = if is_all_known {
            ExpectedRegistration::RegisteredAfterMove
        } else {
            ExpectedRegistration::UnregisteredAfterMove
        };
        // The mapping before an unmapped range may have grown there since, which is not reported.
        let left_by =
            |change: &MapChange| change.source_range().map_or(ExpectedRegistration::Unknown, |_| left_by_move);
        let mut left: Vec<ExpectedRegistration> = changes.iter().map(left_by).collect();
        for (index, change) in changes.iter().enumerate() {
            let UffdEvent::Unmap { start, end } = change.message else { continue };
            let is_of_it = |earlier: &usize| {
                left[*earlier] == left_by_move && changes[*earlier].source_range() == Some(start..end)
            };
            if let Some(earlier) = (0..index).rev().find(is_of_it) {
                // If the fork was read between the two, the parent may have unmapped the range later by another call. The
                // next change may also be a move to the range, which unmaps it, too.
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
        // A discard that was read after a change that the fork lacks was begun after the fork, unless the kernel shows
        // otherwise.
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

/// A change of a chain (changes of the same memory).
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainLink<'a> {
    pub(super) change: &'a MapChange,
    /// The expectation for a range that it has left.
    after_leaving: ExpectedRegistration,
}

impl ChainLink<'_> {
    fn expectations_at(&self, address: u64) -> Option<(ExpectedRegistration, ExpectedRegistration)> {
        self.change.expectations_at(address, self.after_leaving)
    }

    /// Whether this is a move, and `other` is the first report of the same system call: what was at the target is unmapped.
    /// No fork happens between the two.
    fn is_preceded_by_own_unmap(&self, other: &ChainLink<'_>) -> bool {
        let UffdEvent::Unmap { start, end } = other.change.message else { return false };
        let is_of_earlier_move = other.change.applied.was_expected;
        !is_of_earlier_move && self.change.target_range() == Some(start..end)
    }
}

/// Asks the kernel about the discards. One whose pages are still present is marked as not made, and one whose pages are
/// missing as made.
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

/// Marks a discard as not made, together with later discards and unmaps of the same memory.
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

/// How many links of a chain were made. `read_before` were read before the fork. Of two numbers with the same cost and
/// distance, returns the greater: a fork event that overtook one change is likelier than several changes that overtook the
/// fork.
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
    // A fork that was read within a call happened before or after that call.
    let is_next_to_call = || is_possible(read_before + 1) || read_before.checked_sub(1).is_some_and(is_possible);
    // If the order of reading is possible, it is taken: in a process with one thread it is always right.
    if is_possible(read_before) && !(is_within_call(read_before) && is_next_to_call()) {
        return Ok(read_before);
    }
    let best = (0..=links.len()).rev().min_by_key(|made| (costs[*made], made.abs_diff(read_before)));
    Ok(best.unwrap_or(read_before))
}

/// Whether the target of a move at this address is in a mapping that begins before it. Then none of these moves was made:
/// the forked process has grown the mapping since, which is not reported.
fn is_grown_mapping<W: ForkMapCheck>(links: &[ChainLink<'_>], address: u64, check: &mut W) -> Result<bool, W::Error> {
    for start in links.iter().filter_map(|link| link.change.target_range()).filter(|to| to.contains(&address)) {
        if check.is_mapping_start(start.start)? == Some(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The expected state of an address when `made` links were made.
fn expected_registration(links: &[ChainLink<'_>], made: usize, address: u64) -> ExpectedRegistration {
    let after = links[..made].iter().rev().find_map(|link| Some(link.expectations_at(address)?.1));
    let before = || links[made..].iter().find_map(|link| Some(link.expectations_at(address)?.0));
    after.or_else(before).unwrap_or(ExpectedRegistration::Unknown)
}

/// The address of memory after these changes; `None` if other memory may be there.
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
