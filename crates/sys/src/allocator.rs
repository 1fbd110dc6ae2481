//! Controls the C library's allocator, which serves all memory of this process.

/// Limits the allocator to `pools` arenas, which new threads share. A thread that has an arena keeps it. Without a limit,
/// glibc creates up to eight arenas per processor, and each tends to stay at its peak size. A server that starts and ends
/// threads for hours then holds several times the memory that it uses.
///
/// Does nothing if the C library is not glibc (mallopt(3), `M_ARENA_MAX`).
pub fn limit_arenas(pools: usize) {
    #[cfg(target_env = "gnu")]
    {
        let pools = pools.clamp(1, libc::c_int::MAX as usize) as libc::c_int;
        // SAFETY: changes an integer setting of the allocator, under the allocator's own lock.
        let taken = unsafe { libc::mallopt(libc::M_ARENA_MAX, pools) };
        debug_assert_eq!(taken, 1, "mallopt(3) accepts any positive M_ARENA_MAX");
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = pools;
}

/// Returns free memory to the kernel. By itself the allocator keeps free memory that lies below a block in use. Takes
/// several milliseconds for tens of MiB. During that time, other threads may wait in malloc(3).
///
/// Does nothing if the C library is not glibc (malloc_trim(3)).
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks, and changes only memory that is not allocated.
    unsafe {
        libc::malloc_trim(0)
    };
}
