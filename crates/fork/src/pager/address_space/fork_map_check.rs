//! An `AddressSpace`'s recent map changes and its unresolved fork, with the kernel queries (`ForkMapCheck`) that
//! resolve the fork. `faults::fork_resolution` calls this code; `page_map::fork_order` evaluates the query results.

use farfork_sys::userfaultfd::{RangeError, RangeErrorCause};
use farfork_wire::PAGE_SIZE;

use super::AddressSpace;
use crate::pager::address_space::install::InstallOutcome;
use crate::pager::address_space::slot_bitmap::SlotBitmap;
use crate::pager::journal::AddressSpaceId;
use crate::pager::page_map::fork_order::{self, ForkMapCheck, MapChange, UnresolvedFork};
use crate::pager::page_map::{MapSegment, PageMap};
use crate::pager::plan::slot_index::SlotIndex;

impl AddressSpace {
    /// Marks the map as uncertain: it is not known yet which of the parent's last changes this process has.
    pub(in crate::pager) fn set_unresolved_fork(&mut self, parent: AddressSpaceId, parents_recent: &[MapChange]) {
        self.unresolved_fork = Some(Box::new(UnresolvedFork::new(parent, parents_recent.to_vec())));
    }

    /// Returns the unresolved fork. `None` if it is known which of the parent's changes this process has.
    pub(in crate::pager) fn unresolved_fork_mut(&mut self) -> Option<&mut UnresolvedFork> {
        self.unresolved_fork.as_deref_mut()
    }

    /// Whether the page map is known. If not, no page is installed.
    pub(in crate::pager) fn is_map_certain(&self) -> bool {
        self.unresolved_fork.is_none() && !self.page_map.has_displaced_ranges()
    }

    /// As [`Self::is_map_certain`], but first drops the late events of an uncertain map if the kernel has no pending
    /// event.
    pub(in crate::pager) fn check_map_certain(&mut self) -> bool {
        if !self.is_map_certain() {
            self.clear_if_quiet();
        }
        self.is_map_certain()
    }

    /// Map changes that a process forked by this one may lack.
    pub(in crate::pager) fn recent_changes(&self) -> &[MapChange] {
        &self.recent_changes
    }

    /// Drops the recent changes, the late events and the list of unregistered ranges if the kernel has no pending event
    /// and the fork is resolved. A fork that is reported later includes all of these changes.
    pub(in crate::pager) fn clear_if_quiet(&mut self) {
        let has_changes = !self.recent_changes.is_empty() || self.page_map.has_late_events();
        if has_changes && self.unresolved_fork.is_none() && self.uffd.has_no_pending_events() {
            self.clear_recent_changes();
        }
    }

    fn clear_recent_changes(&mut self) {
        self.recent_changes.clear();
        self.kernel_filled.clear();
        self.page_map.clear_late_events();
    }

    /// As `clear_if_quiet`, but without a query: the success of an install proves that no map change was pending. The
    /// install may have refilled a discarded page, so that a later check could not tell whether a fork includes the
    /// discard.
    pub(super) fn clear_after_install(&mut self, outcome: &InstallOutcome) {
        if matches!(outcome, InstallOutcome::Complete) && self.is_map_certain() {
            self.clear_recent_changes();
        }
    }

    /// Asks the kernel which of the parent's changes this process has. All of these changes must have been read.
    /// Returns the map at the fork if it differs from the assumed one; pass it to [`Self::rebase_on_map`].
    ///
    /// # Errors
    /// [`RangeErrorCause::MapChanging`] if a message about this process's own map must be read first;
    /// [`RangeErrorCause::ProcessGone`].
    pub(in crate::pager) fn resolve_fork_map(&self, populated: &SlotIndex) -> Result<Option<PageMap>, RangeErrorCause> {
        let Some(unresolved_fork) =
            self.unresolved_fork.as_ref().filter(|unresolved_fork| unresolved_fork.has_changes())
        else {
            return Ok(None);
        };
        let mut map = self.page_map.clone();
        MapChange::revert_all(&self.recent_changes, &mut map);
        unresolved_fork.resolve(&map, KernelForkCheck { address_space: self, populated })
    }

    /// Marks the map as certain. Drops the late events that the map has from the parent: their messages never arrive on
    /// this userfaultfd.
    pub(in crate::pager) fn accept_map(&mut self) {
        self.unresolved_fork = None;
        let mut map = std::mem::take(&mut self.page_map);
        MapChange::revert_all(&self.recent_changes, &mut map);
        self.rebase_on_map(map);
    }

    /// Sets the page map to `map`, the map at the fork, and applies the process's own recent changes to it.
    pub(in crate::pager) fn rebase_on_map(&mut self, mut map: PageMap) {
        map.clear_late_events();
        self.page_map = map;
        MapChange::apply_all(&mut self.recent_changes, &mut self.page_map);
    }
}

/// Answers [`ForkMapCheck`] by asking the kernel about a forked process.
struct KernelForkCheck<'a> {
    address_space: &'a AddressSpace,
    populated: &'a SlotIndex,
}

impl KernelForkCheck<'_> {
    /// The address of the first installed page of a segment.
    fn first_installed_in(&self, segment: &MapSegment) -> Option<u64> {
        let pages = segment.first_page..segment.first_page + segment.pages();
        let slots = self.populated.slots_of(segment.extent, pages);
        let first = self.address_space.installed.runs_not_in(&SlotBitmap::default(), slots).next()?.start;
        let run = self.populated.runs_of(first..first + 1).next()?;
        Some(segment.start + (run.first_page - segment.first_page) * PAGE_SIZE)
    }
}

impl ForkMapCheck for KernelForkCheck<'_> {
    type Error = RangeErrorCause;

    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, RangeErrorCause> {
        let now = fork_order::current_address(address, &self.address_space.recent_changes);
        now.map(|address| self.address_space.uffd.is_registered(address)).transpose()
    }

    fn is_mapping_start(&mut self, address: u64) -> Result<Option<bool>, RangeErrorCause> {
        let Some(now) = fork_order::current_address(address, &self.address_space.recent_changes) else {
            return Ok(None);
        };
        let reaches_there = self.address_space.uffd.is_in_one_mapping(now - PAGE_SIZE, 2 * PAGE_SIZE)?;
        Ok(Some(!reaches_there))
    }

    fn first_installed(&self, segments: &[MapSegment]) -> Option<u64> {
        segments.iter().find_map(|segment| self.first_installed_in(segment))
    }

    fn probe_page(&mut self, address: u64) -> Result<Option<bool>, RangeErrorCause> {
        let Some(now) = fork_order::current_page_address(address, &self.address_space.recent_changes) else {
            return Ok(None);
        };
        // A missing page was discarded or moved away. It reads as zeroes, so filling it is harmless.
        match self.address_space.uffd.zero(now, PAGE_SIZE) {
            Ok(()) => Ok(Some(false)),
            Err(RangeError { cause: RangeErrorCause::AlreadyPresent, .. }) => Ok(Some(true)),
            Err(RangeError {
                cause: cause @ (RangeErrorCause::MapChanging | RangeErrorCause::ProcessGone), ..
            }) => Err(cause),
            Err(_) => Ok(None),
        }
    }
}
