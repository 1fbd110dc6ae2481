//! Ranges of an `AddressSpace` that are unregistered for a while, so that the kernel itself fills them with zeroes.
//! `faults::mremap_growth` selects them.

use std::ops::Range;

use super::AddressSpace;

impl AddressSpace {
    /// Leaves a range, in which nothing of the seed is, to the kernel: who waits there goes on.
    pub(in crate::pager) fn unregister_range(&mut self, range: Range<u64>) {
        // Refused only where nothing is mapped any more: then nobody waits there either.
        let _ = self.uffd.unregister(range.start, range.end - range.start);
        if !self.kernel_filled.iter().any(|filled| filled.end == range.end) {
            self.kernel_filled.push(range);
        }
    }

    /// What was lent of it is paged as before: an area is one again, and what becomes of it is told. Who had it filled cannot go on
    /// before this, where it is done before anything is read.
    pub(in crate::pager) fn reregister_ranges(&self) {
        for filled in &self.kernel_filled {
            let _ = self.uffd.register(filled.start, filled.end - filled.start);
        }
    }

    /// What is lent from this address on.
    pub(in crate::pager) fn kernel_filled_from(&self, address: u64) -> Option<Range<u64>> {
        let filled = self.kernel_filled.iter().find(|filled| filled.contains(&address))?;
        Some(address..filled.end)
    }

    /// Whether something of the seed may be in a range.
    pub(in crate::pager) fn has_segment_in(&self, range: &Range<u64>) -> bool {
        self.page_map.first_mapped_in(range.start, range.end).is_some()
    }
}
