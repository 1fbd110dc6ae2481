//! Early fetch: the first pages of a child's working set are fetched while its node still builds the child. They are
//! installed as soon as its userfaultfd arrives.

use std::ops::Range;

use crate::pager::child::Child;
use crate::pager::faults::retry_queue::CompletedRead;
use crate::pager::owner_connections::{BULK_READS_MAX, BULK_SLOTS, Lane, PageRead};
use crate::pager::server::PagerServer;

/// Most slots that are fetched so, half a MiB: as many as are on their way at a time. More would come before their child only where
/// that takes long to build, and none is to wait for what the one before it does not want.
const EARLY_SLOTS_MAX: u64 = BULK_SLOTS * BULK_READS_MAX as u64;

/// What was asked for on behalf of a child whose userfaultfd has not come.
#[derive(Debug, Default)]
pub(in crate::pager) struct EarlyFetch {
    requested: Vec<Range<u64>>,
    completed_reads: Vec<CompletedRead>,
}

impl EarlyFetch {
    fn slot_count(&self) -> u64 {
        self.requested.iter().map(|slots| slots.end - slots.start).sum()
    }

    /// A read failed; tells whether it was for such a child.
    pub(in crate::pager) fn remove_failed_read(&mut self, read: &PageRead) -> bool {
        let before = self.requested.len();
        self.requested.retain(|slots| !read.slots.contains(slots));
        self.requested.len() < before
    }
}

impl Child {
    /// Takes the first slots of its set, as many as one read has.
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

    /// Whether pages of its set are to be fetched before its userfaultfd has come: there is one space that they are for, and one
    /// owner to be asked.
    fn can_fetch_early(&self) -> bool {
        let is_simple = self.process_count() == 1 && self.sources.len() == 1 && self.zygote_copies.is_none();
        is_simple && !self.pending_set_slots.is_empty() && self.early_fetch.slot_count() < EARLY_SLOTS_MAX
    }
}

impl PagerServer<'_> {
    /// Asks for the first pages of the set of a child whose userfaultfd has not come, as far as there is room.
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
            let read = PageRead { child: key, space: 0, slots, source: 0, owner, lane, submitted_at: self.now };
            if self.owners.submit_read(read.clone(), &seed, &child.populated, deadline).is_err() {
                child.early_fetch.remove_failed_read(&read);
                read.slots.into_iter().rev().for_each(|slots| child.pending_set_slots.push_front(slots));
                return;
            }
            self.lanes_to_poll.insert((owner, lane));
        }
    }

    /// Pages came that were fetched ahead: they wait for their turn, or for the child.
    pub(in crate::pager) fn queue_completed_read(&mut self, completed_read: CompletedRead) {
        match self.children.get_mut(&completed_read.read.child).map(|served| &mut served.child) {
            Some(child) if child.uffd_socket.is_some() && child.process_count() == 1 => {
                child.early_fetch.completed_reads.push(completed_read)
            }
            _ => self.completed_reads.push_back(completed_read),
        }
    }

    /// A child's userfaultfd has come: what has come before it is installed first, and what has not is on its way.
    pub(in crate::pager) fn install_early_reads(&mut self, key: u64) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let EarlyFetch { requested, completed_reads } = std::mem::take(&mut served.child.early_fetch);
        if let Some(address_space) = served.child.spaces.get_mut(&0) {
            address_space.note_requested(&requested);
        }
        completed_reads.into_iter().rev().for_each(|completed_read| self.completed_reads.push_front(completed_read));
    }
}
