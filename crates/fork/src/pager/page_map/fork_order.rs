//! Which changes of its parent's memory map a forked process has: the kernel is asked, for its messages tell no order.
//!
//! ```text
//!  kernel   under the lock of the map:   … change ── fork ── change …
//!           when the lock is free again: each thread queues what it did, and waits until that was read
//!  pager    hears:                       … change, change, fork …     or     … fork, change, change …
//! ```
//!
//! A thread that is late to queue its message is overtaken: a change that the fork has may be heard behind it, and one that it
//! has not before it. As long as a message is to come the kernel says so (EAGAIN: the space is not *quiet*). So a change is in question
//! where the parent was not quiet between it and the fork, in either order; and when the parent is quiet, all of them were heard.
//!
//! Changes of the same memory are a *chain*, in the order in which they were heard: the fork has the first few of each. How many says which places
//! are registered in the forked process: a move leaves one and makes another, an unmapping leaves one. What agrees with the kernel best is
//! taken, and of several that which is nearest to what was heard before the fork.
//!
//! Pages that are discarded (MADV_DONTNEED and the like) are told of before they go. So a discard that was heard behind the fork the forked
//! process has not. Of one that was heard before it, it is asked whether it has one of the pages that were there. Where none was there nobody can
//! tell, and the discard is taken for made.
//!
//! Pure: who asks the kernel is `space`, and when, `child`.

use std::collections::BTreeSet;
use std::ops::Range;

use farfork_sys::userfaultfd::Message;

use super::{Followed, PageMap, Segment};
use crate::pager::journal::SpaceNumber;

/// Most changes heard behind a fork that are in question: a thread is late by a turn of some milliseconds, in which others make a
/// change in some ten microseconds.
const LATE_CHANGES_MAX: usize = 512;

/// A change of a memory map that was heard.
#[derive(Debug, Clone)]
pub(in crate::pager) struct Change {
    message: Message,
    /// What the page map lost by it, and what undoes that.
    followed: Followed,
    /// An address by which it can be told whether it was made: where something was moved to, or was before.
    place: Option<u64>,
}

impl Change {
    /// Has a map follow a message.
    pub(in crate::pager) fn made(message: Message, map: &mut PageMap) -> Self {
        let followed = map.follow(&message);
        let left = followed.lost.first().map(|segment| segment.start);
        let place = match message {
            Message::Remap { to, bytes, .. } => map.first_in(to, to + bytes).or(left).or(Some(to)),
            _ => left,
        };
        Self { message, followed, place }
    }

    /// The addresses of which it says whether they are registered.
    fn places(&self) -> impl Iterator<Item = u64> {
        let origin = match self.message {
            Message::Remap { from, to, .. } => self.place.map(|place| place - to + from),
            _ => None,
        };
        self.place.filter(|_| !self.is_discard()).into_iter().chain(origin)
    }

    fn is_discard(&self) -> bool {
        matches!(self.message, Message::Remove { .. })
    }

    /// What it says of an address before it, and behind it, if anything.
    fn says(&self, address: u64) -> Option<(Expected, Expected)> {
        match self.message {
            Message::Remap { to, bytes, .. } if (to..to + bytes).contains(&address) => {
                Some((Expected::Unregistered, Expected::Registered))
            }
            Message::Remap { from, bytes, .. } if (from..from + bytes).contains(&address) => {
                Some((Expected::Registered, Expected::Left))
            }
            Message::Unmap { start, end } if (start..end).contains(&address) => {
                let was_seen = self.followed.lost.iter().any(|segment| (segment.start..segment.end).contains(&address));
                Some((if was_seen { Expected::Registered } else { Expected::Anything }, Expected::Unregistered))
            }
            _ => None,
        }
    }

    /// Has a map follow the messages of these changes, in order.
    pub(in crate::pager) fn make_all(changes: &mut [Change], map: &mut PageMap) {
        changes.iter_mut().for_each(|change| *change = Self::made(change.message, map));
    }

    /// Has a map be as it was before these changes, the last it followed.
    pub(in crate::pager) fn unmake_all(changes: &[Change], map: &mut PageMap) {
        changes.iter().rev().for_each(|change| map.unfollow(&change.message, &change.followed));
    }
}

