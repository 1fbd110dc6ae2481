//! Page probes for `fork_order`: checks whether an installed page is present at an address where some numbers of
//! changes leave it and others do not. A probe fills a missing page with zeroes. So a page is probed only where it
//! would not have to be fetched, and only once. Pure: the `ForkMapCheck` queries the kernel.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use farfork_sys::userfaultfd::UffdEvent;
use farfork_wire::PAGE_SIZE;

use super::fork_order::{CONTRADICTION_COST, ChainLink, ForkMapCheck, MapChange};
use super::{MapSegment, PageMap};

/// Whether pages were present, by address. A probe fills a missing page.
pub(super) type ProbeResults = RefCell<BTreeMap<u64, bool>>;

/// A check that probes no page twice.
pub(super) struct MemoizedCheck<'a, W> {
    check: W,
    results: &'a ProbeResults,
}

impl<'a, W: ForkMapCheck> MemoizedCheck<'a, W> {
    /// Wraps a check. Stores the results of its probes in `answers`.
    pub(super) fn new(check: W, answers: &'a ProbeResults) -> Self {
        Self { check, results: answers }
    }
}

impl<W: ForkMapCheck> ForkMapCheck for MemoizedCheck<'_, W> {
    type Error = W::Error;

    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, W::Error> {
        self.check.is_registered(address)
    }

    fn probe_page(&mut self, address: u64) -> Result<Option<bool>, W::Error> {
        if let Some(known) = self.results.borrow().get(&address) {
            return Ok(Some(*known));
        }
        let answer = self.check.probe_page(address)?;
        answer.map(|is_present| self.results.borrow_mut().insert(address, is_present));
        Ok(answer)
    }

    fn is_mapping_start(&mut self, address: u64) -> Result<Option<bool>, W::Error> {
        self.check.is_mapping_start(address)
    }

    fn first_installed(&self, segments: &[MapSegment]) -> Option<u64> {
        self.check.first_installed(segments)
    }
}

/// The presence of a page that the changes imply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PresenceExpectation {
    Present,
    Missing,
    Unknown,
    /// Missing, and must be fetched when it is touched. Not to be probed: the probe would fill it with zeroes.
    MissingUnfetched,
}

/// Probes installed pages, and adds a contradiction to the costs of each number of made links that a result
/// contradicts. A page is probed only if it distinguishes possible numbers, and need not be fetched under a likely one.
/// A result may rule out numbers, so that another page can be probed.
pub(super) fn probe_pages<W: ForkMapCheck>(
    links: &[ChainLink<'_>],
    read_before: usize,
    base: &PageMap,
    check: &mut W,
    costs: &mut [u32],
) -> Result<(), W::Error> {
    let installed_addresses = |link: &ChainLink<'_>| {
        let MapChange { moved_segments, applied, .. } = link.change;
        check
            .first_installed(moved_segments)
            .into_iter()
            .chain(check.first_installed(&applied.removed.segments))
            .collect::<Vec<u64>>()
    };
    let mut addresses: BTreeSet<u64> = links.iter().flat_map(installed_addresses).collect();
    let states_of = |address: u64, check: &W| -> Vec<PresenceExpectation> {
        (0..=links.len()).map(|made| expected_presence(address, &links[..made], base, check)).collect()
    };
    while let Some((address, states)) = addresses
        .iter()
        .map(|address| (*address, states_of(*address, check)))
        .find(|(_, states)| is_useful_probe(states, read_before, costs))
    {
        addresses.remove(&address);
        if let Some(is_present) = check.probe_page(address)? {
            let disproved = if is_present { PresenceExpectation::Missing } else { PresenceExpectation::Present };
            states
                .iter()
                .zip(&mut *costs)
                .filter(|(state, _)| **state == disproved)
                .for_each(|(_, cost)| *cost += CONTRADICTION_COST);
        }
    }
    Ok(())
}

/// Whether a page distinguishes possible numbers of made links, and need not be fetched under any likely number.
fn is_useful_probe(states: &[PresenceExpectation], read_before: usize, costs: &[u32]) -> bool {
    let least = costs.iter().min().copied().unwrap_or_default();
    let is_possible = |made: usize| costs[made] / CONTRADICTION_COST == least / CONTRADICTION_COST;
    let is_likely = |made: usize| costs[made] == least || made == read_before && is_possible(read_before);
    let tells = |wanted: PresenceExpectation| (0..costs.len()).any(|made| is_possible(made) && states[made] == wanted);
    let is_to_be_fetched =
        (0..costs.len()).any(|made| is_likely(made) && states[made] == PresenceExpectation::MissingUnfetched);
    !is_to_be_fetched && tells(PresenceExpectation::Present) && tells(PresenceExpectation::Missing)
}

/// Returns the expected presence of the page at an address after the links `made`. The pager fills no page while links
/// are in question.
fn expected_presence<W: ForkMapCheck>(
    mut address: u64,
    made: &[ChainLink<'_>],
    base: &PageMap,
    check: &W,
) -> PresenceExpectation {
    let mut is_discarded = false;
    for link in made.iter().rev() {
        match link.change.message {
            UffdEvent::Remap { from, to, bytes } if (to..to + bytes).contains(&address) => {
                address = address - to + from
            }
            UffdEvent::Remap { from, bytes, .. } if (from..from + bytes).contains(&address) => {
                return PresenceExpectation::Missing;
            }
            UffdEvent::Unmap { start, end } if (start..end).contains(&address) => return PresenceExpectation::Missing,
            // The kernel reports a discard before it removes the pages.
            UffdEvent::Remove { start, end } if (start..end).contains(&address) => is_discarded = true,
            _ => {}
        }
    }
    let shown: Vec<MapSegment> = base.segments_in(address, address + PAGE_SIZE).collect();
    match check.first_installed(&shown) {
        Some(_) if is_discarded => PresenceExpectation::Unknown,
        Some(_) => PresenceExpectation::Present,
        None if shown.is_empty() => PresenceExpectation::Unknown,
        None => PresenceExpectation::MissingUnfetched,
    }
}
