//! Ranges of an `AddressSpace` that are temporarily unregistered, so that the kernel itself fills them with zeroes.
//! `faults::mremap_growth` selects them.

use std::ops::Range;

use super::AddressSpace;

impl AddressSpace {
    /// Unregisters a range that has no pages of the seed. The kernel then fills the range, and threads that wait in it
    /// continue.
    pub(in crate::pager) fn unregister_range(&mut self, range: Range<u64>) {
        // Fails only if the range is no longer mapped, and then no thread waits in it.
        let _ = self.uffd.unregister(range.start, range.end - range.start);
        if !self.kernel_filled.iter().any(|filled| filled.end == range.end) {
            self.kernel_filled.push(range);
        }
    }

    /// Registers the unregistered ranges again, so that the kernel reports their changes and each forms one mapping
    /// with its neighbours. Must be called before messages are read, because the thread that grew the memory continues
    /// when its message is read.
    pub(in crate::pager) fn reregister_ranges(&self) {
        for filled in &self.kernel_filled {
            let _ = self.uffd.register(filled.start, filled.end - filled.start);
        }
    }

    /// Returns the part from `address` to the end of the unregistered range that contains `address`.
    pub(in crate::pager) fn kernel_filled_from(&self, address: u64) -> Option<Range<u64>> {
        let filled = self.kernel_filled.iter().find(|filled| filled.contains(&address))?;
        Some(address..filled.end)
    }

    /// Whether pages of the seed may be in a range.
    pub(in crate::pager) fn has_segment_in(&self, range: &Range<u64>) -> bool {
        self.page_map.first_mapped_in(range.start, range.end).is_some()
    }
}
