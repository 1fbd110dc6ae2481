//! The clear_child_tid address (set_tid_address(2)) of glibc threads, read from memory. Any other thread is queried.
//!
//! glibc registers the address of the field `tid` of its thread descriptor (`struct pthread`), to which the thread pointer
//! refers. The layout has been the same since glibc 2.3. A descriptor is glibc's if it points to itself, holds the thread's
//! id, and has the robust list after it.

use crate::capture::stop::stop_guard::StoppedThread;

/// `header.self` of `struct pthread`: the descriptor's own address.
const SELF_OFFSET: usize = 0x10;
/// `tid`.
const TID_OFFSET: usize = 0x2d0;
/// `robust_head`.
const ROBUST_HEAD_OFFSET: u64 = 0x2e0;

/// Number of bytes that are read of a thread descriptor.
const READ_BYTES: usize = TID_OFFSET + 4;

/// Returns the registered addresses of glibc threads; `None` for any other thread. `threads`: each with its id in its pid
/// namespace and the head of its robust futex list.
pub(in crate::capture) fn tid_addresses<'a>(
    pid: i32,
    threads: impl Iterator<Item = (&'a StoppedThread, u32, u64)>,
) -> Vec<Option<u64>> {
    let descriptor = |(thread, inner_id, robust_head): (&StoppedThread, u32, u64)| {
        let descriptor = thread.registers.fs_base;
        let is_likely = descriptor != 0 && robust_head == descriptor.wrapping_add(ROBUST_HEAD_OFFSET);
        is_likely.then_some((descriptor, inner_id))
    };
    let likely: Vec<Option<(u64, u32)>> = threads.map(descriptor).collect();
    let addresses: Vec<u64> = likely.iter().flatten().map(|(descriptor, _)| *descriptor).collect();
    let mut read = farfork_sys::process_memory::read_process_batch::<READ_BYTES>(pid, &addresses).into_iter();
    let tid_address = |one: Option<(u64, u32)>| {
        let (descriptor, inner_id) = one?;
        let bytes = read.next()??;
        is_glibc_descriptor(&bytes, descriptor, inner_id).then_some(descriptor + TID_OFFSET as u64)
    };
    likely.into_iter().map(tid_address).collect()
}

fn is_glibc_descriptor(bytes: &[u8; READ_BYTES], descriptor: u64, inner_id: u32) -> bool {
    let own_address = u64::from_ne_bytes(std::array::from_fn(|index| bytes[SELF_OFFSET + index]));
    let tid = u32::from_ne_bytes(std::array::from_fn(|index| bytes[TID_OFFSET + index]));
    own_address == descriptor && tid == inner_id && tid != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_consistent_thread_descriptor_is_accepted() {
        let mut bytes = [0; READ_BYTES];
        bytes[SELF_OFFSET..SELF_OFFSET + 8].copy_from_slice(&0x7000_u64.to_ne_bytes());
        bytes[TID_OFFSET..].copy_from_slice(&41_u32.to_ne_bytes());
        assert!(is_glibc_descriptor(&bytes, 0x7000, 41));
        assert!(!is_glibc_descriptor(&bytes, 0x7000, 42) && !is_glibc_descriptor(&bytes, 0x7008, 41));
        assert!(!is_glibc_descriptor(&[0; READ_BYTES], 0, 0));
    }
}
