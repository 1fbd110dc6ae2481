//! Controls the C library's allocator, which serves all memory of this process.

/// Limits the allocator to `pools` arenas, which threads share from now on. A thread that has an arena keeps it. Without a
/// limit glibc creates up to eight per processor, and each keeps the most memory that it ever needed. A server whose threads
/// start and end for hours then holds several times what it uses.
///
/// Does nothing if the C library is not glibc (mallopt(3), `M_ARENA_MAX`).
pub fn limit_arenas(pools: usize) {
    #[cfg(target_env = "gnu")]
    {
        let pools = pools.clamp(1, libc::c_int::MAX as usize) as libc::c_int;
        // SAFETY: changes a number of the allocator, under the allocator's own lock.
        let taken = unsafe { libc::mallopt(libc::M_ARENA_MAX, pools) };
        debug_assert_eq!(taken, 1, "any positive number is taken");
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = pools;
}

/// Returns free memory to the kernel. The allocator otherwise keeps free memory while something above it is in use. Takes
/// some milliseconds for tens of MiB, in which other threads may wait for memory.
///
/// Does nothing if the C library is not glibc (malloc_trim(3)).
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks, and changes only memory that is not allocated.
    unsafe {
        libc::malloc_trim(0)
    };
}
