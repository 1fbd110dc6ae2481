//! Ranges of an `AddressSpace` that are unregistered for a while, so that the kernel itself fills them with zeroes.
//! `faults::mremap_growth` selects them.

use std::ops::Range;

use super::AddressSpace;

impl AddressSpace {
    /// Unregisters a range that holds nothing of the seed: the kernel fills it, and threads that wait there continue.
    pub(in crate::pager) fn unregister_range(&mut self, range: Range<u64>) {
        // Fails only if nothing is mapped there any more. Then no thread waits there either.
        let _ = self.uffd.unregister(range.start, range.end - range.start);
        if !self.kernel_filled.iter().any(|filled| filled.end == range.end) {
            self.kernel_filled.push(range);
        }
    }

    /// Registers the unregistered ranges again: each is part of its mapping again, and its changes are reported. Must be
    /// called before messages are read, because the thread that grew the memory continues after that.
    pub(in crate::pager) fn reregister_ranges(&self) {
        for filled in &self.kernel_filled {
            let _ = self.uffd.register(filled.start, filled.end - filled.start);
        }
    }

    /// The rest of an unregistered range, from this address on.
    pub(in crate::pager) fn kernel_filled_from(&self, address: u64) -> Option<Range<u64>> {
        let filled = self.kernel_filled.iter().find(|filled| filled.contains(&address))?;
        Some(address..filled.end)
    }

    /// Whether pages of the seed may be in a range.
    pub(in crate::pager) fn has_segment_in(&self, range: &Range<u64>) -> bool {
        self.page_map.first_mapped_in(range.start, range.end).is_some()
    }
}
