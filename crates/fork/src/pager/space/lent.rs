//! Ranges that the kernel fills with zeroes by itself for a while (`lengthened`).

use std::ops::Range;

use super::Space;

impl Space {
    /// Leaves a range, in which nothing of the seed is, to the kernel: who waits there goes on.
    pub(in crate::pager) fn lend(&mut self, range: Range<u64>) {
        // Refused only where nothing is mapped any more: then nobody waits there either.
        let _ = self.uffd.unregister(range.start, range.end - range.start);
        if !self.lent.iter().any(|lent| lent.end == range.end) {
            self.lent.push(range);
        }
    }

    /// What was lent of it is paged as before: an area is one again, and what becomes of it is told. Who had it filled cannot go on
    /// before this, where it is done before anything is read.
    pub(in crate::pager) fn take_back(&self) {
        for lent in &self.lent {
            let _ = self.uffd.register(lent.start, lent.end - lent.start);
        }
    }

    /// What is lent from this address on.
    pub(in crate::pager) fn lent_from(&self, address: u64) -> Option<Range<u64>> {
        let lent = self.lent.iter().find(|lent| lent.contains(&address))?;
        Some(address..lent.end)
    }

    /// Whether something of the seed may be in a range.
    pub(in crate::pager) fn shows_any(&self, range: &Range<u64>) -> bool {
        self.map.first_in(range.start, range.end).is_some()
    }
}
