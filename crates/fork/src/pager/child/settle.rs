//! Settling: a child fetches the rest of its pages in the background, and then does not need its seed any more.
//! `PagerRequest::Settle` starts it; `faults` calls `run_settle_steps` in each round. `SettlePhase` shows the states.
//! Two empty files in the child's directory survive a killed pager: `SETTLING_FILE` and `SETTLED_FILE`. The second is
//! written before the page maps are dropped.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use farfork_sys::process;
use farfork_wire::ChildId;

use super::Child;
use crate::pager::control::protocol::{PagerReply, SettleProgress, SettleState};
use crate::pager::disk_space_hint;
use crate::pager::journal::AddressSpaceId;
use crate::pager::owner_connections::{BULK_READS_MAX, BULK_SLOTS, Lane, PageRead};
use crate::pager::server::PagerServer;

/// Name of the file in the child's directory that says that it is to settle.
const SETTLING_FILE: &str = "settling";

/// Name of the file in the child's directory that says that it has settled.
pub const SETTLED_FILE: &str = "settled";

/// Looks at a memory map that changes meanwhile, until two are alike. What is left registered then is still served.
const MAP_SCANS_MAX: usize = 4;

/// The state of a child's settling.
///
/// ```text
///  Idle ─▶ Running ─┬─▶ Settled: missing pages are zero from now on; the owner is never asked again
///            ▲      └─▶ Failed: the owner did not deliver a page; the child continues as before
///            └──────────────┘ requested again
/// ```
///
/// A failed read ends only the settling. The child loses memory only if it touches a page that cannot be fetched.
#[derive(Debug, Default)]
pub(in crate::pager) enum SettlePhase {
    /// Nobody asked for it.
    #[default]
    Idle,
    /// Pages are fetched.
    Running {
        /// Up to these slots, all were asked for in each space.
        cursors: BTreeMap<AddressSpaceId, u64>,
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
enum SettleStep {
    /// Pages were asked for.
    Requested,
    /// It has to wait.
    Blocked,
    /// It does not settle any more.
    Finished,
}

impl SettlePhase {
    /// As a predecessor left it.
    pub(in crate::pager) fn recover(dir: &Path) -> Self {
        if dir.join(SETTLED_FILE).exists() {
            Self::Settled
        } else if dir.join(SETTLING_FILE).exists() {
            Self::Running { cursors: BTreeMap::new(), since: None }
        } else {
            Self::Idle
        }
    }

    /// Whether the child needs its seed no more.
    pub(in crate::pager) fn is_settled(&self) -> bool {
        matches!(self, Self::Settled)
    }

    /// Whether pages are fetched.
    pub(in crate::pager) fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// What it means that a read ahead failed that was asked for at this time.
    fn classify_failed_read(&self, submitted_at: Instant) -> SettleReadFailure {
        match self {
            Self::Running { since, .. } => SettleReadFailure {
                belongs_to_settle: true,
                ends_settle: since.is_none_or(|since| since <= submitted_at),
            },
            Self::Failed { at, .. } => SettleReadFailure { belongs_to_settle: submitted_at <= *at, ends_settle: false },
            Self::Idle | Self::Settled => SettleReadFailure { belongs_to_settle: false, ends_settle: false },
        }
    }
}

/// A read ahead that failed. Several were on their way: those behind the first are no loss either, nor do they end a settling that was
/// begun since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SettleReadFailure {
    /// It counts as a settling's, so that nothing is lost by it.
    belongs_to_settle: bool,
    /// It is the end of the settling that is underway.
    ends_settle: bool,
}

fn create_marker_file(dir: &Path, file: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(file)).map(drop)
}

impl Child {
    /// Has the rest of its pages fetched from now on.
    fn start_settle(&mut self, now: Instant) -> io::Result<()> {
        if matches!(self.settling, SettlePhase::Idle | SettlePhase::Failed { .. }) {
            create_marker_file(&self.dir, SETTLING_FILE)?;
            self.settling = SettlePhase::Running { cursors: BTreeMap::new(), since: Some(now) };
        }
        Ok(())
    }

    /// Gives up; it goes on as before.
    fn fail_settle(&mut self, reason: String, now: Instant) {
        tracing::warn!("child {} does not settle: {reason}", self.id);
        // At worst the next pager tries once more.
        let _ = fs::remove_file(self.dir.join(SETTLING_FILE));
        self.settling = SettlePhase::Failed { reason, at: now };
    }

