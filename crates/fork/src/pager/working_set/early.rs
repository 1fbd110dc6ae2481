//! What of a working set is fetched before the child can have it: while its node still builds it, the first pages of its set are on
//! their way, and they are installed as soon as its userfaultfd has come.

use std::ops::Range;

use crate::pager::child::Child;
use crate::pager::faults::retries::Delivery;
use crate::pager::owners::{BULK_READS_MAX, BULK_SLOTS, Lane, Read};
use crate::pager::server::Server;

/// Most slots that are fetched so, half a MiB: as many as are on their way at a time. More would come before their child only where
/// that takes long to build, and none is to wait for what the one before it does not want.
const EARLY_SLOTS_MAX: u64 = BULK_SLOTS * BULK_READS_MAX as u64;

/// What was asked for on behalf of a child whose userfaultfd has not come.
#[derive(Debug, Default)]
pub(in crate::pager) struct Early {
    asked: Vec<Range<u64>>,
    arrived: Vec<Delivery>,
}

impl Early {
    fn slots(&self) -> u64 {
        self.asked.iter().map(|slots| slots.end - slots.start).sum()
    }

    /// A read failed; tells whether it was for such a child.
    pub(in crate::pager) fn fails(&mut self, read: &Read) -> bool {
        let before = self.asked.len();
        self.asked.retain(|slots| !read.slots.contains(slots));
        self.asked.len() < before
    }
}

impl Child {
    /// Takes the first slots of its set, as many as one read has.
    fn take_recalled(&mut self) -> Vec<Range<u64>> {
        let (mut taken, mut room) = (Vec::new(), BULK_SLOTS);
        while room > 0
            && let Some(slots) = self.recalled.pop_front()
        {
            let part = slots.start..slots.end.min(slots.start + room);
            room -= part.end - part.start;
            if part.end < slots.end {
                self.recalled.push_front(part.end..slots.end);
            }
            taken.push(part);
        }
        taken
    }

    /// Whether pages of its set are to be fetched before its userfaultfd has come: there is one space that they are for, and one
    /// owner to be asked.
    fn may_begin_early(&self) -> bool {
        let is_simple = self.own_spaces() == 1 && self.sources.len() == 1 && self.zygote.is_none();
        is_simple && !self.recalled.is_empty() && self.early.slots() < EARLY_SLOTS_MAX
    }
}

impl Server<'_> {
    /// Asks for the first pages of the set of a child whose userfaultfd has not come, as far as there is room.
    pub(super) fn fetch_early(&mut self, key: u64) {
        while let Some(served) = self.children.get_mut(&key) {
            let (Some(&owner), child) = (served.owners.first(), &mut served.child) else { return };
            let Some(source) = child.sources.first().filter(|_| child.may_begin_early()) else { return };
            if child.uses(&self.cache, source) || !self.owners.has_room(owner) {
                return;
            }
            let seed = source.key.clone();
            let slots = child.take_recalled();
            child.early.asked.extend(slots.iter().cloned());
            let deadline = self.now + child.strategy.unreachable_limit;
            let lane = Lane::Bulk;
            let read = Read { child: key, space: 0, slots, source: 0, owner, lane, asked_at: self.now };
            if self.owners.ask(read.clone(), &seed, &child.populated, deadline).is_err() {
                child.early.fails(&read);
                read.slots.into_iter().rev().for_each(|slots| child.recalled.push_front(slots));
                return;
            }
            self.to_poll.insert((owner, lane));
        }
    }

    /// Pages came that were fetched ahead: they wait for their turn, or for the child.
    pub(in crate::pager) fn stream_came(&mut self, delivery: Delivery) {
        match self.children.get_mut(&delivery.read.child).map(|served| &mut served.child) {
            Some(child) if child.socket.is_some() && child.own_spaces() == 1 => child.early.arrived.push(delivery),
            _ => self.arrived.push_back(delivery),
        }
    }

    /// A child's userfaultfd has come: what has come before it is installed first, and what has not is on its way.
    pub(in crate::pager) fn begin_with_early(&mut self, key: u64) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let Early { asked, arrived } = std::mem::take(&mut served.child.early);
        if let Some(space) = served.child.spaces.get_mut(&0) {
            space.asked(&asked);
        }
        arrived.into_iter().rev().for_each(|delivery| self.arrived.push_front(delivery));
    }
}
