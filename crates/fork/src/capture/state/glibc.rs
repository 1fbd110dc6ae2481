//! What glibc's threads tell by themselves: where the kernel is to clear the thread's id when it ends (set_tid_address).
//!
//! glibc gives the kernel, for every thread, the field `tid` of the descriptor that the thread pointer leads to. The
//! layout has been the same since 2.3; a thread whose descriptor refers to itself, holds its id there, and has its list
//! of robust futexes registered right behind it, is such a thread. Any other is asked.

use crate::capture::stop::stopped::StoppedThread;

/// `header.self` of `struct pthread`: the descriptor's own address.
const SELF_AT: usize = 0x10;
/// `tid`.
const TID_AT: usize = 0x2d0;
/// `robust_head`.
const ROBUST_HEAD_AT: u64 = 0x2e0;

/// The address that a thread of glibc has registered; `None` for any other thread.
pub(in crate::capture) fn tid_address(thread: &StoppedThread, inner_id: u32, robust_head: u64) -> Option<u64> {
    let descriptor = thread.registers.fs_base;
    if descriptor == 0 || robust_head != descriptor.wrapping_add(ROBUST_HEAD_AT) {
        return None;
    }
    let mut bytes = [0; TID_AT + 4];
    let read = farfork_sys::memory::read_process(thread.tid, descriptor, &mut bytes).ok()?;
    (read == bytes.len() && is_glibc(&bytes, descriptor, inner_id)).then_some(descriptor + TID_AT as u64)
}

fn is_glibc(bytes: &[u8; TID_AT + 4], descriptor: u64, inner_id: u32) -> bool {
    let own_address = u64::from_ne_bytes(std::array::from_fn(|index| bytes[SELF_AT + index]));
    let tid = u32::from_ne_bytes(std::array::from_fn(|index| bytes[TID_AT + index]));
    own_address == descriptor && tid == inner_id && tid != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_descriptor_that_fits_is_believed() {
        let mut bytes = [0; TID_AT + 4];
        bytes[SELF_AT..SELF_AT + 8].copy_from_slice(&0x7000_u64.to_ne_bytes());
        bytes[TID_AT..].copy_from_slice(&41_u32.to_ne_bytes());
        assert!(is_glibc(&bytes, 0x7000, 41));
        assert!(!is_glibc(&bytes, 0x7000, 42) && !is_glibc(&bytes, 0x7008, 41));
        assert!(!is_glibc(&[0; TID_AT + 4], 0, 0));
    }
}
