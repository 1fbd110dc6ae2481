//! Settling: a child takes the rest of its pages in the background, and needs its seed no more.
//!
//! ```text
//!  idle ─▶ underway ─┬─▶ settled: whatever is missing now is zero; the owner is never asked again
//!            ▲       └─▶ failed: its owner did not give a page; the child goes on as before
//!            └────────────────┘ asked again
//! ```
//!
//! Pages come over the bulk lane, so that whoever waits for one is served first, and one read of a settling child goes
//! out before what is wanted soon, so that no stream holds it up for ever. A failure is the settling's alone: only who
//! touches a page that cannot be had loses its memory.
//!
//! Two empty files in the child's directory survive a pager that is killed: that it settles, and that it has settled.
//! The second is written before the page maps are forgotten.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use farfork_sys::process;
use farfork_wire::ChildId;

use super::Child;
use crate::pager::control::protocol::{Reply, SettleProgress, SettleState};
use crate::pager::journal::SpaceNumber;
use crate::pager::owners::{BULK_READS_MAX, BULK_SLOTS, Lane, Read};
use crate::pager::room;
use crate::pager::server::Server;

/// Name of the file in the child's directory that says that it is to settle.
const SETTLING_FILE: &str = "settling";

/// Name of the file in the child's directory that says that it has settled.
pub const SETTLED_FILE: &str = "settled";

/// Looks at a memory map that changes meanwhile, until two are alike. What is left registered then is still served.
const MAP_LOOKS_MAX: usize = 4;

/// How a child's settling stands.
#[derive(Debug, Default)]
pub(in crate::pager) enum Settling {
    /// Nobody asked for it.
    #[default]
    Idle,
    /// Pages are fetched.
    Underway {
        /// Up to these slots, all were asked for in each space.
        cursors: BTreeMap<SpaceNumber, u64>,
        /// Since then; `None` where a predecessor began it.
        since: Option<Instant>,
    },
    /// A page could not be had.
    Failed {
        /// Why.
        reason: String,
        /// When that was found.
        at: Instant,
    },
    /// It needs its seed no more.
    Settled,
}

/// What came of one look at a settling child.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Pages were asked for.
    Asked,
    /// It has to wait.
    Waits,
    /// It does not settle any more.
    Over,
}

impl Settling {
    /// As a predecessor left it.
    pub(in crate::pager) fn recover(dir: &Path) -> Self {
        if dir.join(SETTLED_FILE).exists() {
            Self::Settled
        } else if dir.join(SETTLING_FILE).exists() {
            Self::Underway { cursors: BTreeMap::new(), since: None }
        } else {
            Self::Idle
        }
    }

    /// Whether the child needs its seed no more.
    pub(in crate::pager) fn is_settled(&self) -> bool {
        matches!(self, Self::Settled)
    }

    /// Whether pages are fetched.
    pub(in crate::pager) fn is_underway(&self) -> bool {
        matches!(self, Self::Underway { .. })
    }

    /// What it means that a read ahead failed that was asked for at this time.
    fn failed_read(&self, asked_at: Instant) -> FailedRead {
        match self {
            Self::Underway { since, .. } => {
                FailedRead { is_a_settlings: true, ends_it: since.is_none_or(|since| since <= asked_at) }
            }
            Self::Failed { at, .. } => FailedRead { is_a_settlings: asked_at <= *at, ends_it: false },
            Self::Idle | Self::Settled => FailedRead { is_a_settlings: false, ends_it: false },
        }
    }
}

/// A read ahead that failed. Several were on their way: those behind the first are no loss either, nor do they end a settling that was
/// begun since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FailedRead {
    /// It counts as a settling's, so that nothing is lost by it.
    is_a_settlings: bool,
    /// It is the end of the settling that is underway.
    ends_it: bool,
}

fn note(dir: &Path, file: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(file)).map(drop)
}

impl Child {
    /// Has the rest of its pages fetched from now on.
    fn begin_settling(&mut self, now: Instant) -> io::Result<()> {
        if matches!(self.settling, Settling::Idle | Settling::Failed { .. }) {
            note(&self.dir, SETTLING_FILE)?;
            self.settling = Settling::Underway { cursors: BTreeMap::new(), since: Some(now) };
        }
        Ok(())
    }

