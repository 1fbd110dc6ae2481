//! Settling: the pager fetches the rest of a child's pages in the background. Then the child no longer needs its seed.
//! `PagerRequest::Settle` starts it; `faults` calls `run_settle_steps` in each round. `SettlePhase` shows the states.
//! Two empty files in the child's directory survive a killed pager: `SETTLING_FILE` and `SETTLED_FILE`. `SETTLED_FILE`
//! is written before the page maps are dropped.

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
use crate::pager::owner_connections::{AddressSpaceSource, BULK_READS_MAX, BULK_SLOTS, Lane, PageRead};
use crate::pager::server::PagerServer;

/// Name of the file in the child's directory that exists while the child settles.
const SETTLING_FILE: &str = "settling";

/// Name of the file in the child's directory that exists once the child has settled.
pub const SETTLED_FILE: &str = "settled";

/// Maximum number of scans of a memory map that changes during the scans. They end when two scans are equal. Memory
/// that stays registered is still served.
const MAP_SCANS_MAX: usize = 4;

/// The state of a child's settling.
///
/// ```text
///  Idle ─▶ Running ─┬─▶ Settled: missing pages are zero from now on; the owner is never asked again
///            ▲      └─▶ Failed: the owner did not deliver a page; the child continues as before
///            └──────────────┘ requested again
/// ```
///
/// A failed read of a settling ends the settling, and loses no memory. The child loses memory only if it touches a page
/// that cannot be fetched.
#[derive(Debug, Default)]
pub(in crate::pager) enum SettlePhase {
    /// Settling was not requested.
    #[default]
    Idle,
    /// Pages are being fetched.
    Running {
        /// In each address space, the next slot to request. All lower slots were requested.
        cursors: BTreeMap<AddressSpaceId, u64>,
        /// When the settling started; `None` if an earlier pager started it.
        since: Option<Instant>,
    },
    /// A page could not be fetched.
    Failed {
        /// The reason.
        reason: String,
        /// When the failure was detected.
        at: Instant,
    },
    /// The child no longer needs its seed.
    Settled,
}

/// The result of one step for a settling child.
#[derive(Debug, PartialEq, Eq)]
enum SettleStep {
    /// Pages were requested.
    Requested,
    /// No pages could be requested for now: the child stays in the queue.
    Blocked,
    /// The child is no longer settling.
    Finished,
}

impl SettlePhase {
    /// Reads the state in which an earlier pager left the settling.
    pub(in crate::pager) fn recover(dir: &Path) -> Self {
        if dir.join(SETTLED_FILE).exists() {
            Self::Settled
        } else if dir.join(SETTLING_FILE).exists() {
            Self::Running { cursors: BTreeMap::new(), since: None }
        } else {
            Self::Idle
        }
    }

    /// Whether the child has settled, so that it no longer needs its seed.
    pub(in crate::pager) fn is_settled(&self) -> bool {
        matches!(self, Self::Settled)
    }

    /// Whether pages are being fetched.
    pub(in crate::pager) fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// Classifies a failed bulk read by the time of its submission.
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

/// The effect of a failed bulk read. After one read of a settling has failed, other reads of the same settling may
/// still be in flight. If they fail later, they lose no memory, and do not end a settling that was started since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SettleReadFailure {
    /// The read counts as a read of a settling, so its failure loses no memory.
    belongs_to_settle: bool,
    /// The failure ends the current settling.
    ends_settle: bool,
}

fn create_marker_file(dir: &Path, file: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(file)).map(drop)
}

impl Child {
    /// Starts to settle the child, unless it settles or has settled.
    fn start_settle(&mut self, now: Instant) -> io::Result<()> {
        if matches!(self.settling, SettlePhase::Idle | SettlePhase::Failed { .. }) {
            create_marker_file(&self.dir, SETTLING_FILE)?;
            self.settling = SettlePhase::Running { cursors: BTreeMap::new(), since: Some(now) };
        }
        Ok(())
    }

    /// Ends the settling; the child continues as before.
    fn fail_settle(&mut self, reason: String, now: Instant) {
        tracing::warn!("child {} does not settle: {reason}", self.id);
        // If the removal fails, the next pager resumes the settling.
        let _ = fs::remove_file(self.dir.join(SETTLING_FILE));
        self.settling = SettlePhase::Failed { reason, at: now };
    }