/// What is expected of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Registered,
    Unregistered,
    /// Unregistered, unless the move left it as it was, but empty (MREMAP_DONTUNMAP).
    Left,
    Anything,
}

impl Expected {
    /// How badly it agrees with what is.
    fn cost(self, is_registered: bool) -> u32 {
        match (self, is_registered) {
            (Self::Registered, false) | (Self::Unregistered, true) => 2,
            (Self::Left, true) => 1,
            _ => 0,
        }
    }
}

/// What the kernel is asked of a forked process, as it was at the fork; `None` where that cannot be known any more.
pub(in crate::pager) trait Witness {
    /// Why it does not answer.
    type Error;

    /// Whether an address was registered.
    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, Self::Error>;

    /// Whether it had the pages that had come of these, before they were discarded.
    fn has_kept(&mut self, discarded: &[Segment]) -> Result<Option<bool>, Self::Error>;
}

/// What is to be found out of a forked process.
#[derive(Debug)]
pub(in crate::pager) struct Doubt {
    /// The space of the process that forked it.
    pub(in crate::pager) parent: SpaceNumber,
    /// Changes that were heard before the fork, and of which it may have none: the last of its map.
    pub(in crate::pager) before: Vec<Change>,
    /// Changes that were heard since, of which it may have some.
    after: Vec<Message>,
}

impl Doubt {
    /// Of a process that was forked when its parent's last changes were these.
    pub(in crate::pager) fn new(parent: SpaceNumber, before: Vec<Change>) -> Self {
        Self { parent, before, after: Vec::new() }
    }

    /// Its parent told of a change.
    pub(in crate::pager) fn heard(&mut self, message: Message) {
        let is_in_question = matches!(message, Message::Remap { .. } | Message::Unmap { .. });
        if is_in_question && self.after.len() < LATE_CHANGES_MAX {
            self.after.push(message);
        }
    }

    /// Whether any change is in question.
    pub(in crate::pager) fn has_changes(&self) -> bool {
        !self.before.is_empty() || !self.after.is_empty()
    }

    /// The map at the fork, where it is not `map`, which has all that was heard before the fork and nothing else.
    ///
    /// # Errors
    /// Those of the witness.
    pub(in crate::pager) fn resolve<W: Witness>(
        &self,
        map: &PageMap,
        mut witness: W,
    ) -> Result<Option<PageMap>, W::Error> {
        let mut late = map.clone();
        let after = self.after.iter().map(|message| Change::made(*message, &mut late));
        let changes: Vec<Change> = self.before.iter().cloned().chain(after).collect();
        let was_heard = |index: usize| index < self.before.len();
        let mut has: Vec<bool> = (0..changes.len()).map(was_heard).collect();
        for chain in chains(&changes) {
            let heard = chain.iter().filter(|index| was_heard(**index)).count();
            let links: Vec<&Change> = chain.iter().map(|index| &changes[*index]).collect();
            let made = links_made(&links, heard, &mut witness)?;
            chain.iter().enumerate().for_each(|(link, index)| has[*index] = link < made);
        }
        // A discard that was heard behind what the fork has not was begun behind the fork.
        if let Some(first) = (0..changes.len()).find(|index| !has[*index] && !changes[*index].is_discard()) {
            let discards = (first..changes.len()).filter(|index| changes[*index].is_discard());
            discards.for_each(|index| take_back(&changes, &mut has, index));
        }
        ask_for_discards(&changes, &mut has, &mut witness)?;
        if (0..changes.len()).all(|index| has[index] == was_heard(index)) {
            return Ok(None);
        }
        let mut found = map.clone();
        Change::unmake_all(&self.before, &mut found);
        changes.iter().zip(has).filter(|(_, has)| *has).for_each(|(change, _)| drop(found.follow(&change.message)));
        Ok(Some(found))
    }
}