    /// Gives up; it goes on as before.
    fn fail_settling(&mut self, reason: String, now: Instant) {
        tracing::warn!("child {} does not settle: {reason}", self.id);
        // At worst the next pager tries once more.
        let _ = fs::remove_file(self.dir.join(SETTLING_FILE));
        self.settling = Settling::Failed { reason, at: now };
    }

    /// All pages are there: none will be asked for again.
    fn conclude_settling(&mut self, now: Instant) {
        if let Err(error) = note(&self.dir, SETTLED_FILE) {
            return self.fail_settling(format!("that it has settled cannot be written down: {error}"), now);
        }
        let _ = fs::remove_file(self.dir.join(SETTLING_FILE));
        self.settling = Settling::Settled;
        self.spaces.values_mut().for_each(crate::pager::space::Space::settle);
        tracing::info!("child {} has settled", self.id);
    }

    /// The next slots to ask one source for, at most [`BULK_SLOTS`]; `None` when all are here, or on their way.
    fn next_unsettled(&mut self) -> Option<(SpaceNumber, usize, Vec<Range<u64>>)> {
        let Settling::Underway { cursors, .. } = &mut self.settling else { return None };
        let slots = self.populated.slots();
        for (number, space) in self.spaces.iter_mut() {
            if !space.knows() {
                continue;
            }
            let cursor = cursors.entry(*number).or_default();
            // Behind the end, once more from the start: what was asked for may not have come.
            for from in [*cursor, 0] {
                *cursor = from;
                while *cursor < slots {
                    let (wanted, rest) = space.wanted(*cursor..slots, BULK_SLOTS);
                    *cursor = rest.start;
                    let wanted = space.placed(wanted, &self.populated);
                    if let Some(first) = wanted.first() {
                        let (source, wanted, others) = self.populated.of_first_source(first.start, wanted);
                        *cursor = others.unwrap_or(*cursor);
                        return Some((*number, source, wanted));
                    }
                }
            }
        }
        None
    }

    fn has_all(&self) -> bool {
        let slots = self.populated.slots();
        self.socket.is_none() && self.spaces.values().all(|space| space.is_known() && space.missing_slots(slots) == 0)
    }

    /// How far it is.
    fn settle_progress(&self) -> SettleProgress {
        let slots = self.populated.slots();
        let state = match &self.settling {
            Settling::Idle => SettleState::Idle,
            Settling::Underway { .. } => SettleState::Underway,
            Settling::Failed { reason, .. } => SettleState::Failed(reason.clone()),
            Settling::Settled => SettleState::Settled,
        };
        let spaces = (self.spaces.len() as u64).max(1);
        let missing = match state {
            SettleState::Settled => 0,
            _ if self.spaces.is_empty() => slots,
            _ => self.spaces.values().map(|space| space.missing_slots(slots)).sum(),
        };
        SettleProgress { total_pages: slots * spaces, missing_pages: missing, state }
    }

    /// Has the kernel serve what is missing by itself, which is zero, as it does for any process. `pid` is the child's
    /// own process. Only a help: what stays registered is served as before.
    fn leave_to_kernel(&self, pid: i32) {
        let Some(space) = self.spaces.get(&0) else { return };
        let mut before = Vec::new();
        for _ in 0..MAP_LOOKS_MAX {
            let Ok(entries) = process::maps(pid) else { return };
            let ranges: Vec<(u64, u64)> = entries.iter().map(|entry| (entry.start, entry.bytes())).collect();
            if ranges == before {
                return;
            }
            for (start, bytes) in &ranges {
                // Refused for areas that cannot be registered: then they are not.
                let _ = space.uffd().unregister(*start, *bytes);
            }
            before = ranges;
        }
    }
}