    /// All pages are there: none will be asked for again.
    fn finish_settle(&mut self, now: Instant) {
        if let Err(error) = create_marker_file(&self.dir, SETTLED_FILE) {
            return self.fail_settle(format!("that it has settled cannot be written down: {error}"), now);
        }
        let _ = fs::remove_file(self.dir.join(SETTLING_FILE));
        self.settling = SettlePhase::Settled;
        self.spaces.values_mut().for_each(crate::pager::address_space::AddressSpace::mark_settled);
        tracing::info!("child {} has settled", self.id);
    }

    /// The next slots to ask one source for, at most [`BULK_SLOTS`]; `None` when all are here, or on their way.
    fn next_settle_slots(&mut self) -> Option<(AddressSpaceId, usize, Vec<Range<u64>>)> {
        let SettlePhase::Running { cursors, .. } = &mut self.settling else { return None };
        let slots = self.populated.slot_count();
        for (number, address_space) in self.spaces.iter_mut() {
            if !address_space.check_map_certain() {
                continue;
            }
            let cursor = cursors.entry(*number).or_default();
            // Behind the end, once more from the start: what was asked for may not have come.
            for from in [*cursor, 0] {
                *cursor = from;
                while *cursor < slots {
                    let (wanted, rest) = address_space.missing_slots_in(*cursor..slots, BULK_SLOTS);
                    *cursor = rest.start;
                    let wanted = address_space.retain_mapped_slots(wanted, &self.populated);
                    if let Some(first) = wanted.first() {
                        let (source, wanted, others) = self.populated.split_first_source(first.start, wanted);
                        *cursor = others.unwrap_or(*cursor);
                        return Some((*number, source, wanted));
                    }
                }
            }
        }
        None
    }

    fn has_all_pages(&self) -> bool {
        let slots = self.populated.slot_count();
        self.uffd_socket.is_none()
            && self
                .spaces
                .values()
                .all(|address_space| address_space.is_map_certain() && address_space.count_missing_slots(slots) == 0)
    }

    /// How far it is.
    fn settle_progress(&self) -> SettleProgress {
        let slots = self.populated.slot_count();
        let state = match &self.settling {
            SettlePhase::Idle => SettleState::Idle,
            SettlePhase::Running { .. } => SettleState::Running,
            SettlePhase::Failed { reason, .. } => SettleState::Failed(reason.clone()),
            SettlePhase::Settled => SettleState::Settled,
        };
        let spaces = (self.spaces.len() as u64).max(1);
        let missing = match state {
            SettleState::Settled => 0,
            _ if self.spaces.is_empty() => slots,
            _ => self.spaces.values().map(|address_space| address_space.count_missing_slots(slots)).sum(),
        };
        SettleProgress { total_pages: slots * spaces, missing_pages: missing, state }
    }

    /// Has the kernel serve what is missing by itself, which is zero, as it does for any process. `pid` is the child's
    /// own process. Only a help: what stays registered is served as before.
    fn unregister_all_memory(&self, pid: i32) {
        let Some(address_space) = self.spaces.get(&0) else { return };
        let mut before = Vec::new();
        for _ in 0..MAP_SCANS_MAX {
            let Ok(entries) = process::read_maps(pid) else { return };
            let ranges: Vec<(u64, u64)> = entries.iter().map(|entry| (entry.start, entry.bytes())).collect();
            if ranges == before {
                return;
            }
            for (start, bytes) in &ranges {
                // Refused for areas that cannot be registered: then they are not.
                let _ = address_space.uffd().unregister(*start, *bytes);
            }
            before = ranges;
        }
    }
}

