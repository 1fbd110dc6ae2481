//! Test support: blocks of pages that move together, for property tests of the page map.

use farfork_sys::userfaultfd::UffdEvent;
use farfork_wire::PAGE_SIZE;

/// Number of pages in a block.
pub(in crate::pager) const BLOCK_PAGES: u64 = 4;

pub(in crate::pager) fn block_address(block: u64) -> u64 {
    block * BLOCK_PAGES * PAGE_SIZE
}

pub(in crate::pager) fn move_message(from: u64, to: u64) -> UffdEvent {
    UffdEvent::Remap { from: block_address(from), to: block_address(to), bytes: BLOCK_PAGES * PAGE_SIZE }
}

pub(in crate::pager) fn unmap_message(block: u64) -> UffdEvent {
    UffdEvent::Unmap { start: block_address(block), end: block_address(block + 1) }
}