impl Server<'_> {
    /// Begins to settle a child, or tells how far it is. `pid`: the child's own process.
    pub(in crate::pager) fn settle(&mut self, id: &ChildId, begin: bool, pid: i32) -> Reply {
        let Some(key) = self.key_of(id) else {
            return Reply::Refused(format!("child {id} is not known to the pager"));
        };
        let Some(served) = self.children.get_mut(&key) else { return Reply::Done };
        let child = &mut served.child;
        if begin {
            if let Err(error) = child.begin_settling(self.now) {
                let remedy = room::remedy(&error);
                return Reply::Refused(format!("child {id}: that it settles cannot be written down: {error}{remedy}"));
            }
            self.note_settling(key);
        }
        self.settle_some(BULK_READS_MAX);
        let Some(served) = self.children.get(&key) else {
            return Reply::Refused(format!("child {id} has ended"));
        };
        // Who hears that it has settled need not ask again, so it is left to the kernel first.
        if served.child.settling.is_settled() {
            served.child.leave_to_kernel(pid);
        }
        Reply::Settling(served.child.settle_progress())
    }

    /// Gives a child that settles its turns.
    pub(in crate::pager) fn note_settling(&mut self, key: u64) {
        let is_underway = self.children.get(&key).is_some_and(|served| served.child.settling.is_underway());
        if is_underway && !self.settling.contains(&key) {
            self.settling.push_back(key);
        }
    }

    /// Asks for pages of children that settle, in turn, at most so many reads.
    pub(in crate::pager) fn settle_some(&mut self, reads_max: usize) {
        for _ in 0..reads_max {
            let turns = self.settling.len();
            let has_asked = (0..turns).any(|_| self.settle_next() == Step::Asked);
            if !has_asked {
                return;
            }
        }
    }

    fn settle_next(&mut self) -> Step {
        let Some(key) = self.settling.pop_front() else { return Step::Waits };
        let step = self.settle_step(key);
        if step != Step::Over {
            self.settling.push_back(key);
        }
        step
    }

    fn settle_step(&mut self, key: u64) -> Step {
        let Some(served) = self.children.get_mut(&key) else { return Step::Over };
        let (owners, child) = (&served.owners, &mut served.child);
        if !child.settling.is_underway() {
            return Step::Over;
        }
        if let Some(reason) = child.lost.clone() {
            child.fail_settling(reason, self.now);
            return Step::Over;
        }
        if child.is_over() {
            child.fail_settling("its processes have ended".to_owned(), self.now);
            return Step::Over;
        }
        if !owners.iter().all(|owner| self.owners.has_room(*owner)) {
            return Step::Waits;
        }
        match child.next_unsettled() {
            Some((space, source, slots)) => {
                let (owner, lane) = (owners[source], Lane::Bulk);
                let slots = self.take_cached((key, space, source), slots);
                if slots.is_empty() {
                    return Step::Asked;
                }
                let read = Read { child: key, space, slots, source, owner, lane, asked_at: self.now };
                if self.ask(read) { Step::Asked } else { Step::Waits }
            }
            None if child.has_all() => {
                child.conclude_settling(self.now);
                Step::Over
            }
            None => Step::Waits,
        }
    }

    /// Takes a read ahead that failed as the end of a settling, where it was asked for by one; tells whether it was.
    pub(in crate::pager) fn settling_fails(&mut self, read: &Read, error: &dyn std::fmt::Display) -> bool {
        let Some(served) = self.children.get_mut(&read.child) else { return false };
        let FailedRead { is_a_settlings, ends_it } = served.child.settling.failed_read(read.asked_at);
        if ends_it {
            served.child.fail_settling(error.to_string(), self.now);
        }
        is_a_settlings
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_settling_fails_by_its_own_reads_alone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let underway = |since| Settling::Underway { cursors: BTreeMap::new(), since };
        let fails = |settling: &Settling, asked_at| {
            let read = settling.failed_read(asked_at);
            (read.is_a_settlings, read.ends_it)
        };
        assert_eq!(fails(&Settling::Idle, at(1)), (false, false));
        assert_eq!(fails(&underway(Some(at(1))), at(1)), (true, true));
        assert_eq!(fails(&underway(None), at(0)), (true, true));
        // It was asked for by one that failed before: several are on their way.
        assert_eq!(fails(&underway(Some(at(2))), at(1)), (true, false));
        let failed = Settling::Failed { reason: String::new(), at: at(2) };
        assert_eq!((fails(&failed, at(1)), fails(&failed, at(3))), ((true, false), (false, false)));
    }
}