/// Takes discards back of which pages are there that had come.
fn ask_for_discards<W: Witness>(changes: &[Change], has: &mut [bool], witness: &mut W) -> Result<(), W::Error> {
    let discards = (0..changes.len()).filter(|index| has[*index] && changes[*index].is_discard());
    for index in discards.collect::<Vec<usize>>() {
        let Change { message, followed, .. } = &changes[index];
        // Where something was moved since, there is nothing left to ask for.
        let is_moved = |later: usize| has[later] && matches!(changes[later].message, Message::Remap { .. });
        if (index + 1..changes.len()).any(|later| is_moved(later) && overlap(&changes[later].message, message)) {
            continue;
        }
        match witness.has_kept(&followed.lost)? {
            Some(true) => take_back(changes, has, index),
            Some(false) => has[index] = true,
            None => {}
        }
    }
    Ok(())
}

/// Notes that a discard was not made, nor what takes away later what it left.
fn take_back(changes: &[Change], has: &mut [bool], discard: usize) {
    let takes_away = |later: &usize| {
        let message = &changes[*later].message;
        !matches!(message, Message::Remap { .. }) && overlap(message, &changes[discard].message)
    };
    (discard..changes.len()).filter(takes_away).for_each(|index| has[index] = false);
}

/// The changes, by number, that have to do with the same memory, in order.
fn chains(changes: &[Change]) -> Vec<Vec<usize>> {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let has_to_do = |other: &usize| overlap(&changes[*other].message, &change.message);
        let mut chain: Vec<usize> = chains.extract_if(.., |chain| chain.iter().any(has_to_do)).flatten().collect();
        chain.push(index);
        chain.sort_unstable();
        chains.push(chain);
    }
    chains
}

/// How many links of a chain were made, of which so many were heard before the fork. Of two that are as likely it is the greater: that a fork
/// overtook the last change takes less than that several overtook the fork.
fn links_made<W: Witness>(links: &[&Change], heard: usize, witness: &mut W) -> Result<usize, W::Error> {
    let mut costs = vec![0; links.len() + 1];
    let places: BTreeSet<u64> = links.iter().flat_map(|link| link.places()).collect();
    for place in places {
        if let Some(is_registered) = witness.is_registered(place)? {
            (0..).zip(&mut costs).for_each(|(made, cost)| *cost += expected(links, made, place).cost(is_registered));
        }
    }
    let best = (0..=links.len()).rev().min_by_key(|made| (costs[*made], made.abs_diff(heard)));
    Ok(best.unwrap_or(heard))
}

/// What is expected of an address when so many links were made.
fn expected(links: &[&Change], made: usize, address: u64) -> Expected {
    let behind = links[..made].iter().rev().find_map(|link| Some(link.says(address)?.1));
    let before = || links[made..].iter().find_map(|link| Some(link.says(address)?.0));
    behind.or_else(before).unwrap_or(Expected::Anything)
}

/// Where an address is after these changes; `None` where something else may be there.
pub(in crate::pager) fn now_at(address: u64, changes: &[Change]) -> Option<u64> {
    changes.iter().try_fold(address, |address, change| match change.message {
        Message::Remap { from, to, bytes } if (from..from + bytes).contains(&address) => Some(address - from + to),
        Message::Remap { to, bytes, .. } if (to..to + bytes).contains(&address) => None,
        Message::Unmap { start, end } if (start..end).contains(&address) => None,
        _ => Some(address),
    })
}

/// The same, of a page that is gone where it was discarded.
pub(in crate::pager) fn now_kept_at(address: u64, changes: &[Change]) -> Option<u64> {
    changes.iter().enumerate().try_fold(address, |address, (index, change)| match change.message {
        Message::Remove { start, end } if (start..end).contains(&address) => None,
        _ => now_at(address, &changes[index..=index]),
    })
}

/// The addresses that a change is about.
fn ranges(message: &Message) -> Vec<Range<u64>> {
    match *message {
        Message::Remap { from, to, bytes } => vec![from..from + bytes, to..to + bytes],
        Message::Remove { start, end } | Message::Unmap { start, end } => std::iter::once(start..end).collect(),
        Message::Fault { .. } | Message::Fork { .. } => Vec::new(),
    }
}

fn overlap(one: &Message, other: &Message) -> bool {
    let others = ranges(other);
    ranges(one).iter().any(|range| others.iter().any(|other| range.start < other.end && other.start < range.end))
}

#[cfg(test)]
#[path = "fork_order_tests.rs"]
mod tests;
