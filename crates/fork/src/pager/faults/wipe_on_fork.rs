//! Memory that a child marks to be wiped on fork (MADV_WIPEONFORK). The kernel sends no event for the mark. Such memory
//! is empty in a forked process, but the pager would fetch its missing pages. So if a page that was installed before
//! the fork is missing after it, the pager reads the marked mappings from /proc/PID/smaps. It does not read `smaps` at
//! each fork: a read takes 20 ms per GiB, during which all children wait.

use std::iter;
use std::time::Instant;

use farfork_sys::process::{self, MapEntry};
use farfork_sys::userfaultfd::UffdEvent;

use super::faulting_threads;
use super::retry_queue::PageFault;
use crate::pager::child::Child;

impl Child {
    /// If a page that was installed is missing in a forked process, removes from the page map the memory that the fork
    /// has wiped. Returns false if the fault must be retried, because its thread does not sleep yet and cannot be
    /// identified.
    pub(super) fn discard_wiped_memory(&mut self, fault: &PageFault, now: Instant) -> bool {
        let Child { spaces, populated, planned_maps: maps, .. } = self;
        let is_forked = fault.is_first && fault.space as usize >= maps.len();
        let Some(address_space) = spaces.get_mut(&fault.space).filter(|_| is_forked) else { return true };
        if address_space.is_wipe_checked || !address_space.is_installed_missing(fault.address, populated) {
            return true;
        }
        let is_around =
            |wiped: &Vec<(u64, u64)>| wiped.iter().any(|(start, end)| (*start..*end).contains(&fault.address));
        let mut smaps = faulting_threads::find_faulting_threads(self.pid, fault.thread)
            .filter_map(|tid| process::read_smaps(tid).ok());
        let Some(found) = smaps.next() else {
            address_space.is_wipe_checked = fault.growth_check_at <= now;
            return address_space.is_wipe_checked;
        };
        // Marks that are set after the fork have no effect on it, so one check is enough.
        address_space.is_wipe_checked = true;
        let wiped = iter::once(found).chain(smaps).map(|entries| wipe_on_fork_ranges(&entries)).find(is_around);
        if let Some(wiped) = wiped {
            wiped.into_iter().for_each(|(start, end)| address_space.apply_event(&UffdEvent::Remove { start, end }));
            self.compact_journal();
        }
        true
    }
}

/// Returns the mappings with the flag `wf` (MADV_WIPEONFORK).
fn wipe_on_fork_ranges(entries: &[MapEntry]) -> Vec<(u64, u64)> {
    entries.iter().filter(|entry| entry.has_flag("wf")).map(|entry| (entry.start, entry.end)).collect()
}
