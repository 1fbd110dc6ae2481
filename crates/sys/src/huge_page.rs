//! Transparent huge pages: enables them for a process, and collapses existing small pages into one.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Size and alignment of a huge page on x86-64, in bytes.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// From `linux/mman.h`, since Linux 6.1.
const MADV_COLLAPSE: libc::c_long = 25;

/// Clears PR_SET_THP_DISABLE, which the calling process may have inherited. Then huge pages are allowed for the process and
/// for programs that it executes.
///
/// # Errors
/// As prctl(2): EINVAL if the kernel has no huge pages.
pub fn enable_thp() -> io::Result<()> {
    const NO: libc::c_long = 0;
    // SAFETY: sets a flag of the process's address space; no pointers.
    if unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, NO, NO, NO, NO) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Collapses the small pages at `address` of a process into one huge page, whatever the machine's huge page settings are.
/// Returns whether the range is a huge page afterwards. The process sees no difference, except that its changes to its
/// memory map wait until the call has ended.
///
/// Missing pages of the range are filled with zeroes. If a userfaultfd serves the range, they are not filled, and the range
/// is not collapsed.
///
/// # Errors
/// ESRCH if the process has ended; EPERM without CAP_SYS_NICE and the right to trace it.
pub fn collapse_huge_page(process: BorrowedFd<'_>, address: u64) -> io::Result<bool> {
    const NO_FLAGS: libc::c_long = 0;
    const ONE: libc::c_long = 1;
    let base = ptr::without_provenance_mut(address as usize);
    let range = libc::iovec { iov_base: base, iov_len: HUGE_PAGE_BYTES as usize };
    // SAFETY: the kernel reads one iovec, which outlives the call. In the other process, or in this one, the call changes
    // which frames hold the bytes, not the bytes.
    let advised = unsafe {
        libc::syscall(libc::SYS_process_madvise, process.as_raw_fd(), &raw const range, ONE, MADV_COLLAPSE, NO_FLAGS)
    };
    if advised >= 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // No huge page is free, the kernel uses one of the small pages, or the range may not have huge pages.
        Some(libc::ENOMEM | libc::EBUSY | libc::EAGAIN | libc::EINVAL) => Ok(false),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::pagemap::{PageTables, ScanDetail};

    #[test]
    fn small_pages_become_a_huge_one_with_the_same_bytes() {
        let me = std::process::id() as i32;
        // Twice the size, so that it contains an aligned huge page.
        let mut memory = vec![0_u8; 2 * HUGE_PAGE_BYTES as usize];
        let base = memory.as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES as usize);
        let at = base - memory.as_ptr().addr();
        for (index, page) in memory[at..at + HUGE_PAGE_BYTES as usize].chunks_mut(4096).enumerate() {
            page.fill(index as u8 | 1);
        }
        let (start, end) = (base as u64, base as u64 + HUGE_PAGE_BYTES);
        let mut tables = PageTables::open(me).unwrap();
        assert!(!tables.is_any_shared(start, end).unwrap());
        let pidfd = crate::pidfd::open(me).unwrap();
        // If no huge page is free, the first attempts may fail.
        let collapsed = (0..50).any(|_| collapse_huge_page(pidfd.as_fd(), start).unwrap());
        assert!(collapsed, "no huge page is free");
        let mut regions = Vec::new();
        tables.scan_populated(start, end, ScanDetail::Populated, &mut regions).unwrap();
        assert!(regions.iter().all(|region| region.is_huge()), "{regions:?}");
        let pages = memory[at..at + HUGE_PAGE_BYTES as usize].chunks(4096).enumerate();
        assert!(pages.into_iter().all(|(index, page)| page.iter().all(|byte| *byte == index as u8 | 1)));
    }

    #[test]
    fn transparent_huge_pages_may_be_enabled_again() {
        enable_thp().unwrap();
    }
}