    /// Marks the child as settled: all pages are installed.
    fn finish_settle(&mut self, now: Instant) {
        if let Err(error) = create_marker_file(&self.dir, SETTLED_FILE) {
            return self.fail_settle(format!("the file `settled` cannot be written: {error}"), now);
        }
        let _ = fs::remove_file(self.dir.join(SETTLING_FILE));
        self.settling = SettlePhase::Settled;
        self.spaces.values_mut().for_each(crate::pager::address_space::AddressSpace::mark_settled);
        tracing::info!("child {} has settled", self.id);
    }

    /// Returns the next slots to request, at most [`BULK_SLOTS`], with their address space and source. `None` if no
    /// address space with a certain map has slots that are mapped, but neither installed nor in flight.
    fn next_settle_slots(&mut self) -> Option<(AddressSpaceId, usize, Vec<Range<u64>>)> {
        let SettlePhase::Running { cursors, .. } = &mut self.settling else { return None };
        let slots = self.populated.slot_count();
        for (number, address_space) in self.spaces.iter_mut() {
            if !address_space.check_map_certain() {
                continue;
            }
            let cursor = cursors.entry(*number).or_default();
            // At the end, search again from slot 0: some requested pages may not have arrived.
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

    /// The progress of the child's settling.
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

    /// Unregisters the memory of the child's first process, which has the pid `pid`, so that the kernel itself fills
    /// missing pages with zeroes. This is only an optimization: memory that stays registered is served as before.
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
                // The ioctl fails only for mappings of kinds that are never registered.
                let _ = address_space.uffd().unregister(*start, *bytes);
            }
            before = ranges;
        }
    }
}

impl PagerServer<'_> {
    /// Starts to settle a child if `begin` is set. Returns the progress. `pid` is the child's first process.
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
                    "child {id} cannot start to settle: the file `settling` cannot be written: {error}{remedy}"
                ));
            }
            self.enqueue_settle(key);
        }
        self.run_settle_steps(BULK_READS_MAX);
        let Some(served) = self.children.get(&key) else {
            return PagerReply::Refused(format!("child {id} has ended"));
        };
        // Unregister the memory before the reply: a daemon that gets the state `Settled` sends no further request.
        if served.child.settling.is_settled() {
            served.child.unregister_all_memory(pid);
        }
        PagerReply::SettleProgress(served.child.settle_progress())
    }

    /// Queues a child that settles.
    pub(in crate::pager) fn enqueue_settle(&mut self, key: u64) {
        let is_underway = self.children.get(&key).is_some_and(|served| served.child.settling.is_running());
        if is_underway && !self.settle_queue.contains(&key) {
            self.settle_queue.push_back(key);
        }
    }

    /// Submits reads for the children that settle, in turn; at most `reads_max` reads.
    ///
    /// The reads use the bulk lane, so that pages for which a thread waits are served first. In each round one settling
    /// read is submitted before the prefetches, so that a constant stream of prefetches cannot stop the settling.
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
                let target = AddressSpaceSource { child: key, space, source };
                let slots = self.install_cached_slots(target, slots);
                if slots.is_empty() {
                    return SettleStep::Requested;
                }
                let read = PageRead { target, slots, owner, lane, submitted_at: self.now };
                if self.submit_read(read) { SettleStep::Requested } else { SettleStep::Blocked }
            }
            None if child.has_all_pages() => {
                child.finish_settle(self.now);
                SettleStep::Finished
            }
            None => SettleStep::Blocked,
        }
    }

    /// Ends the current settling if the failed read may be one of its reads. Returns whether the read counts as one of
    /// a settling; then no memory is lost by the failure.
    pub(in crate::pager) fn handle_settle_read_failure(
        &mut self,
        read: &PageRead,
        error: &dyn std::fmt::Display,
    ) -> bool {
        let Some(served) = self.children.get_mut(&read.target.child) else { return false };
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
    fn only_reads_of_a_settle_end_that_settle() {
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
        // A read of an earlier settling, which failed while several reads were in flight.
        assert_eq!(fails(&underway(Some(at(2))), at(1)), (true, false));
        let failed = SettlePhase::Failed { reason: String::new(), at: at(2) };
        assert_eq!((fails(&failed, at(1)), fails(&failed, at(3))), ((true, false), (false, false)));
    }
}
