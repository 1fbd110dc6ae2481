//! Memory that a child marks itself to be wiped on fork (MADV_WIPEONFORK): the kernel tells nobody.
//!
//! Such memory begins empty in a forked process, where it is missing, and what is missing is fetched. But a page that had come to the
//! process that forked has no other reason to be missing there. Then the kernel is asked which areas are marked: `smaps` is
//! too dear to be read at each fork (20 ms a GiB, for which all children would wait).

use farfork_sys::process;
use farfork_sys::userfaultfd::Message;

use super::child::Child;
use super::retries::Fault;
use super::waiting;

impl Child {
    /// Where a page that had come is missing in a forked process, what was wiped there shows nothing of the seed from now on.
    pub(super) fn forget_what_was_wiped(&mut self, fault: &Fault) {
        let is_forked = fault.is_first && fault.space >= self.own_spaces();
        let space = self.spaces.get(&fault.space).filter(|_| is_forked);
        if !space.is_some_and(|space| space.lacks_what_came(fault.address, &self.populated)) {
            return;
        }
        let Some(areas) = waiting::threads(self.pid, fault.thread).find_map(|tid| process::smaps(tid).ok()) else {
            return;
        };
        let wiped = areas.iter().filter(|area| area.has_flag("wf")).map(|area| (area.start, area.end));
        let wiped: Vec<(u64, u64)> = wiped.collect();
        let Some(space) = self.spaces.get_mut(&fault.space).filter(|_| !wiped.is_empty()) else { return };
        wiped.into_iter().for_each(|(start, end)| space.follow(&Message::Remove { start, end }));
        self.restart_journal();
    }
}
