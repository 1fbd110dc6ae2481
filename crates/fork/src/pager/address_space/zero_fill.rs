//! How many empty pages to map at a fault. Pure.

use farfork_wire::PAGE_SIZE;

/// Pages to zero at the first fault of a run. Zeroing a page costs 0.1 µs, a fault 10 µs.
const ZERO_PAGES_MIN: u64 = 16;

/// Maximum number of pages to zero at one fault. Zeroing so many takes about 50 µs, as long as a fetch. Faults of other
/// children wait for this time.
const ZERO_PAGES_MAX: u64 = 512;

/// How many empty pages the next fault maps.
#[derive(Debug, Clone, Default)]
pub(super) struct ZeroFillWindow {
    /// Address after the last run.
    end: u64,
    pages: u64,
}

impl ZeroFillWindow {
    /// Returns how many pages to zero from `address` on: twice as many as before if `address` continues the last run.
    pub(super) fn next_window(&mut self, address: u64) -> u64 {
        let goes_on = address == self.end;
        self.pages = if goes_on { (2 * self.pages).min(ZERO_PAGES_MAX) } else { ZERO_PAGES_MIN };
        self.end = address + self.pages * PAGE_SIZE;
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_fill_windows_grow_only_for_ascending_faults() {
        let mut runs = ZeroFillWindow::default();
        assert_eq!(runs.next_window(0x10000), 16);
        assert_eq!(runs.next_window(0x20000), 32);
        assert_eq!(runs.next_window(0x40000), 64);
        assert_eq!(runs.next_window(0x10000), 16);
    }
}
