//! Memory that a child marks itself to be wiped on fork (MADV_WIPEONFORK): the kernel tells nobody.
//!
//! Such memory begins empty in a forked process, where it is missing, and what is missing is fetched. But a page that had come to the
//! process that forked has no other reason to be missing there. Then the kernel is asked which areas are marked: `smaps` is
//! too dear to be read at each fork (20 ms a GiB, for which all children would wait).

use farfork_sys::process::{self, MapEntry};
use farfork_sys::userfaultfd::Message;

use super::child::Child;
use super::retries::Fault;
use super::space::Space;
use super::waiting;

impl Child {
    /// Where a page that had come is missing in a forked process, what was wiped there shows nothing of the seed from now on.
    pub(super) fn forget_what_was_wiped(&mut self, fault: &Fault) {
        let is_forked = fault.is_first && fault.space >= self.own_spaces();
        let space = self.spaces.get(&fault.space).filter(|_| is_forked);
        let lacks =
            |space: &Space| !space.knows_what_was_wiped && space.lacks_what_came(fault.address, &self.populated);
        if !space.is_some_and(lacks) {
            return;
        }
        // What is marked since makes no difference: one look tells all.
        if let Some(space) = self.spaces.get_mut(&fault.space) {
            space.knows_what_was_wiped = true;
        }
        let is_surely_its = self.pid.is_some();
        let wiped = waiting::threads_heard(self.pid, fault.thread).find_map(|tid| {
            let wiped = wiped_of(&process::smaps(tid).ok()?);
            let is_around = wiped.iter().any(|(start, end)| (*start..*end).contains(&fault.address));
            (is_surely_its || is_around).then_some(wiped)
        });
        let wiped = wiped.unwrap_or_default();
        let Some(space) = self.spaces.get_mut(&fault.space).filter(|_| !wiped.is_empty()) else { return };
        wiped.into_iter().for_each(|(start, end)| space.follow(&Message::Remove { start, end }));
        self.restart_journal();
    }
}

/// The areas that are marked.
fn wiped_of(areas: &[MapEntry]) -> Vec<(u64, u64)> {
    areas.iter().filter(|area| area.has_flag("wf")).map(|area| (area.start, area.end)).collect()
}
