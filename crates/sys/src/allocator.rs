//! Controls how the C library's allocator, which serves all memory of this process, divides memory among threads.

/// Has threads share so many pools of free memory, from now on; one that has a pool keeps it. Without this the C library
/// makes up to eight of each processor, and each keeps what it once needed: a server whose threads come and go for hours
/// holds a multiple of what it uses.
///
/// Does nothing where the C library has no such choice: it is then not glibc (mallopt(3), `M_ARENA_MAX`).
pub fn limit_arenas(pools: usize) {
    #[cfg(target_env = "gnu")]
    {
        let pools = pools.clamp(1, libc::c_int::MAX as usize) as libc::c_int;
        // SAFETY: changes a number of the allocator's, under the allocator's own lock.
        let taken = unsafe { libc::mallopt(libc::M_ARENA_MAX, pools) };
        debug_assert_eq!(taken, 1, "any positive number is taken");
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = pools;
}

/// Gives the machine back what is free, which the allocator otherwise keeps wherever something above it is in use: some
/// milliseconds for tens of MiB, in which other threads may wait for memory.
///
/// Does nothing where the C library has no such call: it is then not glibc (malloc_trim(3)).
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks, and changes only memory that nobody has.
    unsafe {
        libc::malloc_trim(0)
    };
}
