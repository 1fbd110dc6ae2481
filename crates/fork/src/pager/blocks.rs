//! Blocks of pages that move together, in properties of what the pager hears of memory.

use farfork_sys::userfaultfd::Message;
use farfork_wire::PAGE_SIZE;

/// Pages of one.
pub(super) const BLOCK: u64 = 4;

pub(super) fn address(block: u64) -> u64 {
    block * BLOCK * PAGE_SIZE
}

pub(super) fn move_of(from: u64, to: u64) -> Message {
    Message::Remap { from: address(from), to: address(to), bytes: BLOCK * PAGE_SIZE }
}

pub(super) fn unmap_of(block: u64) -> Message {
    Message::Unmap { start: address(block), end: address(block + 1) }
}
