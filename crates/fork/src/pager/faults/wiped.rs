//! Memory that a child marks itself to be wiped on fork (MADV_WIPEONFORK): the kernel tells nobody.
//!
//! Such memory begins empty in a forked process, where it is missing, and what is missing is fetched. But a page that had come to the
//! process that forked has no other reason to be missing there. Then the kernel is asked which areas are marked: `smaps` is
//! too dear to be read at each fork (20 ms a GiB, for which all children would wait).

use std::iter;
use std::time::Instant;

use farfork_sys::process::{self, MapEntry};
use farfork_sys::userfaultfd::Message;

use super::retries::Fault;
use super::waiting;
use crate::pager::child::Child;

impl Child {
    /// Where a page that had come is missing in a forked process, what was wiped there shows nothing of the seed from now on. False where
    /// the fault's thread does not sleep yet, so that it cannot be told from others: it is to be asked again.
    pub(super) fn forgets_what_was_wiped(&mut self, fault: &Fault, now: Instant) -> bool {
        let Child { spaces, populated, maps, .. } = self;
        let is_forked = fault.is_first && fault.space as usize >= maps.len();
        let Some(space) = spaces.get_mut(&fault.space).filter(|_| is_forked) else { return true };
        if space.knows_what_was_wiped || !space.lacks_what_came(fault.address, populated) {
            return true;
        }
        let is_around =
            |wiped: &Vec<(u64, u64)>| wiped.iter().any(|(start, end)| (*start..*end).contains(&fault.address));
        let mut areas = waiting::threads(self.pid, fault.thread).filter_map(|tid| process::smaps(tid).ok());
        let Some(found) = areas.next() else {
            space.knows_what_was_wiped = fault.question_due <= now;
            return space.knows_what_was_wiped;
        };
        // What is marked since makes no difference: one look tells all.
        space.knows_what_was_wiped = true;
        let wiped = iter::once(found).chain(areas).map(|areas| wiped_of(&areas)).find(is_around);
        if let Some(wiped) = wiped {
            wiped.into_iter().for_each(|(start, end)| space.follow(&Message::Remove { start, end }));
            self.restart_journal();
        }
        true
    }
}

/// The areas that are marked.
fn wiped_of(areas: &[MapEntry]) -> Vec<(u64, u64)> {
    areas.iter().filter(|area| area.has_flag("wf")).map(|area| (area.start, area.end)).collect()
}
