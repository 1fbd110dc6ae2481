//! Blocks of pages that move together, in properties of what the pager hears of memory.

use farfork_sys::userfaultfd::Message;
use farfork_wire::PAGE_SIZE;

/// Pages of one.
pub(in crate::pager) const BLOCK: u64 = 4;

pub(in crate::pager) fn address(block: u64) -> u64 {
    block * BLOCK * PAGE_SIZE
}

pub(in crate::pager) fn move_of(from: u64, to: u64) -> Message {
    Message::Remap { from: address(from), to: address(to), bytes: BLOCK * PAGE_SIZE }
}

pub(in crate::pager) fn unmap_of(block: u64) -> Message {
    Message::Unmap { start: address(block), end: address(block + 1) }
}
