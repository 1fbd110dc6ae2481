//! Early fetch: the first pages of a child's working set are fetched while its node still builds the child. The pages
//! are installed as soon as the child's userfaultfd arrives.

use std::ops::Range;

use crate::pager::child::Child;
use crate::pager::faults::retry_queue::CompletedRead;
use crate::pager::owner_connections::{AddressSpaceSource, BULK_READS_MAX, BULK_SLOTS, Lane, PageRead};
use crate::pager::server::PagerServer;

/// Maximum number of slots that are fetched early: half a MiB, as many as [`BULK_READS_MAX`] reads have. More would
/// arrive in time only if building the child takes long, and would delay other children if this child does not need
/// them.
const EARLY_SLOTS_MAX: u64 = BULK_SLOTS * BULK_READS_MAX as u64;

/// The early reads of a child whose userfaultfd has not arrived.
#[derive(Debug, Default)]
pub(in crate::pager) struct EarlyFetch {
    requested: Vec<Range<u64>>,
    completed_reads: Vec<CompletedRead>,
}

impl EarlyFetch {
    fn slot_count(&self) -> u64 {
        self.requested.iter().map(|slots| slots.end - slots.start).sum()
    }

    /// Removes the slots of a failed read. Returns whether it was an early read.
    pub(in crate::pager) fn remove_failed_read(&mut self, read: &PageRead) -> bool {
        let before = self.requested.len();
        self.requested.retain(|slots| !read.slots.contains(slots));
        self.requested.len() < before
    }
}

impl Child {
    /// Takes the first slots of the child's set, at most as many as one read has.
    fn take_early_slots(&mut self) -> Vec<Range<u64>> {
        let (mut taken, mut room) = (Vec::new(), BULK_SLOTS);
        while room > 0
            && let Some(slots) = self.pending_set_slots.pop_front()
        {
            let part = slots.start..slots.end.min(slots.start + room);
            room -= part.end - part.start;
            if part.end < slots.end {
                self.pending_set_slots.push_front(part.end..slots.end);
            }
            taken.push(part);
        }
        taken
    }

    /// Whether pages of the set may be fetched before the userfaultfd has arrived. The child must have one process and
    /// one source, and must not be a zygote.
    fn can_fetch_early(&self) -> bool {
        let is_simple = self.process_count() == 1 && self.sources.len() == 1 && self.zygote_copies.is_none();
        is_simple && !self.pending_set_slots.is_empty() && self.early_fetch.slot_count() < EARLY_SLOTS_MAX
    }
}

impl PagerServer<'_> {
    /// Requests the first pages of a child's set before its userfaultfd has arrived, as far as the bulk lane has room.
    pub(super) fn fetch_early(&mut self, key: u64) {
        while let Some(served) = self.children.get_mut(&key) {
            let (Some(&owner), child) = (served.owners.first(), &mut served.child) else { return };
            let Some(source) = child.sources.first().filter(|_| child.can_fetch_early()) else { return };
            if child.uses_cache(&self.cache, source) || !self.owners.has_bulk_capacity(owner) {
                return;
            }
            let seed = source.key.clone();
            let slots = child.take_early_slots();
            child.early_fetch.requested.extend(slots.iter().cloned());
            let deadline = self.now + child.strategy.unreachable_timeout;
            let lane = Lane::Bulk;
            let target = AddressSpaceSource { child: key, space: 0, source: 0 };
            let read = PageRead { target, slots, owner, lane, submitted_at: self.now };
            if self.owners.submit_read(read.clone(), &seed, &child.populated, deadline).is_err() {
                child.early_fetch.remove_failed_read(&read);
                read.slots.into_iter().rev().for_each(|slots| child.pending_set_slots.push_front(slots));
                return;
            }
            self.lanes_to_poll.insert((owner, lane));
        }
    }

    /// Queues prefetched pages to be installed. Keeps those of an early read until the child's userfaultfd has arrived.
    pub(in crate::pager) fn queue_completed_read(&mut self, completed_read: CompletedRead) {
        match self.children.get_mut(&completed_read.read.target.child).map(|served| &mut served.child) {
            Some(child) if child.uffd_socket.is_some() && child.process_count() == 1 => {
                child.early_fetch.completed_reads.push(completed_read)
            }
            _ => self.completed_reads.push_back(completed_read),
        }
    }

    /// Called when a child's userfaultfd has arrived: moves the received early pages to the front of the install queue,
    /// and marks all early slots as in flight.
    pub(in crate::pager) fn install_early_reads(&mut self, key: u64) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let EarlyFetch { requested, completed_reads } = std::mem::take(&mut served.child.early_fetch);
        if let Some(address_space) = served.child.spaces.get_mut(&0) {
            address_space.note_requested(&requested);
        }
        completed_reads.into_iter().rev().for_each(|completed_read| self.completed_reads.push_front(completed_read));
    }
}