impl PagerServer<'_> {
    /// Begins to settle a child, or tells how far it is. `pid`: the child's own process.
    pub(in crate::pager) fn handle_settle(&mut self, id: &ChildId, begin: bool, pid: i32) -> PagerReply {
        let Some(key) = self.child_key(id) else {
            return PagerReply::Refused(format!("child {id} is not known to the pager"));
        };
        let Some(served) = self.children.get_mut(&key) else { return PagerReply::Done };
        let child = &mut served.child;
        if begin {
            if let Err(error) = child.start_settle(self.now) {
                let remedy = disk_space_hint::disk_space_hint(&error);
                return PagerReply::Refused(format!(
                    "child {id}: that it settles cannot be written down: {error}{remedy}"
                ));
            }
            self.enqueue_settle(key);
        }
        self.run_settle_steps(BULK_READS_MAX);
        let Some(served) = self.children.get(&key) else {
            return PagerReply::Refused(format!("child {id} has ended"));
        };
        // Who hears that it has settled need not ask again, so it is left to the kernel first.
        if served.child.settling.is_settled() {
            served.child.unregister_all_memory(pid);
        }
        PagerReply::SettleProgress(served.child.settle_progress())
    }

    /// Gives a child that settles its turns.
    pub(in crate::pager) fn enqueue_settle(&mut self, key: u64) {
        let is_underway = self.children.get(&key).is_some_and(|served| served.child.settling.is_running());
        if is_underway && !self.settle_queue.contains(&key) {
            self.settle_queue.push_back(key);
        }
    }

    /// Submits reads for children that settle, in turn, at most `reads_max`.
    ///
    /// They use the bulk lane, so that pages for which a thread waits are served first. In each round one settling read
    /// is submitted before the prefetches, so that an endless stream does not hold it up.
    pub(in crate::pager) fn run_settle_steps(&mut self, reads_max: usize) {
        for _ in 0..reads_max {
            let turns = self.settle_queue.len();
            let has_requested = (0..turns).any(|_| self.run_next_settle() == SettleStep::Requested);
            if !has_requested {
                return;
            }
        }
    }

    fn run_next_settle(&mut self) -> SettleStep {
        let Some(key) = self.settle_queue.pop_front() else { return SettleStep::Blocked };
        let step = self.step_settle(key);
        if step != SettleStep::Finished {
            self.settle_queue.push_back(key);
        }
        step
    }

    fn step_settle(&mut self, key: u64) -> SettleStep {
        let Some(served) = self.children.get_mut(&key) else { return SettleStep::Finished };
        let (owners, child) = (&served.owners, &mut served.child);
        if !child.settling.is_running() {
            return SettleStep::Finished;
        }
        if let Some(reason) = child.loss_reason.clone() {
            child.fail_settle(reason, self.now);
            return SettleStep::Finished;
        }
        if child.has_ended() {
            child.fail_settle("its processes have ended".to_owned(), self.now);
            return SettleStep::Finished;
        }
        if !owners.iter().all(|owner| self.owners.has_bulk_capacity(*owner)) {
            return SettleStep::Blocked;
        }
        match child.next_settle_slots() {
            Some((space, source, slots)) => {
                let (owner, lane) = (owners[source], Lane::Bulk);
                let slots = self.install_cached_slots((key, space, source), slots);
                if slots.is_empty() {
                    return SettleStep::Requested;
                }
                let read = PageRead { child: key, space, slots, source, owner, lane, submitted_at: self.now };
                if self.submit_read(read) { SettleStep::Requested } else { SettleStep::Blocked }
            }
            None if child.has_all_pages() => {
                child.finish_settle(self.now);
                SettleStep::Finished
            }
            None => SettleStep::Blocked,
        }
    }

    /// Takes a read ahead that failed as the end of a settling, where it was asked for by one; tells whether it was.
    pub(in crate::pager) fn handle_settle_read_failure(
        &mut self,
        read: &PageRead,
        error: &dyn std::fmt::Display,
    ) -> bool {
        let Some(served) = self.children.get_mut(&read.child) else { return false };
        let SettleReadFailure { belongs_to_settle, ends_settle } =
            served.child.settling.classify_failed_read(read.submitted_at);
        if ends_settle {
            served.child.fail_settle(error.to_string(), self.now);
        }
        belongs_to_settle
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
        let underway = |since| SettlePhase::Running { cursors: BTreeMap::new(), since };
        let fails = |settling: &SettlePhase, submitted_at| {
            let read = settling.classify_failed_read(submitted_at);
            (read.belongs_to_settle, read.ends_settle)
        };
        assert_eq!(fails(&SettlePhase::Idle, at(1)), (false, false));
        assert_eq!(fails(&underway(Some(at(1))), at(1)), (true, true));
        assert_eq!(fails(&underway(None), at(0)), (true, true));
        // It was asked for by one that failed before: several are on their way.
        assert_eq!(fails(&underway(Some(at(2))), at(1)), (true, false));
        let failed = SettlePhase::Failed { reason: String::new(), at: at(2) };
        assert_eq!((fails(&failed, at(1)), fails(&failed, at(3))), ((true, false), (false, false)));
    }
}
