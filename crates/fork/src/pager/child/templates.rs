//! Templates of children: to make a seed of a child, a capture clones the child's process. The clone never runs. The
//! pager finds the template's address space, lists its map and closes its userfaultfd. The pager fetches no pages for
//! the template: children of the new seed get the missing pages from the seeds that own them. After the close, missing
//! pages read as zeroes. So the template must never run, and its map is listed before the close.

use farfork_wire::{ChildId, PAGE_SIZE};

use crate::pager::control::protocol::{PagerReply, SEGMENTS_PER_REPLY_MAX};
use crate::pager::journal::AddressSpaceId;
use crate::pager::page_map::MapSegment;
use crate::pager::server::PagerServer;

// Requests of a capture, in order:
//
//  capture   NextSpace ─ pause: clone ─ FindSpace ─ resume ─ ListSegments ─ CloseSpace
//  kernel                    └ fork event: an address space like any other
//
// `ListSegments` gives the template's map as it was at the clone.
//
// A fork event does not say which process was forked. The capture maps pages in the parent just for the pause. These
// pages identify the template: among the spaces with at least the number that `NextSpace` returned, only the template's
// has them mapped.

impl PagerServer<'_> {
    /// Returns the number of the child's next address space.
    pub(in crate::pager) fn handle_next_space(&self, id: &ChildId) -> PagerReply {
        let Some(served) = self.child_key(id).and_then(|key| self.children.get(&key)) else {
            return refuse_unknown_child(id);
        };
        PagerReply::SpaceId(Some(served.child.next_space_id()))
    }

    /// Finds the address space, with number `since` or higher, in which the page at `address` is mapped.
    pub(in crate::pager) fn handle_find_space(&self, id: &ChildId, since: AddressSpaceId, address: u64) -> PagerReply {
        let Some(served) = self.child_key(id).and_then(|key| self.children.get(&key)) else {
            return refuse_unknown_child(id);
        };
        // Only a mapped page can be registered. The check leaves the page registered in the template until the address
        // space is closed.
        let is_mapped = |space: &&AddressSpaceId| {
            served
                .child
                .spaces
                .get(space)
                .is_some_and(|address_space| address_space.uffd().register(address, PAGE_SIZE).is_ok())
        };
        let younger = served.child.spaces.range(since..).map(|(number, _)| number);
        let found: Vec<AddressSpaceId> = younger.filter(is_mapped).copied().collect();
        match found[..] {
            [] => PagerReply::SpaceId(None),
            [only] => PagerReply::SpaceId(Some(only)),
            _ => PagerReply::Refused(format!(
                "child {id}: its template cannot be identified: {} processes match",
                found.len()
            )),
        }
    }

    /// Returns the segments of an address space that start at `from` or later, as many as fit into one reply.
    pub(in crate::pager) fn handle_list_segments(&self, id: &ChildId, space: AddressSpaceId, from: u64) -> PagerReply {
        let served = self.child_key(id).and_then(|key| self.children.get(&key));
        let Some(address_space) = served.and_then(|served| served.child.spaces.get(&space)) else {
            return refuse_unknown_child(id);
        };
        let segments = address_space.segments().filter(|segment| segment.start >= from);
        PagerReply::Segments(segments.take(SEGMENTS_PER_REPLY_MAX).copied().collect::<Vec<MapSegment>>())
    }

    /// Closes a template's userfaultfd.
    pub(in crate::pager) fn handle_close_space(&mut self, id: &ChildId, space: AddressSpaceId) -> PagerReply {
        if let Some(key) = self.child_key(id) {
            self.close_space(key, space);
            // The stub must not hold the userfaultfd either.
            self.children.get_mut(&key).into_iter().for_each(|served| served.child.prune_stub_queue());
        }
        PagerReply::Done
    }
}

fn refuse_unknown_child(id: &ChildId) -> PagerReply {
    PagerReply::Refused(format!("child {id} is not served any more"))
}
