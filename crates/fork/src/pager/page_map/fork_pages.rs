//! Pages that tell which changes of its parent's a forked process has (`fork_order`): those that had come, where they are in one order of changes
//! and are not in another.
//!
//! A page that is asked for and is not there is filled with zeroes. So it is asked for only where it would not have to be fetched, and once. Pure.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use farfork_sys::userfaultfd::Message;
use farfork_wire::PAGE_SIZE;

use super::fork_order::{CONTRADICTION, Change, Link, Witness};
use super::{PageMap, Segment};

/// Whether pages were there, by address: where one was not there is one since.
pub(super) type Answers = RefCell<BTreeMap<u64, bool>>;

/// A witness that is asked of no page twice.
pub(super) struct Recorded<'a, W> {
    witness: W,
    answers: &'a Answers,
}

impl<'a, W: Witness> Recorded<'a, W> {
    /// One whose answers are kept.
    pub(super) fn of(witness: W, answers: &'a Answers) -> Self {
        Self { witness, answers }
    }
}

impl<W: Witness> Witness for Recorded<'_, W> {
    type Error = W::Error;

    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, W::Error> {
        self.witness.is_registered(address)
    }

    fn is_present(&mut self, address: u64) -> Result<Option<bool>, W::Error> {
        if let Some(known) = self.answers.borrow().get(&address) {
            return Ok(Some(*known));
        }
        let answer = self.witness.is_present(address)?;
        answer.map(|is_present| self.answers.borrow_mut().insert(address, is_present));
        Ok(answer)
    }

    fn is_area_start(&mut self, address: u64) -> Result<Option<bool>, W::Error> {
        self.witness.is_area_start(address)
    }

    fn first_come(&self, segments: &[Segment]) -> Option<u64> {
        self.witness.first_come(segments)
    }
}

/// What is known of a page before the kernel is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageState {
    Present,
    Missing,
    Unknown,
    /// Missing, and not to be asked for, since it is filled with zeroes then.
    NotFetched,
}

/// Adds what speaks against each number of links: whether pages are there that had come, and that would be elsewhere, or gone. It is asked only where
/// several numbers are possible. An answer may rule out those for which another page must not be asked for: then that one is asked for, too.
pub(super) fn ask_for_pages<W: Witness>(
    (links, heard): (&[Link<'_>], usize),
    base: &PageMap,
    witness: &mut W,
    costs: &mut [u32],
) -> Result<(), W::Error> {
    let that_came = |link: &Link<'_>| {
        let Change { moved, followed, .. } = link.change;
        witness.first_come(moved).into_iter().chain(witness.first_come(&followed.lost)).collect::<Vec<u64>>()
    };
    let mut addresses: BTreeSet<u64> = links.iter().flat_map(that_came).collect();
    let states_of = |address: u64, witness: &W| -> Vec<PageState> {
        (0..=links.len()).map(|made| state_of(address, &links[..made], base, witness)).collect()
    };
    while let Some((address, states)) = addresses
        .iter()
        .map(|address| (*address, states_of(*address, witness)))
        .find(|(_, states)| is_worth_asking(states, heard, costs))
    {
        addresses.remove(&address);
        if let Some(is_present) = witness.is_present(address)? {
            let disproved = if is_present { PageState::Missing } else { PageState::Present };
            states
                .iter()
                .zip(&mut *costs)
                .filter(|(state, _)| **state == disproved)
                .for_each(|(_, cost)| *cost += CONTRADICTION);
        }
    }
    Ok(())
}

/// Whether a page tells possible numbers of links apart, and would have to be fetched for no likely one.
fn is_worth_asking(states: &[PageState], heard: usize, costs: &[u32]) -> bool {
    let least = costs.iter().min().copied().unwrap_or_default();
    let is_possible = |made: usize| costs[made] / CONTRADICTION == least / CONTRADICTION;
    let is_likely = |made: usize| costs[made] == least || made == heard && is_possible(heard);
    let tells = |wanted: PageState| (0..costs.len()).any(|made| is_possible(made) && states[made] == wanted);
    let is_to_be_fetched = (0..costs.len()).any(|made| is_likely(made) && states[made] == PageState::NotFetched);
    !is_to_be_fetched && tells(PageState::Present) && tells(PageState::Missing)
}

/// What is known of the page at an address when these links were made. No page is filled as long as any of them is in question.
fn state_of<W: Witness>(mut address: u64, made: &[Link<'_>], base: &PageMap, witness: &W) -> PageState {
    let mut is_discarded = false;
    for link in made.iter().rev() {
        match link.change.message {
            Message::Remap { from, to, bytes } if (to..to + bytes).contains(&address) => address = address - to + from,
            Message::Remap { from, bytes, .. } if (from..from + bytes).contains(&address) => return PageState::Missing,
            Message::Unmap { start, end } if (start..end).contains(&address) => return PageState::Missing,
            // Its pages go when it was told.
            Message::Remove { start, end } if (start..end).contains(&address) => is_discarded = true,
            _ => {}
        }
    }
    let shown: Vec<Segment> = base.segments_in(address, address + PAGE_SIZE).collect();
    match witness.first_come(&shown) {
        Some(_) if is_discarded => PageState::Unknown,
        Some(_) => PageState::Present,
        None if shown.is_empty() => PageState::Unknown,
        None => PageState::NotFetched,
    }
}
